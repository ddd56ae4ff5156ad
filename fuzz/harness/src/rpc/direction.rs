//! The frames of one direction, by a codec of its own, and what they add up to (`rpc/FRAMES.md`).

use std::collections::BTreeMap;

pub(crate) const HEAD: u8 = 1;
pub(crate) const DATA: u8 = 2;
pub(crate) const RESET: u8 = 3;
pub(crate) const WINDOW: u8 = 4;
pub(crate) const AWAY: u8 = 5;

pub(crate) const END: u8 = 1;
pub(crate) const TRAILERS: u8 = 2;

/// The code of a violation, and the last of all.
pub(crate) const PROTOCOL: u32 = 6;
/// What a Data frame costs beside its bytes.
pub(crate) const FRAME_COST: u64 = 64;
/// The start of a hello without the length of the rest.
const MAGIC: &[u8; 10] = b"rdma-rpc\x01\0";
const HEADER: usize = 12;

/// The numbers of a hello.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) frame: u32,
    pub(crate) call_window: u32,
    pub(crate) window: u32,
    pub(crate) calls: u32,
    pub(crate) head: u32,
}

impl Limits {
    pub(crate) fn hello(self, origin: &[u8]) -> Vec<u8> {
        let mut hello = MAGIC.to_vec();
        hello.extend((20 + origin.len() as u16).to_be_bytes());
        for number in [self.frame, self.call_window, self.window, self.calls, self.head] {
            hello.extend(number.to_be_bytes());
        }
        hello.extend(origin);
        hello
    }

    /// Reads a hello. `None` if there is more to come.
    fn parse(bytes: &[u8]) -> Result<Option<(Self, &[u8])>, &'static str> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err("no hello");
        }
        let Some(length) = bytes.get(10..12) else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
        if !(20..=1024).contains(&length) {
            return Err("the length of a hello");
        }
        let Some((rest, behind)) = bytes[12..].split_at_checked(length) else { return Ok(None) };
        let mut numbers = rest.chunks_exact(4).map(number);
        let mut next = || numbers.next().unwrap_or(0);
        let limits = Self { frame: next(), call_window: next(), window: next(), calls: next(), head: next() };
        Ok(Some((limits, behind)))
    }
}

/// Reads a number of four bytes.
fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// Encodes a frame.
pub(crate) fn frame(kind: u8, flags: u8, call: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes().to_vec();
    bytes.extend(call.to_be_bytes());
    bytes.extend([kind, flags, 0, 0]);
    bytes.extend(payload);
    bytes
}

/// Puts the length of a block in front of it.
pub(crate) fn block(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

/// A frame, in its parts.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) call: u32,
    pub(crate) length: usize,
    pub(crate) head: &'a [u8],
    pub(crate) trailers: &'a [u8],
    pub(crate) body: &'a [u8],
    /// The last four bytes of a frame without a body: a code, or what a window grows by.
    pub(crate) number: u32,
}

impl<'a> Frame<'a> {
    /// Reads a frame. `None` if there is more to come.
    fn parse(bytes: &'a [u8]) -> Result<Option<(Self, &'a [u8])>, &'static str> {
        let Some((header, rest)) = bytes.split_at_checked(HEADER) else { return Ok(None) };
        let (kind, flags) = (header[8], header[9]);
        let most = if kind <= DATA { END | TRAILERS } else { 0 };
        if !(HEAD..=AWAY).contains(&kind) || header[10..] != [0, 0] {
            return Err("a header");
        }
        if flags & !most != 0 || flags & (END | TRAILERS) == TRAILERS {
            return Err("flags");
        }
        let length = number(&header[..4]) as usize;
        let Some((payload, behind)) = rest.split_at_checked(length) else { return Ok(None) };
        let mut body = payload;
        let mut take = |is_there: bool| {
            if !is_there {
                return Ok::<_, &str>(&[][..]);
            }
            let (length, rest) = body.split_at_checked(4).ok_or("a short block")?;
            let (block, rest) = rest.split_at_checked(number(length) as usize).ok_or("a long block")?;
            body = rest;
            Ok(block)
        };
        let head = take(kind == HEAD)?;
        let trailers = take(flags & TRAILERS != 0)?;
        let number = match kind {
            RESET | WINDOW if length == 4 => number(payload),
            AWAY if length == 8 => number(&payload[4..]),
            HEAD | DATA => 0,
            _ => return Err("the length of a frame"),
        };
        let body = if kind <= DATA { body } else { &[] };
        let frame = Self { kind, flags, call: number_of(header), length, head, trailers, body, number };
        Ok(Some((frame, behind)))
    }

    pub(crate) fn is_last(&self) -> bool {
        self.flags & END != 0
    }

    fn cost(&self) -> u64 {
        match self.kind {
            DATA if !self.body.is_empty() => self.body.len() as u64 + FRAME_COST,
            HEAD | DATA => self.body.len() as u64,
            _ => 0,
        }
    }
}

fn number_of(header: &[u8]) -> u32 {
    number(&header[4..8])
}

/// The sums of one call in one direction, or of all calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flow {
    /// What was taken from the window of the receiver, and what its own was made larger by.
    pub(crate) spent: u64,
    pub(crate) granted: u64,
    pub(crate) bytes: u64,
    pub(crate) has_head: bool,
    pub(crate) has_ended: bool,
    pub(crate) was_reset: bool,
}

/// The bytes of one direction so far.
#[derive(Debug, Default)]
pub(crate) struct Direction {
    unread: Vec<u8>,
    pub(crate) hello: Option<Limits>,
    pub(crate) calls: BTreeMap<u32, Flow>,
    /// Of the whole connection.
    pub(crate) all: Flow,
    pub(crate) frames: usize,
    /// The last call with a head.
    pub(crate) last: u32,
    /// The code of the GoAway.
    pub(crate) away: Option<u32>,
}

impl Direction {
    /// Takes bytes. Each frame is shown to `check` before it counts.
    ///
    /// # Errors
    /// They are malformed.
    pub(crate) fn push(
        &mut self,
        bytes: &[u8],
        mut check: impl FnMut(&Self, &Frame<'_>),
    ) -> Result<(), &'static str> {
        let mut unread = std::mem::take(&mut self.unread);
        unread.extend_from_slice(bytes);
        let mut rest = &unread[..];
        if self.hello.is_none()
            && let Some((limits, behind)) = Limits::parse(rest)?
        {
            self.hello = Some(limits);
            rest = behind;
        }
        while self.hello.is_some()
            && let Some((frame, behind)) = Frame::parse(rest)?
        {
            check(self, &frame);
            self.record(&frame);
            rest = behind;
        }
        // Most of a long frame stays where it is until its end comes.
        let read = unread.len() - rest.len();
        unread.drain(..read);
        self.unread = unread;
        Ok(())
    }

    pub(crate) fn flow(&self, call: u32) -> Flow {
        self.calls.get(&call).cloned().unwrap_or_default()
    }

    fn record(&mut self, frame: &Frame<'_>) {
        self.frames += 1;
        self.all.spent += frame.cost();
        if frame.kind == AWAY {
            self.away = Some(frame.number);
        }
        if frame.kind == WINDOW && frame.call == 0 {
            self.all.granted += u64::from(frame.number);
        }
        let call = self.calls.entry(frame.call).or_default();
        call.spent += frame.cost();
        call.bytes += frame.body.len() as u64;
        call.has_ended |= frame.is_last();
        match frame.kind {
            HEAD => {
                call.has_head = true;
                self.last = self.last.max(frame.call);
            }
            RESET => call.was_reset = true,
            WINDOW => call.granted += u64::from(frame.number),
            _ => {}
        }
    }
}
