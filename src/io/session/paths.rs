//! The paths of a session: what a program sees of them, the way to the peer, and which path is better.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use tokio::time::Instant;

use crate::cm::Connection;
use crate::error::{ProtocolError, StreamError};
use crate::io::connector::RdmaConnector;
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

/// The order of the paths, the best first: those of devices before those over TCP, and each to the addresses in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::io) struct Rank {
    pub(in crate::io) is_soft: bool,
    /// The place of the address.
    pub(in crate::io) place: usize,
}

impl Rank {
    /// That of the passive end, which chooses none.
    pub(super) const BEST: Self = Self { is_soft: false, place: 0 };

    /// That of no path: every path is better.
    pub(in crate::io) const WORST: Self = Self { is_soft: true, place: usize::MAX };

    /// Returns whether there can be no better path.
    pub(super) fn is_best(self, route: &Route) -> bool {
        self.place == 0 && !(self.is_soft && route.connector.has_choice())
    }
}

/// The way to the peer: over any adapter of a connector, to any of these addresses.
pub(in crate::io) struct Route {
    connector: RdmaConnector,
    addresses: Vec<SocketAddr>,
}

impl Route {
    pub(in crate::io) fn new(connector: RdmaConnector, addresses: Vec<SocketAddr>) -> Self {
        Self { connector, addresses }
    }

    /// Connects over the best path that there is, if it is better than `worst`. The one that has just `failed` comes last.
    ///
    /// # Errors
    /// There is none, or the peer wants no session.
    pub(super) async fn connect(
        &self,
        worst: Rank,
        failed: Option<Rank>,
    ) -> Result<(Arc<StreamEngine>, Rank), StreamError> {
        let (engine, rank) = self.connector.connect_engine(&self.addresses, worst, failed).await?;
        if !engine.has_session() {
            let peer = engine.connection.peer_addr();
            return Err(StreamError::Protocol { peer, error: ProtocolError::Foreign });
        }
        Ok((engine.shared(), rank))
    }
}
