//! What an engine does for a session: it keeps written bytes in the journal, and passes that on when its connection is lost.

use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;

use super::transfer::is_good_order;
use super::{Side, State, StreamEngine};
use crate::error::{ProtocolError, StreamBroken};
use crate::io::session::{Close, Journal};
use crate::proto::rsocket::Message;
use crate::types::DisconnectReason;

/// Another engine has the stream now.
#[derive(Clone, Copy, Debug)]
pub(in crate::io) struct Moved;

/// What became of a connection that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::io) enum Loss {
    /// The stream can go on over another one.
    Path(DisconnectReason),
    /// The stream has ended with it.
    Stream,
}

/// What an engine has to do with a session.
#[derive(Debug)]
pub(super) enum Standing {
    /// Nothing: the stream ends with its connection.
    Plain,
    /// The stream is here.
    Here(Box<Journal>),
    /// The ends agree about the next connection. Nothing is read, written or reported before they have.
    Away,
    /// The stream is elsewhere.
    Moved,
}

impl Standing {
    fn journal(&mut self) -> Option<&mut Journal> {
        match self {
            Self::Here(journal) => Some(journal),
            _ => None,
        }
    }

    /// Returns how many bytes may be written now.
    #[inline]
    pub(super) fn room(&self) -> usize {
        match self {
            Self::Plain => usize::MAX,
            Self::Here(journal) => journal.room(),
            Self::Away | Self::Moved => 0,
        }
    }

    /// Keeps the first `length` bytes, which have been sent.
    #[inline(always)]
    pub(super) fn keep(&mut self, parts: &[IoSlice<'_>], length: usize) {
        if let Self::Here(journal) = self {
            journal.write(parts, length);
        }
    }

    /// Counts bytes that the program has read.
    #[inline]
    pub(super) fn read(&mut self, length: usize) {
        if let Self::Here(journal) = self {
            journal.read(length);
        }
    }

    /// Notes that the peer has sent something: its program runs.
    #[inline]
    pub(super) fn hear(&mut self) {
        if let Self::Here(journal) = self {
            journal.hear();
        }
    }

    /// Takes what the peer's program has read. Bytes of before a session is agreed on are not counted.
    pub(super) fn acknowledge(&mut self, bytes: u32) -> Result<(), ProtocolError> {
        match self {
            Self::Here(journal) => journal.acknowledge(bytes),
            _ => Ok(()),
        }
    }

    /// Has the direction closed when all bytes of before a loss have been sent again. Returns `false` if there are none.
    pub(super) fn close(&mut self, close: Close) -> bool {
        self.journal().is_some_and(|journal| journal.close(close))
    }

    /// Returns whether bytes of before a loss are to be sent before the direction closes.
    #[inline]
    pub(super) fn is_closing(&self) -> bool {
        matches!(self, Self::Here(journal) if journal.is_closing())
    }
}

impl State {
    /// Returns the outcome of `attempt`, if the stream is here.
    #[inline]
    pub(super) fn if_here<T>(&mut self, attempt: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if matches!(self.standing, Standing::Away | Standing::Moved) { None } else { attempt(self) }
    }

    /// Returns the outcome of `attempt`, if the stream is here, or that it has moved.
    pub(super) fn here<T>(
        &mut self,
        attempt: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<Result<T, Moved>> {
        match self.standing {
            Standing::Plain | Standing::Here(_) => attempt(self).map(Ok),
            Standing::Away => None,
            Standing::Moved => Some(Err(Moved)),
        }
    }

    /// Returns the reason with which the stream has ended. None while a session may still go on over another connection.
    #[inline]
    pub(super) fn broken(&self) -> Option<&StreamBroken> {
        self.ended.as_ref().filter(|_| self.lost().is_none())
    }

    /// Takes the reason with which the stream has broken, if that has not been reported. None if only a connection of a session was lost,
    /// or the stream has ended in good order.
    pub(super) fn take_unreported_break(&mut self) -> Option<StreamBroken> {
        if !self.has_unreported_end || matches!(self.standing, Standing::Away | Standing::Moved) {
            return None;
        }
        let broken = self.broken()?;
        let broken = (!is_good_order(self, broken)).then(|| broken.clone());
        self.has_unreported_end = false;
        broken
    }

    /// Returns whether the stream waits for its next engine: nothing that this one receives concerns it.
    #[inline]
    pub(super) fn is_left(&self) -> bool {
        matches!(self.standing, Standing::Away) || self.lost().is_some()
    }

    /// Returns why the connection of a stream that can go on was lost.
    fn lost(&self) -> Option<DisconnectReason> {
        use DisconnectReason::{DeviceRemoved, Lost, Peer};
        // A peer that has disconnected the stream neither sends nor takes data.
        let goes_on = !matches!(self.standing, Standing::Plain) && !self.machine.has_peer_disconnected();
        match &self.ended {
            Some(StreamBroken::Connection(reason @ (Peer | Lost { .. } | DeviceRemoved))) if goes_on => {
                Some(reason.clone())
            }
            _ => None,
        }
    }
}

impl StreamEngine {
    /// Returns whether both ends have agreed on a session in their hellos.
    pub(in crate::io) fn has_session(&self) -> bool {
        self.lock().machine.has_session()
    }

    /// Goes on with the stream of the journal.
    pub(in crate::io) fn adopt(&self, journal: Box<Journal>) {
        let mut state = self.lock();
        state.standing = Standing::Here(journal);
        self.advance(&mut state);
    }

    /// Takes the journal: from now on no byte of this connection counts. `None` if the stream is elsewhere, or has ended.
    pub(in crate::io) fn fence(&self) -> Option<Box<Journal>> {
        let mut state = self.lock();
        self.collect(&mut state, Side::Writer);
        if state.machine.has_peer_disconnected() {
            return None;
        }
        match std::mem::replace(&mut state.standing, Standing::Away) {
            Standing::Here(journal) => Some(journal),
            other => {
                state.standing = other;
                None
            }
        }
    }

    /// Takes the journal back: the ends have not agreed.
    pub(in crate::io) fn restore(&self, journal: Box<Journal>) {
        let mut state = self.lock();
        if matches!(state.standing, Standing::Away) {
            state.standing = Standing::Here(journal);
        }
        drop(state);
        self.wake_all();
    }

    /// Returns whether the peer has closed the stream: it neither sends nor takes data.
    pub(in crate::io) fn has_peer_disconnected(&self) -> bool {
        self.lock().machine.has_peer_disconnected()
    }

    /// Closes the stream as if a message of the peer had, which has said so over another connection.
    pub(in crate::io) fn conclude(&self) {
        // In every state this is possible.
        let _ = self.lock().machine.apply(Message::Disconnect);
        self.wake_all();
    }

    /// Sends the peer a message that this end has given the stream up.
    pub(in crate::io) fn abandon(&self) {
        let mut state = self.lock();
        state.machine.abandon();
        self.advance(&mut state);
    }

    /// Ends the stream, which the peer has given up.
    pub(in crate::io) fn end_abandoned(&self) {
        let mut state = self.lock();
        self.end_with(&mut state, StreamBroken::SessionUnknown { reason: DisconnectReason::Peer });
        drop(state);
        self.wake_all();
    }

    /// Leaves the stream to another engine, and ends the connection.
    pub(in crate::io) fn leave(&self) {
        let mut state = self.lock();
        // First: a task that finds nothing here sees why.
        self.has_moved.store(true, Ordering::Release);
        state.standing = Standing::Moved;
        drop(state);
        self.wake_all();
        self.queue_pair.flush();
    }

    /// Ends the session. If its connection was lost, the stream has ended with the given reason, or that of the loss.
    pub(in crate::io) fn surrender(&self, reason: impl FnOnce(DisconnectReason) -> StreamBroken) {
        let mut state = self.lock();
        if let Some(lost) = state.lost() {
            state.ended = Some(reason(lost));
        }
        if !matches!(state.standing, Standing::Moved) {
            state.standing = Standing::Plain;
        }
        drop(state);
        self.wake_all();
    }

    /// Returns whether the stream has left for another engine, which is present before.
    #[inline]
    pub(in crate::io) fn has_moved(&self) -> bool {
        self.has_moved.load(Ordering::Acquire)
    }

    fn wake_all(&self) {
        self.inner.wakers.wake_sides(Side::Reader.bit() | Side::Writer.bit());
    }

    /// Resolves when everything that the connection has brought is known, after its end.
    pub(in crate::io) async fn loss(&self) -> Result<Loss, Moved> {
        let attempt = |state: &mut State, collected: bool| {
            let has_ended = collected && state.ended.is_some();
            has_ended.then(|| state.lost().map_or(Loss::Stream, Loss::Path))
        };
        self.wait_for(Side::Reader, attempt).await
    }

    /// Resolves when all bytes of before a loss have been sent again, or the connection has ended.
    pub(in crate::io) async fn sent_again(&self) {
        let attempt = |state: &mut State, _| {
            self.advance(state);
            let waits = matches!(&state.standing, Standing::Here(journal) if journal.has_unsent());
            (!waits || state.ended.is_some()).then_some(())
        };
        // If the stream has moved, that is the next engine's.
        let _ = self.wait_for(Side::Writer, attempt).await;
    }

    /// Reports to the peer how much the program has read, and takes its reports: a program that neither reads nor writes does not.
    /// Returns whether bytes are still kept for the peer.
    pub(in crate::io) fn exchange_reports(&self) -> bool {
        self.queues.incoming.progress();
        let mut state = self.lock();
        self.collect(&mut state, Side::Reader);
        let told = state.standing.journal().and_then(Journal::take_read_by_clock);
        if let Some(bytes) = told {
            state.machine.report_read(bytes);
            self.advance(&mut state);
        }
        state.standing.journal().is_some_and(|journal| journal.has_kept())
    }

    /// Sends what a session has to: bytes of before a loss, the end behind them, and how much the program has read.
    #[inline]
    pub(super) fn advance_session(&self, state: &mut State) {
        if !matches!(state.standing, Standing::Plain) && state.ended.is_none() {
            self.advance_present(state);
        }
    }

    fn advance_present(&self, state: &mut State) {
        self.send_again(state);
        let Some(journal) = state.standing.journal() else { return };
        let (close, read) = (journal.take_close(), journal.take_read());
        match close {
            Some(Close::Shutdown) => state.machine.shutdown(),
            Some(Close::Disconnect) => state.machine.disconnect(),
            Some(Close::Abandon) => state.machine.abandon(),
            None => {}
        }
        if let Some(bytes) = read {
            state.machine.report_read(bytes);
        }
    }

    /// Sends bytes of before a loss, as many as there is room for.
    fn send_again(&self, state: &mut State) {
        while state.standing.journal().is_some_and(|journal| journal.has_unsent()) {
            // Out of the state while it is read from.
            let Standing::Here(mut journal) = std::mem::replace(&mut state.standing, Standing::Away) else {
                return;
            };
            let part = journal.unsent();
            let room = state.machine.room(part.len());
            let sent = if room > 0 { self.send_now(state, &[IoSlice::new(part)], room) } else { Ok(None) };
            if let Ok(Some(length)) = sent {
                journal.send_again(length);
            }
            state.standing = Standing::Here(journal);
            match sent {
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(kind) => return self.handle_refused_post(state, kind),
            }
        }
    }
}

/// Reads and writes of the messages with which the connection of a session begins.
impl StreamEngine {
    /// Writes bytes at once. The connection is new, so there is room.
    ///
    /// # Errors
    /// If the connection has ended.
    pub(in crate::io) fn write_first(&self, bytes: &[u8]) -> io::Result<()> {
        match self.try_write(&[IoSlice::new(bytes)]) {
            Ok(written) if written == bytes.len() => Ok(()),
            Err(error) => Err(error),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Reads exactly as many bytes.
    ///
    /// # Errors
    /// If the stream ends before.
    pub(in crate::io) async fn read_first<const N: usize>(&self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        let mut into = tokio::io::ReadBuf::new(&mut bytes);
        while into.remaining() > 0 {
            let before = into.remaining();
            // If the stream has moved, the next read says that nothing has come.
            let _ = self.ready(Side::Reader).await;
            self.try_read(&mut into)?;
            if into.remaining() == before {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(bytes)
    }
}
