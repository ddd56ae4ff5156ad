//! The end of a stream: an engine, or a session, which has one engine after the other.

use std::io::{self, IoSlice};
use std::ops::Deref;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{Interest, ReadBuf, Ready};

use super::engine::{Side, StreamEngine};
use super::session::{Close, Session};
#[cfg(feature = "inspect")]
use crate::inspect;
use crate::provider::stream::Progress;

/// The end of a stream.
#[derive(Clone)]
pub(super) enum End {
    /// The stream ends with its connection.
    Plain(Arc<StreamEngine>),
    Session(Arc<Session>),
}

/// The engine of an end at this moment.
pub(super) enum Present<'a> {
    Plain(&'a StreamEngine),
    Session(Arc<StreamEngine>),
}

impl Deref for Present<'_> {
    type Target = StreamEngine;
    #[inline]
    fn deref(&self) -> &StreamEngine {
        match self {
            Self::Plain(engine) => engine,
            Self::Session(engine) => engine,
        }
    }
}

impl End {
    /// Returns the engine. That of a session may be another one a moment later.
    #[inline]
    pub(super) fn engine(&self) -> Present<'_> {
        match self {
            Self::Plain(engine) => Present::Plain(engine),
            Self::Session(session) => Present::Session(session.engine()),
        }
    }

    pub(super) fn session(&self) -> Option<&Arc<Session>> {
        match self {
            Self::Plain(_) => None,
            Self::Session(session) => Some(session),
        }
    }

    /// Calls the engine, and the next one if the stream has moved: the call would block then.
    #[inline]
    fn try_with<T>(&self, mut call: impl FnMut(&StreamEngine) -> io::Result<T>) -> io::Result<T> {
        loop {
            let engine = self.engine();
            match call(&engine) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && engine.has_moved() => {}
                outcome => return outcome,
            }
        }
    }

    /// Polls the engine, and the next one if the stream has moved. If it moves later, the task is woken.
    #[inline]
    fn poll_with<T>(&self, mut poll: impl FnMut(&StreamEngine) -> Poll<T>) -> Poll<T> {
        loop {
            let engine = self.engine();
            match poll(&engine) {
                Poll::Pending if engine.has_moved() => {}
                outcome => return outcome,
            }
        }
    }

    #[inline]
    pub(super) fn poll_read(&self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_with(|engine| engine.poll_read(cx, into))
    }

    pub(super) fn try_read(&self, into: &mut ReadBuf<'_>) -> io::Result<()> {
        self.try_with(|engine| engine.try_read(into))
    }

    pub(super) fn poll_peek(&self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_with(|engine| engine.poll_peek(cx, into))
    }

    pub(super) async fn peek(&self, into: &mut ReadBuf<'_>) -> io::Result<()> {
        loop {
            if let Ok(outcome) = self.engine().peek(into).await {
                return outcome;
            }
        }
    }

    #[inline]
    pub(super) fn poll_write(&self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.poll_with(|engine| engine.poll_write(cx, parts))
    }

    pub(super) fn try_write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.try_with(|engine| engine.try_write(parts))
    }

    pub(super) fn poll_ready(&self, cx: &mut Context<'_>, side: Side) -> Poll<()> {
        self.poll_with(|engine| engine.poll_ready(cx, side))
    }

    pub(super) async fn ready(&self, side: Side) {
        while self.engine().ready(side).await.is_err() {}
    }

    pub(super) async fn readiness(&self, interest: Interest) -> Ready {
        loop {
            if let Ok(ready) = self.engine().readiness(interest).await {
                return ready;
            }
        }
    }

    pub(super) fn poll_settled(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_with(|engine| engine.poll_settled(cx))
    }

    /// Ends this direction, and resolves like [`poll_settled`](Self::poll_settled).
    pub(super) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(engine) => engine.poll_shutdown(cx),
            Self::Session(_) => {
                self.shutdown();
                self.poll_settled(cx)
            }
        }
    }

    /// Ends this direction. Returns `true` if its end has been sent to the peer or need not be sent.
    pub(super) fn shutdown(&self) -> bool {
        self.session().inspect(|session| session.close(Close::Shutdown));
        self.engine().shutdown()
    }

    /// Ends both directions.
    pub(super) fn disconnect(&self) {
        self.session().inspect(|session| session.close(Close::Disconnect));
        self.engine().disconnect();
    }

    /// Returns whether nothing is left but to disconnect: the peer has received everything, and sends no more.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Plain(engine) => engine.is_over(),
            Self::Session(_) => false,
        }
    }

    pub(super) fn progress(&self) -> Option<Progress> {
        self.engine().progress()
    }

    /// Notes that no call that polls waits in these directions, for snapshots.
    pub(super) fn end_waits(&self, sides: &[Side]) {
        #[cfg(feature = "inspect")]
        {
            let engine = self.engine();
            sides.iter().for_each(|side| engine.end_wait(*side));
        }
        #[cfg(not(feature = "inspect"))]
        let _ = sides;
    }

    /// Logs why the peer has not confirmed the end of the stream within the close timeout. The caller has no locks.
    pub(super) fn log_unconfirmed(&self) {
        #[cfg(feature = "inspect")]
        if inspect::is_logged() {
            let engine = self.engine();
            let session = self.session().map(|session| session.report());
            inspect::log_unconfirmed(&engine.report(), &engine.connection.report(), session.as_ref());
        }
    }

    /// Ends the connection without waiting for what was written.
    pub(super) fn abort(&self) {
        match self {
            Self::Plain(engine) => engine.reset(),
            Self::Session(session) => session.abandon(),
        }
    }

    /// Resolves when the stream has ended, for whatever reason.
    pub(super) async fn ended(&self) {
        match self {
            Self::Plain(engine) => {
                let _ = engine.connection.disconnected().await;
            }
            Self::Session(session) => session.ended().await,
        }
    }

    /// Ends the connection. No other follows it. `has_settled` is whether the peer has received everything.
    pub(super) async fn finish(&self, has_settled: bool) {
        self.session().inspect(|session| session.finish());
        let connection = self.engine().connection.clone();
        let has_agreed = connection.disconnect().await.is_ok();
        if let Self::Session(session) = self
            && !has_agreed
        {
            session.conclude_unanswered(has_settled).await;
        }
    }
}
