//! The task of a session, which waits for the end of each connection and brings the next; and the messages with which each connection
//! begins, at both ends.

use std::future::{pending, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::debug;

use super::paths::{Rank, Route};
use super::{Found, Journal, LostSessions, Present, Registered, Role, Session, SessionPath};
use crate::cm::{Adapter, wait_until};
use crate::error::{ProtocolError, StreamBroken, StreamError};
#[cfg(feature = "inspect")]
use crate::inspect;
use crate::io::config::{SessionConfig, StreamConfig};
use crate::io::engine::{Loss, StreamEngine};
use crate::io::session;
use crate::metrics::count_session;
use crate::proto::session::{Counts, Greeting, GreetingBytes, Id, Kind, MOST_KEPT, Secret};
use crate::sync::{Mutex, deadline};

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

/// The time for the exchange of the first messages of a connection.
const EXCHANGE: Duration = Duration::from_secs(10);

/// The time for the answer to a peer that is refused.
const REFUSAL: Duration = Duration::from_secs(1);

/// The smallest window: a write of rsocket waits for as much room (`RS_SNDLOWAT`).
const LEAST_KEPT: u32 = 2048;

/// The failure of an attempt to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Another attempt may succeed.
    Attempt,
    /// The peer has lost the session, or does not go on with it.
    Unknown,
    /// The stream has ended for the peer, which has received all of it.
    Over,
}

/// An end that a session begins with.
struct Begin {
    engine: Arc<StreamEngine>,
    id: Id,
    secret: Secret,
    /// How many bytes this end keeps, and the peer.
    windows: [u32; 2],
    gives_up_after: Duration,
    rank: Rank,
}

/// Returns how many bytes an end keeps for its peer.
fn window(config: &StreamConfig, session: &SessionConfig, adapter: &Adapter) -> u32 {
    let window = session.window.unwrap_or_else(|| config.buffers(adapter.properties())[1]);
    let most = u32::try_from(MOST_KEPT).unwrap_or(u32::MAX);
    u32::try_from(window).unwrap_or(most).clamp(LEAST_KEPT, most)
}

/// Returns the first message of an end, without id, secret, epoch and count.
pub(super) fn greeting(kind: Kind, window: u32, gives_up_after: Duration) -> Greeting {
    let (id, secret) = <(Id, Secret)>::default();
    Greeting { kind, window, gives_up_after, id, epoch: 0, read: 0, secret }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The begin of a session.
impl Session {
    /// Opens a session over a connection whose peer has agreed to one.
    ///
    /// # Errors
    /// If the connection ends, or the peer answers something else.
    ///
    /// # Cancel safety
    /// Dropping the future ends the connection.
    pub(in crate::io) async fn open(
        (engine, rank): (Arc<StreamEngine>, Rank),
        config: &StreamConfig,
        route: Route,
    ) -> io::Result<Arc<Self>> {
        let settings = config.session.unwrap_or_default();
        let window = window(config, &settings, &engine.adapter);
        let ask = greeting(Kind::Open, window, settings.gives_up_after);
        engine.write_first(&ask.to_bytes(&Secret::default()))?;
        let answer = engine.read_first().await?;
        let granted = Greeting::decode(&answer).filter(|granted| granted.kind == Kind::Granted);
        let granted = granted.ok_or(invalid("the peer does not open the session"))?;
        let begin = Begin {
            engine,
            id: granted.id,
            secret: granted.secret,
            windows: [window, granted.window],
            gives_up_after: settings.gives_up_after.min(granted.gives_up_after),
            rank,
        };
        Ok(Self::begin(begin, |_| Role::Active(Box::new(route))))
    }

    /// Takes a connection whose peer asks for a session. Returns the session if it begins, or `None` if the connection belongs to one
    /// that exists.
    ///
    /// # Errors
    /// If the connection ends, or the peer asks for something that is refused.
    ///
    /// # Cancel safety
    /// Dropping the future ends the connection.
    pub(in crate::io) async fn accept(
        engine: Arc<StreamEngine>,
        config: &StreamConfig,
        lost: &Arc<LostSessions>,
    ) -> io::Result<Option<Arc<Self>>> {
        let bytes = timeout(EXCHANGE, engine.read_first()).await??;
        let ask = Greeting::decode(&bytes).ok_or(invalid("the peer asks for no session"))?;
        match ask.kind {
            Kind::Open => Self::grant(engine, config, ask, lost).map(Some),
            Kind::Resume | Kind::Over | Kind::Abandoned => resume(engine, &ask, &bytes).await.map(|()| None),
            _ => Err(invalid("the peer asks for no session")),
        }
    }

    fn grant(
        engine: Arc<StreamEngine>,
        config: &StreamConfig,
        ask: Greeting,
        lost: &Arc<LostSessions>,
    ) -> io::Result<Arc<Self>> {
        let settings = config.session.unwrap_or_default();
        let window = window(config, &settings, &engine.adapter);
        let random = || engine.adapter.random().map(u128::to_be_bytes);
        let (id, secret) = random().zip(random()).ok_or(invalid("the system has no random numbers"))?;
        let (id, secret) = (Id(id), Secret(secret));
        let granted = greeting(Kind::Granted, window, settings.gives_up_after);
        engine.write_first(&Greeting { id, secret, ..granted }.to_bytes(&secret))?;
        let (lost, most) = (lost.clone(), settings.lost);
        let key = (engine.adapter.network(), id);
        let begin = Begin {
            engine,
            id,
            secret,
            windows: [window, ask.window],
            gives_up_after: settings.gives_up_after.min(ask.gives_up_after),
            rank: Rank::BEST,
        };
        let role = |session: &_| Role::Passive { lost, most, _registered: Registered::new(key, session) };
        Ok(Self::begin(begin, role))
    }

    /// Creates the session, and spawns its task.
    fn begin(begin: Begin, role: impl FnOnce(&Weak<Self>) -> Role) -> Arc<Self> {
        let Begin { engine, id, secret, windows: [window, peers], gives_up_after, rank } = begin;
        let wake = Arc::new(Notify::new());
        engine.adopt(Box::new(Journal::new(Counts::new(window.into(), peers.into()), wake.clone())));
        let engine = engine.shared();
        let runtime = engine.runtime.clone();
        let session = Arc::new_cyclic(|session| {
            let role = role(session);
            let paths = watch::Sender::new(SessionPath::first(&engine));
            let present =
                Mutex::new(Present { engine, rank, close: None, is_over: false, is_concluded: false });
            Self {
                id,
                secret,
                role,
                gives_up_after,
                window,
                present,
                epoch: Mutex::new(0),
                wake,
                paths,
                #[cfg(feature = "inspect")]
                _inspected: session::register(session),
            }
        });
        // Its engine was made in a runtime.
        if let Some(runtime) = runtime {
            Task::spawn(&runtime, session.clone());
        }
        session
    }
}

/// Gives the connection to the session that the peer asks for, or takes what the peer says of its end.
///
/// # Errors
/// The session cannot go on, or has ended.
async fn resume(engine: Arc<StreamEngine>, ask: &Greeting, bytes: &GreetingBytes) -> io::Result<()> {
    let found = session::find((engine.adapter.network(), ask.id))
        .filter(|found| Greeting::is_proven(bytes, found.secret()));
    let engine = engine.shared();
    let outcome = match &found {
        Some(Found::Live(session)) => session.take(&engine, ask),
        Some(Found::Ended(_)) => Err(Kind::Over),
        None => Err(Kind::Unknown),
    };
    let Err(kind) = outcome else { return Ok(()) };
    count_session(match kind {
        Kind::Unknown => "unknown",
        Kind::Over => "over",
        _ => "refused",
    });
    let secret = found.as_ref().map_or_else(Secret::default, |found| *found.secret());
    let answer = Greeting { kind, id: ask.id, epoch: ask.epoch, ..greeting(kind, 0, Duration::ZERO) };
    // Otherwise the peer learns it from the end of the connection.
    if engine.write_first(&answer.to_bytes(&secret)).is_ok() {
        engine.disconnect();
        let _ = timeout(REFUSAL, poll_fn(|cx| engine.poll_settled(cx))).await;
    }
    Err(invalid("the peer asks for a session that it cannot have"))
}

/// The active end after a loss.
impl Session {
    /// Asks the peer to go on over this connection.
    pub(super) async fn ask(&self, engine: Arc<StreamEngine>, rank: Rank) -> Result<(), Failure> {
        let before = self.engine();
        let epoch = self.next_epoch();
        let Some(mut journal) = before.fence() else { return Err(Failure::Unknown) };
        let ask = greeting(Kind::Resume, self.window, self.gives_up_after);
        let ask = Greeting { id: self.id, epoch, read: journal.progress(), ..ask };
        let exchange = async {
            engine.write_first(&ask.to_bytes(&self.secret))?;
            engine.read_first().await
        };
        let answer = match timeout(EXCHANGE, exchange).await {
            Ok(Ok(bytes)) => self.check(&bytes, epoch),
            Ok(Err(error)) => {
                debug!(%error, "no answer about the stream");
                Err(Failure::Attempt)
            }
            Err(_elapsed) => Err(Failure::Attempt),
        };
        let agreed = answer.and_then(|read| journal.resume(read).map_err(|_| Failure::Unknown));
        match agreed {
            Ok(()) => self.go_on(engine, rank, &before, journal),
            Err(_) => {
                before.restore(journal);
                engine.abort();
            }
        }
        agreed
    }

    /// Returns how many bytes the peer's program has read, of its answer.
    fn check(&self, bytes: &GreetingBytes, epoch: u64) -> Result<u64, Failure> {
        let answer = Greeting::decode(bytes).filter(|answer| answer.id == self.id && answer.epoch == epoch);
        let answer = answer.ok_or(Failure::Attempt)?;
        let is_proven = Greeting::is_proven(bytes, &self.secret);
        match answer.kind {
            Kind::Granted if is_proven => Ok(answer.read),
            Kind::Over if is_proven => Err(Failure::Over),
            Kind::Refused if is_proven => Err(Failure::Unknown),
            // Who has lost the session cannot prove that.
            Kind::Unknown => Err(Failure::Unknown),
            _ => Err(Failure::Attempt),
        }
    }

    /// Sends the peer a message that the stream has ended for both.
    ///
    /// # Errors
    /// No connection is made, or it brings no answer.
    pub(super) async fn say(&self, kind: Kind, route: &Route) -> Result<(), StreamError> {
        let (engine, _) = route.connect(Rank::WORST, None).await?;
        let epoch = self.next_epoch();
        let words = Greeting { id: self.id, epoch, ..greeting(kind, self.window, self.gives_up_after) };
        let exchange = async {
            engine.write_first(&words.to_bytes(&self.secret))?;
            engine.read_first::<{ size_of::<GreetingBytes>() }>().await
        };
        let answer = timeout(EXCHANGE, exchange).await;
        engine.abort();
        // Whatever the answer is, the peer does not wait any longer.
        match answer {
            Ok(Ok(_)) => Ok(()),
            _ => Err(StreamError::Protocol {
                peer: engine.connection.peer_addr(),
                error: ProtocolError::Foreign,
            }),
        }
    }
}
