//! The frames of the peer, cut out of a byte stream.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use super::Reader;
use super::spare::SPARE;
use crate::wire::{HEADER, Header, Malformed, Settings};

/// The room for the bytes of a read. A frame that is longer has room of its own.
const ROOM: usize = 8 << 10;
/// The capacity that an idle connection keeps for them.
const KEPT: usize = 1 << 10;
/// The bytes of long frames behind which the task that reads lets others run: they take them while they are in the cache, and
/// the allocator has their memory back for the next ones.
const TURN: usize = 64 << 10;

/// The frames of the peer, cut out of a byte stream.
pub(crate) struct Frames {
    reader: Reader,
    /// What has come, from `start` on not taken yet.
    unread: Vec<u8>,
    start: usize,
    /// A frame that is longer than the room, with its payload as far as it has come.
    long: Option<(Header, BytesMut)>,
    /// The most bytes of a frame behind its header.
    most: usize,
    /// The bytes of long frames since others ran.
    handed_out: usize,
}

impl Frames {
    pub(crate) fn new(reader: Reader, settings: &Settings) -> Self {
        Self {
            reader,
            unread: Vec::new(),
            start: 0,
            long: None,
            most: settings.frame as usize,
            handed_out: 0,
        }
    }

    /// Returns whether others are to run before more is read, once for each [`TURN`].
    pub(super) fn ends_turn(&mut self) -> bool {
        let ends = self.handed_out >= TURN;
        if ends {
            self.handed_out = 0;
        }
        ends
    }

    /// Reads once. Returns the number of bytes, 0 at the end.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Some((header, payload)) = &mut self.long {
            let missing = header.length as usize - payload.len();
            let mut room = payload.limit(missing);
            return pin!(self.reader.read_buf(&mut room)).poll(cx);
        }
        self.unread.drain(..std::mem::take(&mut self.start));
        // On the stack, so that an idle connection has none.
        let mut room = [MaybeUninit::uninit(); ROOM];
        let mut room = ReadBuf::uninit(&mut room);
        ready!(Pin::new(&mut self.reader).poll_read(cx, &mut room))?;
        self.unread.extend_from_slice(room.filled());
        Poll::Ready(Ok(room.filled().len()))
    }

    /// Reads bytes that nobody wants. Returns whether there may be more.
    pub(super) fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut room = [MaybeUninit::uninit(); ROOM];
        let mut room = ReadBuf::uninit(&mut room);
        let outcome = ready!(Pin::new(&mut self.reader).poll_read(cx, &mut room));
        Poll::Ready(outcome.is_ok() && !room.filled().is_empty())
    }

    /// Returns the next whole frame, if it has come.
    pub(super) fn next(&mut self) -> Result<Option<(Header, Bytes)>, Malformed> {
        if let Some((header, mut payload)) =
            self.long.take_if(|(header, payload)| payload.len() >= header.length as usize)
        {
            self.handed_out += payload.len();
            let room = payload.capacity();
            let whole = payload.split().freeze();
            SPARE.keep(payload, room);
            return Ok(Some((header, whole)));
        }
        if self.long.is_some() {
            return Ok(None);
        }
        let unread = &self.unread[self.start..];
        if unread.is_empty() && self.unread.capacity() > KEPT {
            (self.unread, self.start) = (Vec::new(), 0);
            return Ok(None);
        }
        let Some((header, rest)) = unread.split_first_chunk::<HEADER>() else { return Ok(None) };
        let header = Header::decode(header)?;
        let length = header.length as usize;
        if length > self.most {
            return Err(Malformed("a frame is longer than this end takes"));
        }
        if let Some(payload) = rest.get(..length) {
            let payload = Bytes::copy_from_slice(payload);
            self.start += HEADER + length;
            return Ok(Some((header, payload)));
        }
        if length > ROOM - HEADER {
            let mut payload = SPARE.take(length);
            payload.extend_from_slice(rest);
            self.long = Some((header, payload));
            (self.unread, self.start) = (Vec::new(), 0);
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::wire::Kind;

    const SETTINGS: Settings = Settings {
        frame: 64 << 10,
        call_window: 1 << 20,
        window: 4 << 20,
        calls: 1,
        head: 16 << 10,
        loans: None,
    };

    /// Bytes from a place on, which come in pieces of up to this length.
    struct Pieces(Vec<u8>, usize, usize);

    impl AsyncRead for Pieces {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _cx: &mut Context<'_>,
            room: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let Self(bytes, start, piece) = &mut *self;
            let length = (*piece).min(room.remaining()).min(bytes.len() - *start);
            room.put_slice(&bytes[*start..*start + length]);
            *start += length;
            Poll::Ready(Ok(()))
        }
    }

    /// Returns a frame of this length, with its number in each byte.
    fn frame(call: u32, length: usize) -> (Header, Vec<u8>) {
        (Header { length: length as u32, call, kind: Kind::Data, flags: 0 }, vec![call as u8; length])
    }

    #[test]
    fn frames_come_in_any_pieces() {
        let lengths = [0, 1, 300, ROOM - HEADER - 1, ROOM - HEADER, ROOM - HEADER + 1, ROOM, 64 << 10];
        // Each length behind each other one.
        let sent: Vec<_> =
            (0..64).map(|call| frame(call, lengths[(call / 8 + call % 8) as usize % 8])).collect();
        let bytes: Vec<u8> =
            sent.iter().flat_map(|(header, payload)| [&header.encode()[..], payload].concat()).collect();
        for piece in [1, 7, HEADER, 13, 1000, ROOM - 1, ROOM, 1 << 20] {
            let mut frames = Frames::new(Box::new(Pieces(bytes.clone(), 0, piece)), &SETTINGS);
            let (mut came, mut turns) = (Vec::new(), 0);
            loop {
                while let Some((header, payload)) =
                    frames.next().unwrap_or_else(|error| panic!("{}", error.0))
                {
                    came.push((header, payload.to_vec()));
                    turns += usize::from(frames.ends_turn());
                }
                assert!(
                    frames.unread.capacity() <= 4 * ROOM,
                    "no more is kept than a short frame and a read"
                );
                match frames.poll_fill(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(Ok(0)) => break,
                    Poll::Ready(Ok(_)) => {}
                    other => panic!("{other:?}"),
                }
            }
            assert!(came == sent, "pieces of {piece}");
            assert!(
                frames.long.is_none() && frames.unread.capacity() <= KEPT,
                "an idle connection keeps nothing"
            );
            // One for each of the longest frames at least.
            assert!((8..=16).contains(&turns), "{turns}");
        }
    }

    #[test]
    fn frame_beyond_the_limit_is_malformed() {
        let bytes = frame(1, (64 << 10) + 1).0.encode().to_vec();
        let mut frames = Frames::new(Box::new(Pieces(bytes, 0, HEADER)), &SETTINGS);
        assert!(frames.poll_fill(&mut Context::from_waker(Waker::noop())).is_ready());
        assert!(frames.next().is_err());
    }
}
