//! The task of a session: it waits for the end of each connection, and brings the next.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::debug;

use super::greet::Failure;
use super::paths::{Rank, Route};
use super::{Role, Session, SessionPath};
use crate::cm::wait_until;
use crate::error::StreamBroken;
#[cfg(feature = "inspect")]
use crate::inspect;
use crate::io::engine::{Loss, StreamEngine};
use crate::sync::deadline;

/// The time within which the peer gets a report of what the program has read.
const REPORT: Duration = Duration::from_millis(200);

/// The longest pause between two looks for reports of a peer whose program reads nothing.
const LONGEST_REPORT: Duration = Duration::from_secs(10);

/// The pauses between two attempts to connect again.
const ATTEMPTS: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// The pauses before better paths are tried.
const PROBES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(300)];

/// The outcome of the wait for the end of a connection.
enum Ended {
    Lost,
    /// Another connection has taken its place.
    Moved,
    Over,
    /// There is a better path.
    Better(Arc<StreamEngine>, Rank),
}

/// The task of a session. When it ends, also with its runtime, so does the session.
pub(super) struct Task(Arc<Session>);

impl Task {
    pub(super) fn spawn(runtime: &Handle, session: Arc<Session>) {
        let task = Self(session);
        runtime.spawn(async move { task.0.run().await });
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.finish();
        if self.0.is_abandoned() {
            self.0.engine().abort();
        }
    }
}

impl Session {
    async fn run(self: &Arc<Self>) {
        let mut probes = Pauses::new(PROBES);
        loop {
            let engine = self.engine();
            match self.wait(&engine, &mut probes).await {
                Ended::Lost => {}
                Ended::Moved => continue,
                // In a box: a stream that has all it wants does not keep the place for it.
                Ended::Over => return Box::pin(self.conclude()).await,
                Ended::Better(better, rank) => {
                    // If the peer does not agree, the stream stays where it is.
                    let _ = self.ask(better, rank).await;
                    continue;
                }
            }
            let limit = deadline(self.gives_up_after);
            debug!(connection = %engine.connection.id(), "stream has lost its connection");
            self.paths.send_modify(SessionPath::lose);
            let outcome = match &self.role {
                Role::Active(route) => timeout_at(limit, Box::pin(self.connect_again(route))).await,
                Role::Passive { lost, most, .. } => {
                    if let Some(oldest) = lost.add(self, *most) {
                        oldest.end_with(|reason| StreamBroken::NoPath { after: oldest.lost_for(), reason });
                    }
                    let moved = timeout_at(limit, self.moved(&engine)).await;
                    lost.remove(self);
                    moved.map(Ok)
                }
            };
            let after = self.gives_up_after;
            match outcome {
                Ok(Ok(())) if self.is_over() => return Box::pin(self.conclude()).await,
                Ok(Ok(())) => {}
                Ok(Err(Failure::Over)) => return self.engine().conclude(),
                Ok(Err(_)) => return self.end_with(|reason| StreamBroken::SessionUnknown { reason }),
                Err(_elapsed) => {
                    #[cfg(feature = "inspect")]
                    if inspect::is_logged() {
                        inspect::log_given_up(&self.report());
                    }
                    return self.end_with(|reason| StreamBroken::NoPath { after, reason });
                }
            }
        }
    }

    /// Waits for the end of a connection. Until then it does what no call of the program does.
    async fn wait(&self, engine: &StreamEngine, probes: &mut Pauses) -> Ended {
        let mut better = pin!(self.find_better(engine, probes));
        // Also what the connection before has left undone.
        let (mut pause, mut report_at) = (REPORT, Some(Instant::now() + REPORT));
        let mut sent_again = false;
        loop {
            tokio::select! {
                biased;
                () = self.wake.notified() => {
                    let present = self.present.lock();
                    if present.is_over {
                        return Ended::Over;
                    }
                    if !std::ptr::eq(&*present.engine, engine) {
                        return Ended::Moved;
                    }
                    let soon = Instant::now() + REPORT;
                    pause = REPORT;
                    report_at = Some(report_at.map_or(soon, |at| at.min(soon)));
                }
                () = wait_until(report_at) => {
                    let keeps = engine.exchange_reports();
                    pause = (2 * pause).min(LONGEST_REPORT);
                    report_at = keeps.then(|| Instant::now() + pause);
                }
                (better, rank) = &mut better => return Ended::Better(better, rank),
                () = engine.sent_again(), if !sent_again => sent_again = true,
                _ = engine.connection.disconnected() => {
                    return match engine.loss().await {
                        Ok(Loss::Path(_)) => Ended::Lost,
                        Ok(Loss::Stream) => Ended::Over,
                        Err(_) => Ended::Moved,
                    };
                }
            }
        }
    }

    /// Tries from time to time whether there is a better path than the present one, and connects over it.
    async fn find_better(&self, engine: &StreamEngine, pauses: &mut Pauses) -> (Arc<StreamEngine>, Rank) {
        let rank = self.present.lock().rank;
        match &self.role {
            // In a box: most sessions have the best path.
            Role::Active(route) if !rank.is_best(route) => loop {
                pauses.next(engine).await;
                match Box::pin(route.connect(rank, None)).await {
                    Ok(better) => return better,
                    Err(error) => debug!(%error, "no better path for the stream"),
                }
            },
            _ => pending().await,
        }
    }

    /// Resolves when another connection has taken the place of that of the engine, or the session has ended.
    async fn moved(&self, engine: &StreamEngine) {
        loop {
            if self.is_over() || !std::ptr::eq(&*self.engine(), engine) {
                return;
            }
            self.wake.notified().await;
        }
    }

    /// Connects until the peer goes on with the session, or the session has ended.
    async fn connect_again(&self, route: &Route) -> Result<(), Failure> {
        let over = async {
            while !self.is_over() {
                self.wake.notified().await;
            }
        };
        let attempts = async {
            let mut pauses = Pauses::new(ATTEMPTS);
            let mut failed = None;
            loop {
                match route.connect(Rank::WORST, failed).await {
                    Ok((engine, rank)) => match self.ask(engine, rank).await {
                        // It connects, and carries nothing.
                        Err(Failure::Attempt) => failed = Some(rank),
                        outcome => return outcome,
                    },
                    Err(error) => debug!(%error, "no connection for the stream"),
                }
                pauses.next(&self.engine()).await;
            }
        };
        tokio::select! {
            biased;
            () = over => Ok(()),
            outcome = attempts => outcome,
        }
    }
}

/// The pauses between attempts to connect: each is twice as long as the last, up to the longest.
pub(super) struct Pauses {
    next: Duration,
    longest: Duration,
}

impl Pauses {
    pub(super) fn new([next, longest]: [Duration; 2]) -> Self {
        Self { next, longest }
    }

    /// Waits for half of the pause and a part of the other half that is drawn: ends that have lost the same path do not come back all
    /// at once.
    pub(super) async fn next(&mut self, engine: &StreamEngine) {
        let drawn = engine.adapter.random().unwrap_or_default() % 1024;
        let part = u32::try_from(drawn).unwrap_or_default();
        let pause = self.next;
        self.next = (2 * pause).min(self.longest);
        sleep(pause / 2 + pause * part / 2048).await;
    }
}
