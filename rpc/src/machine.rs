//! The state of a connection: its calls, windows, and the bytes to be written. It does no input or output.

mod after;
mod chunk;
mod ids;
mod loans;
mod output;
#[cfg(feature = "inspect")]
mod report;
mod window;

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::task::{Context, Waker};

use bytes::Bytes;
use http::{HeaderMap, request, response};
use tokio::task::AbortHandle;

use crate::metrics::Traffic;
use crate::wire::{
    self, Code, END, Header, Kind, Malformed, Origin, Settings, TRAILERS, take_request, take_response,
    take_trailers,
};
use after::After;
use chunk::{Chunk, Content};
use ids::IdHasher;
use loans::Loans;
pub(crate) use loans::{Borrowed, Checked, LONGEST as LONGEST_LOAN, Lender, MOST as MOST_LOANS, Need};
use output::Output;
use window::Window;

/// The cost of a frame of a body in the windows, beyond its bytes: about what its place in a queue takes. Without it,
/// a window of small frames would take many times its size in memory.
const FRAME_COST: usize = 64;
/// A request whose body is no longer than this, and there, needs no state beside its service.
const WHOLE: u32 = 4 << 10;
/// The most tasks in the list of those that wait for room to begin a call.
const MOST_OPENING: usize = 256;
/// The calls that have ended, but whose tasks have not, beside as many as may be open.
const ENDING: usize = 1_000;
/// The bytes to be written from which on bodies and new calls wait, and a server reads no more.
const MOST_OUTPUT: usize = 512 << 10;

/// A call, from its first frame on until nobody of this end is interested in it.
#[derive(Debug)]
struct Call {
    /// The head of the answer, at the client.
    head: Option<Box<response::Parts>>,
    chunks: VecDeque<Chunk>,
    trailers: Option<HeaderMap>,
    /// The peer may send more.
    receives: bool,
    /// This end may send more.
    sends: bool,
    /// The call has ended by this, before its end.
    failed: Option<Code>,
    /// The bytes that the peer takes.
    send_window: u64,
    window: Window,
    /// The tasks that wait for something of the peer, and for room to send.
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// The number of owners.
    handles: u8,
    /// Nobody reads the body.
    discards: bool,
    /// The head of the answer has come, at the client.
    has_head: bool,
    /// It is in the list of those that wait for room of the connection.
    is_blocked: bool,
    /// The task that answers, at the server.
    task: Option<AbortHandle>,
    #[cfg(feature = "inspect")]
    began: tokio::time::Instant,
}

/// What a client has of an answer.
pub(crate) enum Answer {
    /// All of it.
    Whole(Box<response::Parts>, Option<Bytes>, Option<HeaderMap>),
    /// Its head.
    Begun(Box<response::Parts>),
}

/// What a reader finds.
pub(crate) enum Read {
    /// With whether they are the end of the body.
    Data(Bytes, bool),
    Trailers(HeaderMap),
    End,
}

/// What became of bytes that were to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    All,
    /// The rest waits for room. The task is woken.
    Blocked,
}

/// The end of a direction, with or without trailers, which are encoded.
pub(crate) type End<'a> = Option<Option<&'a [u8]>>;

/// A request that has begun.
pub(crate) struct Arrived {
    pub(crate) call: u32,
    pub(crate) head: request::Parts,
    /// The body, if it is short and has all arrived.
    pub(crate) whole: Option<(Option<Bytes>, Option<HeaderMap>)>,
}

/// The state of a connection.
pub(crate) struct Machine {
    is_client: bool,
    local: Settings,
    peer: Settings,
    origin: Origin,
    calls: HashMap<u32, Call, BuildHasherDefault<IdHasher>>,
    /// The number of the last call.
    last: u32,
    /// The calls that both ends have not ended.
    open: usize,
    send_window: u64,
    window: Window,
    output: Output,
    /// The calls that wait for room of the connection.
    blocked: VecDeque<u32>,
    /// The tasks that wait for room to begin a call.
    opening: Vec<Waker>,
    /// The peer, or this end, accepts no more calls.
    going: bool,
    said_away: bool,
    loans: Loans,
    after: After,
    traffic: Traffic,
}

impl Machine {
    /// Creates the state behind the hellos. `origin` is the client's.
    pub(crate) fn new(is_client: bool, local: Settings, peer: Settings, origin: Origin) -> Self {
        Self {
            is_client,
            local,
            peer,
            origin,
            calls: HashMap::default(),
            last: 0,
            open: 0,
            send_window: peer.window.into(),
            window: Window::new(local.window),
            output: Output::default(),
            blocked: VecDeque::new(),
            opening: Vec::new(),
            going: false,
            said_away: false,
            loans: Loans::default(),
            after: After::default(),
            traffic: Default::default(),
        }
    }

    pub(crate) fn is_client(&self) -> bool {
        self.is_client
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Has a task woken when the lock is released.
    pub(crate) fn wake(&mut self, task: Option<Waker>) {
        self.after.wakers.extend(task);
    }

    /// Takes what is to be done when the lock is released, if there is something: mostly there is not.
    #[inline]
    pub(crate) fn after(&mut self) -> Option<After> {
        self.after.take(self.output.written())
    }

    /// Takes what was sent and received, which is recorded when the lock is released.
    pub(crate) fn traffic(&mut self) -> Traffic {
        std::mem::take(&mut self.traffic)
    }

    pub(crate) fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    pub(crate) fn peer_takes_head(&self, length: usize) -> bool {
        length <= self.peer.head as usize
    }

    /// Returns whether new calls can be begun.
    pub(crate) fn accepts(&self) -> bool {
        !self.going && self.last < u32::MAX
    }

    /// Returns whether there is only one call, whose bytes no others will join.
    pub(crate) fn is_alone(&self) -> bool {
        self.calls.len() <= 1
    }

    /// Returns whether the connection has nothing more to do.
    pub(crate) fn is_finished(&self) -> bool {
        self.going && self.calls.is_empty() && self.output.is_empty() && !self.loans.are_out()
    }

    /// Begins no more calls, and says so to the peer.
    pub(crate) fn go_away(&mut self, code: Code) {
        self.going = true;
        self.after.wakers.append(&mut self.opening);
        if !std::mem::replace(&mut self.said_away, true) {
            let payload = [self.last.to_be_bytes(), wire::reset(code)].concat();
            self.put(0, Kind::GoAway, 0, &payload);
        }
    }

    /// Returns whether the peer is slow to take what there is to be written.
    pub(crate) fn is_full(&self) -> bool {
        self.output.len() >= MOST_OUTPUT
    }

    /// Returns whether there is room to begin a call. If not, the task is woken when there is.
    pub(crate) fn has_room(&mut self, cx: &mut Context<'_>) -> bool {
        if self.is_full() && self.accepts() {
            let is_known = self.opening.iter().any(|waker| waker.will_wake(cx.waker()));
            if !is_known {
                // Those that have given up are woken for nothing, and leave room for others.
                if self.opening.len() >= MOST_OPENING {
                    self.after.wakers.append(&mut self.opening);
                }
                self.opening.push(cx.waker().clone());
            }
            return false;
        }
        true
    }

    /// Begins a call with one owner. Returns its number, whose head is to be sent before the lock is released: the peer
    /// wants them in order.
    pub(crate) fn open(&mut self) -> u32 {
        self.last += 1;
        self.insert(self.last, 1, true);
        self.last
    }

    fn insert(&mut self, id: u32, handles: u8, receives: bool) {
        self.open += 1;
        let call = Call {
            head: None,
            chunks: VecDeque::new(),
            trailers: None,
            receives,
            sends: true,
            failed: None,
            send_window: self.peer.call_window.into(),
            window: Window::new(self.local.call_window),
            reader: None,
            writer: None,
            handles,
            discards: false,
            has_head: false,
            is_blocked: false,
            task: None,
            #[cfg(feature = "inspect")]
            began: tokio::time::Instant::now(),
        };
        self.calls.insert(id, call);
    }

    fn put(&mut self, call: u32, kind: Kind, flags: u8, payload: &[u8]) {
        // Its length is one of this end's own small frames.
        let header = Header { length: payload.len() as u32, call, kind, flags };
        self.output.copy(&header.encode());
        self.output.copy(payload);
    }

    fn put_reset(&mut self, call: u32, code: Code) {
        self.traffic.reset_sent(code);
        self.put(call, Kind::Reset, 0, &wire::reset(code));
    }

    /// Sends what there is room for: a head, which always goes, bytes of a body, and the end behind the last of
    /// them. What was sent is taken from `head` and `body`.
    ///
    /// # Errors
    /// The call takes nothing more.
    pub(crate) fn send(
        &mut self,
        id: u32,
        head: &mut Option<Vec<u8>>,
        body: &mut Bytes,
        end: End<'_>,
        cx: &mut Context<'_>,
    ) -> Result<Sent, Code> {
        loop {
            if head.is_none() && self.lend(id, body) {
                continue;
            }
            let is_lent = self.is_lent(body.len());
            let call = self.calls.get_mut(&id).ok_or(Code::None)?;
            if let Some(code) = call.failed {
                return Err(code);
            }
            if !call.sends {
                return Err(Code::None);
            }
            let cost = if head.is_some() { 0 } else { FRAME_COST };
            let window = call.send_window.min(self.send_window);
            let room = usize::try_from(window).unwrap_or(usize::MAX).saturating_sub(cost);
            let kind = if head.is_some() { Kind::Head } else { Kind::Data };
            let head_length = head.as_deref().map_or(0, block_length);
            let mut trailers = end.flatten();
            let mut flags = match end {
                None => 0,
                Some(None) => END,
                Some(Some(_)) => END | TRAILERS,
            };
            let blocks = head_length + trailers.map_or(0, block_length);
            let limit = (self.peer.frame as usize).saturating_sub(blocks);
            let is_full = self.output.len() >= MOST_OUTPUT && head.is_none();
            // A part that is lent has a frame of its own.
            let is_apart = is_full || is_lent && head.is_some();
            let length = if is_apart { 0 } else { body.len().min(room).min(limit) };
            if length < body.len() {
                // The end comes behind the rest.
                (flags, trailers) = (0, None);
                if length == 0 && head.is_none() {
                    self.after.register(&mut call.writer, cx);
                    let is_own = !is_full && self.send_window > cost as u64;
                    if !is_own && !std::mem::replace(&mut call.is_blocked, true) {
                        self.block(id);
                    }
                    return Ok(Sent::Blocked);
                }
            } else if length == 0 && head.is_none() && flags & END == 0 {
                return Ok(Sent::All);
            }
            let spent = if length > 0 { (length + cost) as u64 } else { 0 };
            call.send_window -= spent;
            self.send_window -= spent;
            let blocks = head_length + trailers.map_or(0, block_length);
            let header = Header { length: (blocks + length) as u32, call: id, kind, flags };
            self.output.copy(&header.encode());
            for block in head.take().as_deref().into_iter().chain(trailers) {
                // Its length was compared with the limit of the peer, or is small.
                self.output.copy(&(block.len() as u32).to_be_bytes());
                self.output.copy(block);
            }
            self.output.push(body, length);
            self.traffic.sent(length);
            if flags & END != 0 {
                self.end_sending(id);
            }
            if body.is_empty() && (flags & END != 0 || end.is_none()) {
                return Ok(Sent::All);
            }
        }
    }

    /// Adds a call to those that wait for room of the connection.
    fn block(&mut self, id: u32) {
        // Some may have ended.
        if self.blocked.len() > 2 * self.calls.len() {
            self.blocked.retain(|id| self.calls.contains_key(id));
        }
        self.blocked.push_back(id);
    }

    /// Notes that this end has sent its end.
    fn end_sending(&mut self, id: u32) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.sends = false;
        if !call.receives {
            self.open -= 1;
        } else if !self.is_client {
            // The answer is complete: the rest of the request is not needed.
            call.receives = false;
            self.open -= 1;
            call.failed = Some(Code::None);
            self.after.wakers.extend(call.reader.take());
            self.put_reset(id, Code::None);
        }
    }

    /// Checks that a call can still send. If so, the task is woken when it cannot any longer.
    ///
    /// # Errors
    /// It cannot.
    pub(crate) fn may_send(&mut self, id: u32, cx: &mut Context<'_>) -> Result<(), Code> {
        let call = self.calls.get_mut(&id).ok_or(Code::None)?;
        if !call.sends || call.failed.is_some() {
            return Err(call.failed.unwrap_or(Code::None));
        }
        self.after.register(&mut call.writer, cx);
        Ok(())
    }

    /// Returns whether the answer to a call has come to its end, or to another one.
    pub(crate) fn is_answered(&self, id: u32) -> bool {
        self.calls.get(&id).is_none_or(|call| !call.receives)
    }

    /// Returns whether an answer to a call is still wanted.
    pub(crate) fn is_wanted(&self, id: u32) -> bool {
        self.calls.get(&id).is_some_and(|call| call.sends)
    }

    /// Gives up one owner of a call. With the last one a call that has not ended is reset.
    pub(crate) fn release(&mut self, id: u32, code: Code) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.handles -= 1;
        if call.handles == 0 {
            self.reset(id, code);
            // What was not read is room for other calls.
            let unread = self.discard(id);
            self.grant(0, unread);
            let mut call = self.calls.remove(&id);
            // The body of the request may wait for something else.
            self.after.wakers.extend(call.as_mut().and_then(|call| call.writer.take()));
            self.after.calls.extend(call);
        }
    }

    /// Ends a call in both directions, if it has not ended. What has arrived can be read.
    pub(crate) fn reset(&mut self, id: u32, code: Code) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if call.sends || call.receives {
            if call.receives {
                call.failed = Some(code);
            }
            (call.sends, call.receives) = (false, false);
            self.after.wakers.extend(call.reader.take().into_iter().chain(call.writer.take()));
            self.open -= 1;
            self.put_reset(id, code);
        }
    }

    /// Takes the bytes of a call that were not read. Returns their cost.
    fn discard(&mut self, id: u32) -> u32 {
        let Some(call) = self.calls.get_mut(&id) else { return 0 };
        let cost = call.chunks.iter().map(|chunk| chunk.cost).sum();
        self.after.bytes.extend(call.chunks.drain(..).filter_map(Chunk::into_bytes));
        cost
    }

    /// Reads no more of the body of a call, whose answer may go on.
    pub(crate) fn stop_reading(&mut self, id: u32) {
        if let Some(call) = self.calls.get_mut(&id) {
            call.discards = true;
            let unread = self.discard(id);
            self.grant(id, unread);
        }
    }

    /// Counts bytes that were read, and grants the peer as many when they are worth a frame. With the number 0 they
    /// count for the connection alone.
    fn grant(&mut self, id: u32, cost: u32) {
        if cost == 0 {
            return;
        }
        if let Some(more) = self.window.take(cost) {
            self.put(0, Kind::Window, 0, &more.to_be_bytes());
        }
        let call = self.calls.get_mut(&id).filter(|call| call.receives);
        if let Some(more) = call.and_then(|call| call.window.take(cost)) {
            self.put(id, Kind::Window, 0, &more.to_be_bytes());
        }
    }

    /// Takes an answer, if its head has come.
    ///
    /// # Errors
    /// The call has ended without.
    pub(crate) fn answer(&mut self, id: u32, cx: &mut Context<'_>) -> Result<Option<Answer>, Code> {
        let call = self.calls.get_mut(&id).ok_or(Code::None)?;
        let Some(head) = call.head.take() else {
            if let Some(code) = call.failed {
                return Err(code);
            }
            self.after.register(&mut call.reader, cx);
            return Ok(None);
        };
        if call.receives || call.failed.is_some() || call.chunks.len() > 1 || call.waits_for_loan() {
            return Ok(Some(Answer::Begun(head)));
        }
        let (chunk, trailers) = (call.chunks.pop_front(), call.trailers.take());
        self.grant(id, chunk.as_ref().map_or(0, |chunk| chunk.cost));
        Ok(Some(Answer::Whole(head, chunk.and_then(Chunk::into_bytes), trailers)))
    }

    /// Reads the next part of a body. Returns `None` if it has not come yet.
    ///
    /// # Errors
    /// The body ends before its end.
    pub(crate) fn read(&mut self, id: u32, cx: &mut Context<'_>) -> Result<Option<Read>, Code> {
        let call = self.calls.get_mut(&id).ok_or(Code::None)?;
        if call.waits_for_loan() {
            self.after.register(&mut call.reader, cx);
            return Ok(None);
        }
        if let Some(chunk) = call.chunks.pop_front() {
            let is_last =
                call.chunks.is_empty() && !call.receives && call.failed.is_none() && call.trailers.is_none();
            self.grant(id, chunk.cost);
            return Ok(chunk.into_bytes().map(|bytes| Read::Data(bytes, is_last)));
        }
        if let Some(trailers) = call.trailers.take() {
            return Ok(Some(Read::Trailers(trailers)));
        }
        match call.failed {
            Some(code) => Err(code),
            None if !call.receives => Ok(Some(Read::End)),
            None => {
                self.after.register(&mut call.reader, cx);
                Ok(None)
            }
        }
    }

    /// Returns how the direction of a call that is received has ended: with these trailers, if they were not read, or before
    /// its end. `None` while it has not.
    pub(crate) fn ending(&mut self, id: u32) -> Option<Result<Option<HeaderMap>, Code>> {
        let call = self.calls.get_mut(&id)?;
        match call.failed {
            Some(code) => Some(Err(code)),
            None if call.receives => None,
            None => Some(Ok(call.trailers.take())),
        }
    }

    /// Sets the task that answers a call, which ends with it.
    pub(crate) fn set_task(&mut self, id: u32, task: AbortHandle) {
        match self.calls.get_mut(&id) {
            Some(call) if call.sends => call.task = Some(task),
            Some(_) => self.after.tasks.push(task),
            None => {}
        }
    }

    /// Wakes the calls that wait for room of the connection, if there is some.
    pub(crate) fn unblock(&mut self) {
        if self.is_full() {
            return;
        }
        self.after.wakers.append(&mut self.opening);
        if self.send_window <= FRAME_COST as u64 {
            return;
        }
        for id in self.blocked.drain(..) {
            if let Some(call) = self.calls.get_mut(&id) {
                call.is_blocked = false;
                self.after.wakers.extend(call.writer.take());
            }
        }
    }

    /// Ends all calls, because the connection has ended.
    pub(crate) fn fail(&mut self) {
        self.going = true;
        let unread: Vec<u32> =
            self.calls.iter().filter(|(_, call)| call.has_loan()).map(|(id, _)| *id).collect();
        unread.into_iter().for_each(|id| self.cut_at_loan(id));
        for call in self.calls.values_mut() {
            if call.receives {
                call.failed = Some(Code::Internal);
            }
            (call.sends, call.receives) = (false, false);
            self.after.wakers.extend(call.reader.take().into_iter().chain(call.writer.take()));
            self.after.tasks.extend(call.task.take());
        }
        self.open = 0;
        self.after.wakers.append(&mut self.opening);
    }

    /// Takes a frame of the peer. Returns the request that it begins.
    ///
    /// # Errors
    /// The peer breaks the protocol.
    pub(crate) fn receive(&mut self, header: Header, payload: Bytes) -> Result<Option<Arrived>, Malformed> {
        let id = header.call;
        match header.kind {
            Kind::Head if self.is_client => self.receive_answer(header, payload).map(|()| None),
            Kind::Head => self.receive_request(header, payload),
            Kind::Data => self.receive_data(header, payload).map(|()| None),
            Kind::Reset => {
                let code = wire::take_code(&payload)?;
                self.check_known(id)?;
                self.traffic.reset_received(code);
                self.receive_reset(id, code);
                Ok(None)
            }
            Kind::Window => {
                let more = u64::from(wire::number(&payload)?);
                let too_many = Malformed("a window is larger than 2^32 bytes");
                let grow = |window: &mut u64| {
                    *window += more;
                    if *window > u64::from(u32::MAX) { Err(too_many) } else { Ok(()) }
                };
                if id == 0 {
                    grow(&mut self.send_window)?;
                } else {
                    self.check_known(id)?;
                    if let Some(call) = self.calls.get_mut(&id) {
                        grow(&mut call.send_window)?;
                        self.after.wakers.extend(call.writer.take());
                    }
                }
                self.unblock();
                Ok(None)
            }
            Kind::GoAway => {
                let (last, code) = payload.split_first_chunk::<4>().ok_or(Malformed("a short frame"))?;
                wire::take_code(code)?;
                self.receive_away(u32::from_be_bytes(*last));
                Ok(None)
            }
            Kind::Lent => self.receive_lent(header, &payload).map(|()| None),
            Kind::Returned => self.receive_returned(header, &payload).map(|()| None),
        }
    }

    /// Checks that there is, or was, a call of this number.
    fn check_known(&self, id: u32) -> Result<(), Malformed> {
        let is_known = (1..=self.last).contains(&id);
        if is_known { Ok(()) } else { Err(Malformed("a frame for a call that was not begun")) }
    }

    fn receive_request(&mut self, header: Header, payload: Bytes) -> Result<Option<Arrived>, Malformed> {
        let id = header.call;
        if self.last.checked_add(1) != Some(id) {
            return Err(Malformed("the number of a call is not the next one"));
        }
        self.last = id;
        let (block, rest) = self.split(&payload)?;
        let has_ended = header.flags & END != 0;
        let (trailers, body) = self.split_trailers(header.flags, rest)?;
        let cost = u32::try_from(body.len()).unwrap_or(u32::MAX);
        self.window.arrive(cost)?;
        self.traffic.received(body.len());
        let most = self.local.calls as usize;
        // Also for calls that have ended, but whose task has not: who begins and cancels has no more of them.
        if self.going || self.open >= most || self.calls.len() >= 2 * most + ENDING {
            self.grant(0, cost);
            self.put_reset(id, Code::Refused);
            return Ok(None);
        }
        let head = take_request(block, &self.origin)?;
        let is_whole = has_ended && cost <= WHOLE;
        self.insert(id, if is_whole { 1 } else { 2 }, !has_ended);
        let body = Some(body).filter(|body| !body.is_empty());
        if is_whole {
            self.grant(0, cost);
            return Ok(Some(Arrived { call: id, head, whole: Some((body, trailers)) }));
        }
        if let Some(call) = self.calls.get_mut(&id) {
            call.window.arrive(cost)?;
            call.trailers = trailers;
            call.chunks.extend(body.map(|bytes| Chunk { content: Content::Bytes(bytes), cost }));
        }
        Ok(Some(Arrived { call: id, head, whole: None }))
    }

    fn receive_answer(&mut self, header: Header, payload: Bytes) -> Result<(), Malformed> {
        self.check_known(header.call)?;
        let (block, rest) = self.split(&payload)?;
        let (trailers, body) = self.split_trailers(header.flags, rest)?;
        let cost = u32::try_from(body.len()).unwrap_or(u32::MAX);
        if let Some(call) = self.calls.get_mut(&header.call).filter(|call| call.receives) {
            if std::mem::replace(&mut call.has_head, true) {
                return Err(Malformed("two heads of one answer"));
            }
            call.head = Some(Box::new(take_response(block)?));
        }
        self.take_body(header, body, cost, trailers)
    }

    fn receive_data(&mut self, header: Header, payload: Bytes) -> Result<(), Malformed> {
        self.check_known(header.call)?;
        let (trailers, body) = self.split_trailers(header.flags, payload)?;
        if body.is_empty() && header.flags & END == 0 {
            return Err(Malformed("a frame of nothing"));
        }
        let call = self.calls.get(&header.call).filter(|call| call.receives);
        if self.is_client && call.is_some_and(|call| !call.has_head) {
            return Err(Malformed("a body before its head"));
        }
        let cost = if body.is_empty() { 0 } else { body.len() + FRAME_COST };
        self.take_body(header, body, u32::try_from(cost).unwrap_or(u32::MAX), trailers)
    }

    /// Takes bytes of a body, and perhaps its end.
    fn take_body(
        &mut self,
        header: Header,
        body: Bytes,
        cost: u32,
        trailers: Option<HeaderMap>,
    ) -> Result<(), Malformed> {
        let length = body.len();
        self.take_content(header, Content::Bytes(body), cost, length, trailers).map(|_| ())
    }

    /// Takes the next part of a body, of this length, and perhaps its end. Returns whether it will be read.
    fn take_content(
        &mut self,
        header: Header,
        content: Content,
        cost: u32,
        length: usize,
        trailers: Option<HeaderMap>,
    ) -> Result<bool, Malformed> {
        self.window.arrive(cost)?;
        self.traffic.received(length);
        let id = header.call;
        let Some(call) = self.calls.get_mut(&id).filter(|call| call.receives) else {
            // The peer did not know yet that this end has ended the call.
            self.grant(0, cost);
            return Ok(false);
        };
        call.window.arrive(cost)?;
        let discards = call.discards;
        if !discards && length > 0 {
            call.chunks.push_back(Chunk { content, cost });
        }
        if header.flags & END != 0 {
            call.receives = false;
            call.trailers = trailers.filter(|_| !discards);
            if !call.sends {
                self.open -= 1;
            }
        }
        self.after.wakers.extend(call.reader.take());
        if discards {
            self.grant(id, cost);
        }
        Ok(!discards)
    }

    fn receive_reset(&mut self, id: u32, code: Code) {
        let Some(call) = self.calls.get_mut(&id).filter(|call| call.sends || call.receives) else { return };
        if call.receives || code != Code::None {
            call.failed = Some(code);
        }
        (call.sends, call.receives) = (false, false);
        self.open -= 1;
        self.after.wakers.extend(call.reader.take().into_iter().chain(call.writer.take()));
        self.after.tasks.extend(call.task.take());
    }

    fn receive_away(&mut self, last: u32) {
        self.going = true;
        self.after.wakers.append(&mut self.opening);
        if !self.is_client {
            return;
        }
        let late: Vec<u32> = self.calls.keys().copied().filter(|id| *id > last).collect();
        for id in late {
            self.receive_reset(id, Code::Refused);
        }
    }

    /// Splits a payload into its first block and the rest.
    fn split(&self, payload: &Bytes) -> Result<(Bytes, Bytes), Malformed> {
        let (block, rest) = wire::split_block(payload)?;
        if block.len() > self.local.head as usize {
            return Err(Malformed("a head is longer than this end takes"));
        }
        let rest = payload.slice_ref(rest);
        // Who keeps a value of a short head keeps no long body with it.
        let is_shared = payload.len() <= 2 * block.len();
        Ok((if is_shared { payload.slice_ref(block) } else { Bytes::copy_from_slice(block) }, rest))
    }

    fn split_trailers(&self, flags: u8, rest: Bytes) -> Result<(Option<HeaderMap>, Bytes), Malformed> {
        if flags & TRAILERS == 0 {
            return Ok((None, rest));
        }
        let (block, body) = self.split(&rest)?;
        Ok((Some(take_trailers(block)?), body))
    }
}

/// Returns the length of a block in a frame.
fn block_length(block: &[u8]) -> usize {
    block.len() + 4
}
