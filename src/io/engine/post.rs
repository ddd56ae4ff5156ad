//! Posting the messages of a stream, and the targets that the peer writes for them; and the requests whose futures are kept, which are
//! those over a provider that frames data itself.

use std::future::Future;
use std::io::IoSlice;
use std::ops::Range;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;
use tokio::task::coop::unconstrained;

use super::{CONTROL, Confirmation, DATA, KIND_BITS, State, StreamEngine};
use crate::error::{PostErrorKind, ProtocolError};
use crate::inflight::StreamInbox;
use crate::io::resources::{ENTRIES, Incoming, Memory, NO_PLACE};
use crate::mr::{Inline, RemoteRegion};
use crate::proto::rsocket::{Carrier, Control, Message, Span, Transfer};
use crate::provider::stream::{StreamMessage, Streamed};
use crate::provider::work::RemoteAddress;
use crate::qp::{Op, QueuePair, WorkOptions};
use crate::types::RemoteKey;

/// The source of the bytes of a write.
enum Source<'a> {
    /// A range of the memory of this end.
    Own(Range<usize>),
    /// Bytes that the posting call copies.
    Inline(&'a [&'a [u8]]),
}

impl StreamEngine {
    /// Has the provider send a message with some of the first `length` bytes. Returns how many these were; `None` if it takes
    /// nothing now, and wakes the writer when it does. After an error nothing was sent.
    pub(super) fn frame(
        &self,
        state: &mut State,
        parts: &[IoSlice<'_>],
        length: usize,
    ) -> Result<Option<usize>, PostErrorKind> {
        let Span { address, key, .. } = state.machine.target();
        let to = RemoteAddress { key, address };
        let in_send = state.machine.peer_takes_bytes();
        let message = StreamMessage { parts, length, to, in_send, describe: encode_length };
        match self.queue_pair.provider().write_message(&message, &self.completed)? {
            Streamed::Sent(length) => {
                state.machine.send_directly(length);
                Ok(Some(length))
            }
            Streamed::Blocked => Ok(None),
        }
    }

    /// Copies the first `length` bytes to the ring and posts them. After an error nothing was posted.
    pub(super) fn copy_in(
        &self,
        state: &mut State,
        parts: &[IoSlice<'_>],
        length: usize,
    ) -> Result<usize, PostErrorKind> {
        let mut left = length;
        let parts = parts.iter().map(move |part| {
            let part = &part[..part.len().min(left)];
            left -= part.len();
            part
        });
        let at = state.machine.send_at(length);
        let inline: Option<Vec<&[u8]>> = (length <= self.inline).then(|| parts.clone().collect());
        if inline.is_none() {
            let mut place = at;
            for part in parts {
                // The place is in bounds: `Machine::room` has returned at least this length.
                let _ = self.memory()?.own.write(place, part);
                place += part.len();
            }
        }
        let Transfer { from, to, message } = state.machine.transfer(length);
        let source = inline.as_deref().map_or(Source::Own(from), Source::Inline);
        // A request that fails is reported in any case, also a silent one.
        let options = match state.machine.is_silent() {
            true => WorkOptions::default().silent(),
            false => signaled_options(state, DATA),
        };
        self.post(state, Some((source, to)), message, options).map(|()| length)
    }

    pub(super) fn post_control(&self, state: &mut State, control: Control) -> Result<(), PostErrorKind> {
        let ends = matches!(control.message, Message::Shutdown | Message::Disconnect | Message::Abandon);
        if ends && self.confirms && state.confirmation == Confirmation::NotRequested {
            // The end of a session may be followed by a message that says how.
            let is_last = !state.machine.has_session();
            self.queue_pair.provider().end_stream(control.message.to_bytes(), is_last)?;
            state.confirmation = Confirmation::Requested;
            state.machine.complete_control();
            return Ok(());
        }
        let options = signaled_options(state, CONTROL);
        let Some((entry, place)) = control.target else {
            return self.post(state, None, control.message, options);
        };
        if self.inline >= Span::LEN {
            return self.post(state, Some((Source::Inline(&[&entry]), place)), control.message, options);
        }
        let memory = self.memory()?;
        let start = memory.entries + state.entries * Span::LEN;
        state.entries = (state.entries + 1) % ENTRIES;
        // The places are in bounds.
        let _ = memory.own.write(start, &entry);
        let source = Source::Own(start..start + Span::LEN);
        self.post(state, Some((source, place)), control.message, options)
    }

    /// Takes the target that a message of the peer announces, if there is one.
    ///
    /// # Errors
    /// The peer has announced what it may not.
    pub(super) fn take_target(&self, state: &mut State) -> Result<(), ProtocolError> {
        let index = state.machine.next_target();
        let target = match (&self.queues.incoming, &self.memory) {
            (Incoming::Inbox(inbox), _) => read_list(inbox, index),
            (_, Some(memory)) => memory.read_target(index),
            (_, None) => return Ok(()),
        };
        if state.machine.apply_target(target)? {
            match (&self.queues.incoming, &self.memory) {
                (Incoming::Inbox(inbox), _) => clear_list(inbox, index),
                (_, memory) => memory.iter().for_each(|memory| memory.clear_target(index)),
            }
        }
        Ok(())
    }

    /// Returns the registered memory.
    ///
    /// # Errors
    /// There is none: the provider frames messages itself.
    fn memory(&self) -> Result<&Memory, PostErrorKind> {
        self.memory.as_ref().ok_or(NO_PLACE)
    }

    /// Posts a write of nothing, whose completion covers the unsignaled transfers before it.
    pub(super) fn post_nothing(&self, state: &mut State) -> Result<(), PostErrorKind> {
        self.write(&self.queue_pair, Source::Inline(&[]), Span::default(), signaled_options(state, DATA))
    }

    /// Posts a message, and a write before it.
    fn post(
        &self,
        state: &mut State,
        write: Option<(Source<'_>, Span)>,
        message: Message,
        options: WorkOptions,
    ) -> Result<(), PostErrorKind> {
        match (self.carrier, write) {
            (Carrier::Immediate, write) => {
                // A message without data is an empty write.
                let (source, to) = write.unwrap_or((Source::Inline(&[]), Span::default()));
                self.write(&self.queue_pair, source, to, options.immediate(message.encode()))
            }
            (Carrier::Send, None) => self.send(&self.queue_pair, state, message, options),
            (Carrier::Send, Some((source, to))) => {
                let batch = self.queue_pair.batch();
                // The completion of the send that follows is enough.
                self.write(&batch, source, to, WorkOptions::default().silent())?;
                self.send(&batch, state, message, options)
            }
        }
    }

    fn write(
        &self,
        queue_pair: &QueuePair,
        source: Source<'_>,
        to: Span,
        options: WorkOptions,
    ) -> Result<(), PostErrorKind> {
        let to = RemoteRegion::new(to.address, RemoteKey(to.key), to.length);
        match source {
            Source::Own(range) => {
                let slice = self.memory()?.own.slice(range).map_err(|_| NO_PLACE)?;
                queue_pair.write_with(slice, &to, options).map(drop).map_err(|error| error.kind)
            }
            Source::Inline([]) => {
                queue_pair.write_with((), &to, options).map(drop).map_err(|error| error.kind)
            }
            Source::Inline(parts) => queue_pair.write_inline(parts, &to, options).map(drop),
        }
    }

    /// Keeps the future of a request unless it completes in a queue.
    fn track(&self, state: &mut State, context: u64, future: Op<Inline>) {
        if self.queues.initiator.is_none() {
            state.posted.push(context, future);
        }
    }

    /// Sends a message as librdmacm does on iWARP.
    fn send(
        &self,
        queue_pair: &QueuePair,
        state: &mut State,
        message: Message,
        options: WorkOptions,
    ) -> Result<(), PostErrorKind> {
        if self.inline >= Message::LEN {
            let op = queue_pair.send_inline(&[&message.to_bytes()], options)?;
            self.track(state, options.context, op);
            return Ok(());
        }
        let memory = self.memory()?;
        let start = memory.outgoing + state.messages * Message::LEN;
        state.messages = (state.messages + 1) % self.send_depth;
        // The places are in bounds.
        let _ = memory.own.write(start, &message.to_bytes());
        let slice = memory.own.slice(start..start + Message::LEN);
        let slice = slice.map_err(|_| NO_PLACE)?;
        queue_pair.send_with(slice, options).map(drop).map_err(|error| error.kind)
    }
}

/// Returns the options of a signaled request of this kind. Its completion covers the transfers since the last one, its
/// own included.
fn signaled_options(state: &mut State, kind: u64) -> WorkOptions {
    WorkOptions::default().context(kind | (state.machine.take_unsignaled() as u64) << KIND_BITS)
}

/// Returns the payload of the send behind `length` bytes.
fn encode_length(length: usize) -> [u8; Message::LEN] {
    // A target is no longer than this.
    Message::Data(u32::try_from(length).unwrap_or(u32::MAX)).to_bytes()
}

/// Returns an entry of the list of targets that the provider keeps.
fn read_list(inbox: &StreamInbox, index: usize) -> Span {
    let entry = inbox.with_list(|list| list.as_chunks().0.get(index).copied());
    entry.map_or_else(Span::default, Span::from_native)
}

fn clear_list(inbox: &StreamInbox, index: usize) {
    inbox.with_list(|list| list.as_chunks_mut().0[index] = [0; Span::LEN]);
}

/// The requests that have not completed, oldest first. They complete in this order, and most of them within the post.
#[derive(Default)]
pub(super) struct PostedRequests(SmallVec<[PostedRequest; 1]>);

/// A request with its context.
struct PostedRequest {
    context: u64,
    future: Op<Inline>,
}

impl PostedRequests {
    /// Returns whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a request with this context.
    pub(super) fn push(&mut self, context: u64, future: Op<Inline>) {
        self.0.push(PostedRequest { context, future });
    }

    /// Takes the oldest request if it has completed. Returns its context, and whether it has succeeded. If it has not completed, its
    /// completion wakes `waker`.
    pub(super) fn poll(&mut self, waker: &Waker) -> Option<(u64, bool)> {
        let PostedRequest { context, future } = self.0.first_mut()?;
        let Poll::Ready((result, _)) = pin!(unconstrained(future)).poll(&mut Context::from_waker(waker))
        else {
            return None;
        };
        let context = *context;
        self.0.remove(0);
        Some((context, result.is_ok()))
    }
}
