//! Sessions: streams that go on over another connection when theirs is lost.
//!
//! A [`Session`] has one engine after the other. Its task waits for the end of the connection. At the active end it connects again
//! ([`route`]); at the passive end a listener of the process brings the next connection. Both ends then exchange
//! [`Greeting`]s, and the [`Journal`] goes from the old engine to the new one. Between [`StreamEngine::fence`] and that the program
//! neither reads nor writes, so the counts that the peer is told are true when it takes them.

mod config;
mod journal;
mod paths;
mod registry;
mod route;

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{debug, info};

pub use config::SessionConfig;
pub(super) use journal::{Close, Journal};
pub use paths::{PathChanges, SessionPath};
pub(super) use registry::LostSessions;
pub(super) use route::Route;

use super::config::StreamConfig;
use super::engine::{Loss, StreamEngine};
use crate::cm::{Adapter, wait_until};
use crate::error::{StreamBroken, StreamError};
use crate::metrics::count_session;
use crate::proto::session::{Counts, Greeting, GreetingBytes, Id, Kind, MOST_KEPT, Secret};
use crate::sync::{Mutex, deadline};
use crate::types::DisconnectReason;
use registry::{Found, Registered};

/// The time within which the peer is told what the program has read.
const TELL_READ: Duration = Duration::from_millis(200);

/// The time for the exchange of the first messages of a connection.
const EXCHANGE: Duration = Duration::from_secs(10);

/// The time for the answer to a peer that is refused.
const REFUSAL: Duration = Duration::from_secs(1);

/// The pause between two attempts to connect again: it doubles up to the longest, and half of it is drawn.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// One end of a session.
pub(super) struct Session {
    id: Id,
    secret: Secret,
    role: Role,
    gives_up_after: Duration,
    window: u32,
    present: Mutex<Present>,
    /// The highest epoch so far. Locked while the passive end takes a connection, so that one comes after the other.
    epoch: Mutex<u64>,
    /// Wakes the task.
    wake: Arc<Notify>,
    paths: watch::Sender<SessionPath>,
}

/// The present state of a session.
struct Present {
    engine: Arc<StreamEngine>,
    /// How the program has closed the stream.
    close: Option<Close>,
    /// The stream needs no other connection any more, or has failed.
    is_over: bool,
    /// The peer has been told that the stream has ended.
    is_concluded: bool,
}

enum Role {
    Active(Route),
    Passive { lost: Arc<LostSessions>, most: usize, _registered: Registered },
}

/// The failure of an attempt to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// Another attempt may succeed.
    Attempt,
    /// The peer does not have the session any more, or does not go on with it.
    Unknown,
    /// The stream has ended for the peer, which has received all of it.
    Over,
}

/// The outcome of the wait for the end of a connection.
enum Ended {
    Lost,
    /// Another connection has taken its place.
    Moved,
    Over,
}

/// Returns how many bytes an end keeps for its peer.
fn window(config: &StreamConfig, session: &SessionConfig, adapter: &Adapter) -> u32 {
    let window = session.window.unwrap_or_else(|| config.buffers(adapter.properties())[1]);
    let most = u32::try_from(MOST_KEPT).unwrap_or(u32::MAX);
    u32::try_from(window).unwrap_or(most).clamp(1, most)
}

/// What an end says of a session that begins, apart from its id and its secret.
fn greeting(kind: Kind, window: u32, gives_up_after: Duration) -> Greeting {
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
    pub(super) async fn open(
        engine: StreamEngine,
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
        Ok(Self::begin(
            engine,
            granted.id,
            granted.secret,
            settings,
            [window, granted.window],
            |gives_up_after, _| (gives_up_after.min(granted.gives_up_after), Role::Active(route)),
        ))
    }

    /// Takes a connection whose peer asks for a session. Returns the session if it begins, or `None` if the connection belongs to one
    /// that exists.
    ///
    /// # Errors
    /// If the connection ends, or the peer asks for something that is refused.
    ///
    /// # Cancel safety
    /// Dropping the future ends the connection.
    pub(super) async fn accept(
        engine: StreamEngine,
        config: &StreamConfig,
        lost: &Arc<LostSessions>,
    ) -> io::Result<Option<Arc<Self>>> {
        let bytes = timeout(EXCHANGE, engine.read_first()).await??;
        let ask = Greeting::decode(&bytes).ok_or(invalid("the peer asks for no session"))?;
        match ask.kind {
            Kind::Open => Self::grant(engine, config, ask, lost).map(Some),
            Kind::Resume | Kind::Over => resume(engine, &ask, &bytes).await.map(|()| None),
            _ => Err(invalid("the peer asks for no session")),
        }
    }

    fn grant(
        engine: StreamEngine,
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
        Ok(Self::begin(engine, id, secret, settings, [window, ask.window], |gives_up_after, session| {
            let role = Role::Passive { lost, most, _registered: Registered::new(id, session) };
            (gives_up_after.min(ask.gives_up_after), role)
        }))
    }

    /// Creates the session, and spawns its task.
    fn begin(
        engine: StreamEngine,
        id: Id,
        secret: Secret,
        settings: SessionConfig,
        [window, peers]: [u32; 2],
        role: impl FnOnce(Duration, &Weak<Self>) -> (Duration, Role),
    ) -> Arc<Self> {
        let wake = Arc::new(Notify::new());
        engine.adopt(Box::new(Journal::new(Counts::new(window.into(), peers.into()), wake.clone())));
        let engine = Arc::new(engine);
        let session = Arc::new_cyclic(|session| {
            let (gives_up_after, role) = role(settings.gives_up_after, session);
            let paths = watch::Sender::new(SessionPath::first(&engine));
            let present = Mutex::new(Present { engine, close: None, is_over: false, is_concluded: false });
            Self { id, secret, role, gives_up_after, window, present, epoch: Mutex::new(0), wake, paths }
        });
        // Its engine was made in a runtime.
        if let Some(runtime) = session.engine().runtime.clone() {
            session.spawn(&runtime);
        }
        session
    }

    fn spawn(self: &Arc<Self>, runtime: &Handle) {
        let task = Task(self.clone());
        runtime.spawn(async move { task.0.run().await });
    }
}

/// The task of a session. When it ends, also with its runtime, so does the session.
struct Task(Arc<Session>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// Gives the connection to the session that the peer asks for, or takes what the peer says of its end.
///
/// # Errors
/// The session cannot go on, or has ended.
async fn resume(engine: StreamEngine, ask: &Greeting, bytes: &GreetingBytes) -> io::Result<()> {
    let found = registry::find(ask.id).filter(|found| Greeting::is_proven(bytes, found.secret()));
    let outcome = match &found {
        Some(Found::Live(session)) => session.take(engine, ask),
        Some(Found::Ended(_)) => Err((engine, Kind::Over)),
        None => Err((engine, Kind::Unknown)),
    };
    let Err((engine, kind)) = outcome else { return Ok(()) };
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

/// One connection after the other.
impl Session {
    pub(super) fn engine(&self) -> Arc<StreamEngine> {
        self.present.lock().engine.clone()
    }

    /// Notes how the program closes the stream, for the connections to come.
    pub(super) fn close(&self, close: Close) {
        let mut present = self.present.lock();
        present.close = present.close.max(Some(close));
    }

    /// Ends the session: no other connection follows the present one.
    pub(super) fn finish(&self) {
        if matches!(self.role, Role::Passive { .. })
            && !self.is_over()
            && self.engine().has_peer_disconnected()
        {
            registry::remember(self.id, self.secret);
        }
        self.end_with(StreamBroken::Connection);
    }

    /// Tells the peer that the stream has ended for both, if its connection was lost before the peer could know. The active end has
    /// to: the peer cannot connect.
    pub(super) async fn conclude(&self) {
        use DisconnectReason::{DeviceRemoved, Lost};
        let (engine, Role::Active(route)) = (self.engine(), &self.role) else { return };
        let lost = matches!(engine.connection.ended(), Some(Lost { .. } | DeviceRemoved));
        if !lost
            || !engine.has_peer_disconnected()
            || std::mem::replace(&mut self.present.lock().is_concluded, true)
        {
            return;
        }
        let attempts = async {
            let mut pauses = Pauses::new();
            while let Err(error) = self.say_over(route).await {
                debug!(%error, "the peer does not know of the end of the stream");
                pauses.next(&engine).await;
            }
        };
        let _ = timeout(self.gives_up_after, attempts).await;
    }

    async fn say_over(&self, route: &Route) -> Result<(), StreamError> {
        let engine = route.connect().await?;
        let epoch = self.next_epoch();
        let over = Greeting { id: self.id, epoch, ..greeting(Kind::Over, self.window, self.gives_up_after) };
        if engine.write_first(&over.to_bytes(&self.secret)).is_ok() {
            // Whatever the answer is, the peer does not wait any longer.
            let _ = timeout(EXCHANGE, engine.read_first::<{ size_of::<GreetingBytes>() }>()).await;
        }
        engine.abort();
        Ok(())
    }

    fn next_epoch(&self) -> u64 {
        let mut epoch = self.epoch.lock();
        *epoch += 1;
        *epoch
    }

    fn end_with(&self, reason: impl FnOnce(DisconnectReason) -> StreamBroken) {
        let mut present = self.present.lock();
        let was_over = std::mem::replace(&mut present.is_over, true);
        let engine = present.engine.clone();
        drop(present);
        if !was_over {
            engine.surrender(reason);
            self.paths.send_modify(|path| path.is_over = true);
            self.wake.notify_one();
        }
    }

    /// Returns for how long the stream has had no connection.
    fn lost_for(&self) -> Duration {
        self.paths.borrow().lost_for()
    }

    fn is_over(&self) -> bool {
        self.present.lock().is_over
    }

    /// Resolves when the session has ended.
    pub(super) async fn ended(&self) {
        // The sender is in the session.
        let _ = self.paths.subscribe().wait_for(|path| path.is_over).await;
    }

    /// Takes the connection of a peer that has proved that it is that of the session. Other connections wait meanwhile.
    fn take(&self, engine: StreamEngine, ask: &Greeting) -> Result<(), (StreamEngine, Kind)> {
        let mut epoch = self.epoch.lock();
        if ask.epoch <= *epoch || matches!(self.role, Role::Active(_)) {
            return Err((engine, Kind::Refused));
        }
        let before = self.engine();
        if ask.kind == Kind::Over {
            *epoch = ask.epoch;
            before.conclude();
            return Err((engine, Kind::Over));
        }
        if before.has_peer_disconnected() {
            return Err((engine, Kind::Over));
        }
        let Some(mut journal) = before.fence() else { return Err((engine, Kind::Unknown)) };
        let saved = journal.progress();
        if journal.resume(ask.read).is_err() {
            before.restore(journal);
            return Err((engine, Kind::Refused));
        }
        *epoch = ask.epoch;
        let answer = greeting(Kind::Granted, self.window, self.gives_up_after);
        let answer = Greeting { id: self.id, epoch: ask.epoch, read: saved, ..answer };
        // If the connection has ended, the next one follows.
        let _ = engine.write_first(&answer.to_bytes(&self.secret));
        self.go_on(engine, &before, journal);
        Ok(())
    }

    /// Goes on over another connection, whose peer has agreed.
    fn go_on(&self, engine: StreamEngine, before: &StreamEngine, journal: Box<Journal>) {
        let engine = Arc::new(engine);
        engine.adopt(journal);
        let mut present = self.present.lock();
        present.engine = engine.clone();
        let (close, is_over) = (present.close, present.is_over);
        drop(present);
        match close {
            Some(Close::Shutdown) => drop(engine.shutdown()),
            Some(Close::Disconnect) => engine.disconnect(),
            None => {}
        }
        if is_over {
            engine.surrender(StreamBroken::Connection);
            engine.abort();
        }
        before.leave();
        count_session("resumed");
        info!(connection = %before.connection.id(), to = %engine.connection.id(), "stream goes on over another connection");
        self.paths.send_modify(|path| path.go_on(&engine));
        self.wake.notify_one();
    }
}

/// The task of a session.
impl Session {
    async fn run(self: &Arc<Self>) {
        loop {
            let engine = self.engine();
            match self.wait(&engine).await {
                Ended::Lost => {}
                Ended::Moved => continue,
                Ended::Over => return self.conclude().await,
            }
            let limit = deadline(self.gives_up_after);
            debug!(connection = %engine.connection.id(), "stream has lost its connection");
            self.paths.send_modify(SessionPath::lose);
            let outcome = match &self.role {
                Role::Active(route) => timeout_at(limit, self.connect_again(route)).await,
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
                Ok(Ok(())) if self.is_over() => return,
                Ok(Ok(())) => {}
                Ok(Err(Failure::Over)) => return self.engine().conclude(),
                Ok(Err(_)) => return self.end_with(|reason| StreamBroken::SessionUnknown { reason }),
                Err(_elapsed) => return self.end_with(|reason| StreamBroken::NoPath { after, reason }),
            }
        }
    }

    /// Waits for the end of a connection, and does meanwhile what the program does not wait for.
    async fn wait(&self, engine: &StreamEngine) -> Ended {
        let mut tell_at = None;
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
                    tell_at = tell_at.or_else(|| Some(Instant::now() + TELL_READ));
                }
                () = wait_until(tell_at) => {
                    tell_at = None;
                    engine.tell_read();
                }
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
            let mut pauses = Pauses::new();
            loop {
                match route.connect().await {
                    Ok(engine) => match self.ask(engine).await {
                        Err(Failure::Attempt) => {}
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

    /// Asks the peer to go on over this connection.
    async fn ask(&self, engine: StreamEngine) -> Result<(), Failure> {
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
            Ok(()) => self.go_on(engine, &before, journal),
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
}

/// The pauses between attempts to connect.
struct Pauses(Duration);

impl Pauses {
    fn new() -> Self {
        Self(PAUSES[0])
    }

    /// Waits for half of the pause and a part of the other that is drawn: ends that have lost the same path do not come back all at
    /// once.
    async fn next(&mut self, engine: &StreamEngine) {
        let drawn = engine.adapter.random().unwrap_or_default() % 1024;
        let part = u32::try_from(drawn).unwrap_or_default();
        sleep(self.0 / 2 + self.0 * part / 2048).await;
        self.0 = (2 * self.0).min(PAUSES[1]);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("path", &*self.paths.borrow()).finish_non_exhaustive()
    }
}
