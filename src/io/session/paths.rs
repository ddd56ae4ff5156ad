//! What a program sees of the paths of a session.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use tokio::time::Instant;

use crate::cm::Connection;
use crate::io::engine::StreamEngine;
use crate::io::stream::RdmaStream;
use crate::sync::Mutex;

/// The path of a stream with a session: its connection, or that it has none.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionPath {
    /// The connection. After a loss it is the one that was lost, until there is another.
    pub connection: Connection,
    /// The stream has lost its connection, and has no other yet.
    pub is_lost: bool,
    /// The session has ended: the stream is closed, or has failed.
    pub is_over: bool,
    /// The number of times that the stream went on over another connection.
    pub resumes: u64,
    /// The time that the stream was last without a connection.
    pub pause: Duration,
    /// When the connection was lost.
    lost_at: Option<Instant>,
}

impl SessionPath {
    pub(super) fn first(engine: &StreamEngine) -> Self {
        let connection = engine.connection.clone();
        Self { connection, is_lost: false, is_over: false, resumes: 0, pause: Duration::ZERO, lost_at: None }
    }

    pub(super) fn lose(&mut self) {
        self.is_lost = true;
        self.lost_at.get_or_insert_with(Instant::now);
    }

    /// Returns for how long the stream has had no connection.
    pub(super) fn lost_for(&self) -> Duration {
        self.lost_at.map_or(Duration::ZERO, |lost| lost.elapsed())
    }

    pub(super) fn go_on(&mut self, engine: &StreamEngine) {
        self.pause = self.lost_for();
        self.lost_at = None;
        self.is_lost = false;
        self.resumes += 1;
        self.connection = engine.connection.clone();
    }
}

/// The paths that a stream takes: a [`Stream`] of the path after each change, returned by [`RdmaStream::path_changes`].
///
/// Changes that follow each other faster than they are taken become one. It ends with the stream.
#[must_use = "streams do nothing unless polled"]
pub struct PathChanges(Mutex<BoxStream<'static, SessionPath>>);

impl PathChanges {
    fn new(changes: impl Stream<Item = SessionPath> + Send + 'static) -> Self {
        // It is never locked, and can so be shared by threads.
        Self(Mutex::new(changes.boxed()))
    }
}

impl Stream for PathChanges {
    type Item = SessionPath;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<SessionPath>> {
        self.0.get_mut().poll_next_unpin(cx)
    }
}

impl fmt::Debug for PathChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PathChanges").finish_non_exhaustive()
    }
}

impl RdmaStream {
    /// Returns the path of the stream, if it has a session ([`StreamConfig::session`](crate::StreamConfig::session)). `None` if the
    /// stream ends with its connection: one of the ends wants no session, or the peer is another program.
    pub fn session(&self) -> Option<SessionPath> {
        self.shared.end.session().map(|session| session.paths.borrow().clone())
    }

    /// Returns the changes of the path from now on: each loss of the connection, and each connection over which the stream goes
    /// on. Without a session there are none.
    ///
    /// ```
    /// use futures::StreamExt;
    ///
    /// # async fn example(stream: tokio_rdma::RdmaStream) {
    /// let mut changes = stream.path_changes();
    /// tokio::spawn(async move {
    ///     while let Some(path) = changes.next().await {
    ///         println!("lost: {}, {}", path.is_lost, path.connection.peer_addr());
    ///     }
    /// });
    /// # }
    /// ```
    pub fn path_changes(&self) -> PathChanges {
        let Some(session) = self.shared.end.session() else { return PathChanges::new(stream::empty()) };
        let changes = stream::unfold(session.paths.subscribe(), async |mut paths| {
            paths.changed().await.ok()?;
            let path = paths.borrow_and_update().clone();
            Some((path, paths))
        });
        PathChanges::new(changes)
    }
}
