//! Sessions: streams that go on over another connection when theirs is lost.
//!
//! A [`Session`] has one engine after the other. Its task waits for the end of the connection. At the active end it connects again
//! ([`Route`]); at the passive end a listener of the process brings the next connection. Both ends then exchange
//! [`Greeting`]s, and the [`Journal`] goes from the old engine to the new one. Between [`StreamEngine::fence`] and that the program
//! neither reads nor writes, so the counts in the messages are still true when the peer takes them.

mod journal;
mod paths;
mod task;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tracing::{debug, info};

use super::engine::StreamEngine;
use crate::error::{ConnectError, StreamBroken, StreamError};
#[cfg(feature = "inspect")]
use crate::inspect::{self, Inspect, Place, SessionReport, Snapshot};
use crate::metrics::count_session;
use crate::proto::session::{Greeting, Id, Kind, Secret};
use crate::sync::Mutex;
use crate::types::DisconnectReason;
use task::{Pauses, greeting};

pub(super) use journal::{Close, Journal};
pub use paths::{PathChanges, SessionPath};
pub(super) use paths::{Rank, Route};

/// The time for the message that the stream was given up.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The pauses between the attempts to connect for the sake of the end of a stream. The peer that they are for may be gone.
const LAST_ATTEMPTS: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(16)];

/// The number of attempts in a row at which nothing listens at any address of the peer, and after which no other is made.
const REFUSALS: u32 = 8;

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
    /// Its place among what snapshots look at.
    #[cfg(feature = "inspect")]
    _inspected: Place,
}

/// The present state of a session.
struct Present {
    engine: Arc<StreamEngine>,
    /// How the program has closed the stream.
    close: Option<Close>,
    /// The stream has ended, or has failed: no other connection follows.
    is_over: bool,
    /// The peer was sent a message that the stream has ended.
    is_concluded: bool,
    /// The rank of the path of the active end.
    rank: Rank,
}

enum Role {
    Active(Box<Route>),
    Passive { lost: Arc<LostSessions>, most: usize, _registered: Registered },
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
        let engine = self.engine();
        // The peer may not know it: its connection can be lost with the confirmation of its end.
        let ended_well = || {
            let has_all = engine.has_confirmation() && !self.is_abandoned();
            has_all || engine.has_peer_disconnected()
        };
        if matches!(self.role, Role::Passive { .. }) && !self.is_over() && ended_well() {
            remember((engine.adapter.network(), self.id), self.secret);
        }
        self.end_with(StreamBroken::Connection);
    }

    /// Gives the stream up, and ends the connection. The peer gets a message about it, for which the task waits a moment.
    pub(super) fn abandon(&self) {
        let had_ended = self.is_over();
        self.close(Close::Abandon);
        // If the stream moves from now on, that abandons the next engine, too.
        let engine = self.engine();
        if had_ended || engine.runtime.is_none() {
            return engine.abort();
        }
        engine.abandon();
        self.finish();
    }

    /// Sends the peer what it does not know about the end of the stream.
    pub(super) async fn conclude(&self) {
        if let Some(kind) = self.last_words().await {
            self.announce(kind).await;
        }
    }

    /// Sends the peer what it may not know about the end of a stream that the program has dropped: the peer has not answered the
    /// disconnect. A peer that has received everything may still wait for the confirmation of its own end.
    pub(super) async fn conclude_unanswered(&self, has_settled: bool) {
        let engine = self.engine();
        if engine.has_confirmation() || engine.has_peer_disconnected() {
            self.announce(Kind::Over).await;
        } else if !has_settled {
            self.announce(Kind::Abandoned).await;
        }
    }

    /// Connects for a message about the end of the stream. The active end has to: the peer cannot.
    async fn announce(&self, kind: Kind) {
        let (engine, Role::Active(route)) = (self.engine(), &self.role) else { return };
        if std::mem::replace(&mut self.present.lock().is_concluded, true) {
            return;
        }
        let attempts = async {
            let mut pauses = Pauses::new(LAST_ATTEMPTS);
            let mut refusals = 0;
            while let Err(error) = self.say(kind, route).await {
                debug!(%error, "the peer does not know of the end of the stream");
                refusals = if is_refused(&error) { refusals + 1 } else { 0 };
                if refusals == REFUSALS {
                    break;
                }
                pauses.next(&engine).await;
            }
        };
        let _ = timeout(self.gives_up_after, attempts).await;
    }

    /// Returns what the peer does not know about the end of the stream.
    async fn last_words(&self) -> Option<Kind> {
        use DisconnectReason::{DeviceRemoved, Lost};
        let engine = self.engine();
        if self.is_abandoned() {
            let confirmed = timeout(LAST_WORDS, poll_fn(|cx| engine.poll_settled(cx))).await;
            engine.abort();
            return (!matches!(confirmed, Ok(Ok(())))).then_some(Kind::Abandoned);
        }
        let lost = matches!(engine.connection.ended(), Some(Lost { .. } | DeviceRemoved));
        (lost && engine.has_peer_disconnected()).then_some(Kind::Over)
    }

    fn is_abandoned(&self) -> bool {
        self.present.lock().close == Some(Close::Abandon)
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

    /// Takes the connection of the peer, whose proof is right. Until it returns, other connections of the session wait.
    fn take(&self, engine: &Arc<StreamEngine>, ask: &Greeting) -> Result<(), Kind> {
        let mut epoch = self.epoch.lock();
        if ask.epoch <= *epoch || matches!(self.role, Role::Active(_)) {
            return Err(Kind::Refused);
        }
        let before = self.engine();
        if matches!(ask.kind, Kind::Over | Kind::Abandoned) {
            *epoch = ask.epoch;
            if ask.kind == Kind::Over {
                before.conclude();
            } else {
                before.end_abandoned();
                self.end_with(|reason| StreamBroken::SessionUnknown { reason });
            }
            return Err(Kind::Over);
        }
        let Some(mut journal) = before.fence() else {
            // The fence processes what has arrived, so the end of the stream is known only behind it.
            let kind = if before.has_peer_disconnected() { Kind::Over } else { Kind::Unknown };
            return Err(kind);
        };
        let saved = journal.progress();
        if journal.resume(ask.read).is_err() {
            before.restore(journal);
            return Err(Kind::Refused);
        }
        *epoch = ask.epoch;
        let answer = greeting(Kind::Granted, self.window, self.gives_up_after);
        let answer = Greeting { id: self.id, epoch: ask.epoch, read: saved, ..answer };
        // If the connection has ended, the next one follows.
        let _ = engine.write_first(&answer.to_bytes(&self.secret));
        self.go_on(engine.clone(), Rank::BEST, &before, journal);
        Ok(())
    }

    /// Goes on over another connection, whose peer has agreed.
    fn go_on(&self, engine: Arc<StreamEngine>, rank: Rank, before: &StreamEngine, journal: Box<Journal>) {
        engine.adopt(journal);
        let mut present = self.present.lock();
        (present.engine, present.rank) = (engine.clone(), rank);
        let (close, is_over) = (present.close, present.is_over);
        drop(present);
        match close {
            Some(Close::Shutdown) => drop(engine.shutdown()),
            Some(Close::Disconnect) => engine.disconnect(),
            Some(Close::Abandon) => engine.abandon(),
            None => {}
        }
        if is_over {
            engine.surrender(StreamBroken::Connection);
            // Or the task has to wait for the last message.
            if close != Some(Close::Abandon) {
                engine.abort();
            }
        }
        before.leave();
        count_session("resumed");
        info!(connection = %before.connection.id(), to = %engine.connection.id(), "stream goes on over another connection");
        self.paths.send_modify(|path| path.go_on(&engine));
        self.wake.notify_one();
    }
}

/// Returns whether nothing listens at the addresses of the peer.
fn is_refused(error: &StreamError) -> bool {
    match error {
        StreamError::Connect(error) => matches!(error, ConnectError::Refused { .. }),
        StreamError::Attempts(all) => all.iter().all(|(_, error)| is_refused(error)),
        _ => false,
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("path", &*self.paths.borrow()).finish_non_exhaustive()
    }
}

/// The sessions that have ended well and are remembered, for peers that have lost the connection with the last message.
const REMEMBERED: usize = 1024;

/// The network of a session, and its id: simulated networks of the same seed have the same ids.
type Key = (u64, Id);

static SESSIONS: LazyLock<Mutex<Sessions>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Sessions {
    live: HashMap<Key, Weak<Session>>,
    ended: VecDeque<(Key, Secret)>,
}

/// A session that a peer asks for.
enum Found {
    Live(Arc<Session>),
    /// It has ended, with all that the peer has sent.
    Ended(Secret),
}

impl Found {
    fn secret(&self) -> &Secret {
        match self {
            Self::Live(session) => &session.secret,
            Self::Ended(secret) => secret,
        }
    }
}

/// Returns the session with this key.
fn find(key: Key) -> Option<Found> {
    let sessions = SESSIONS.lock();
    let live = sessions.live.get(&key).and_then(Weak::upgrade).map(Found::Live);
    let ended =
        || sessions.ended.iter().find(|(known, _)| *known == key).map(|(_, secret)| Found::Ended(*secret));
    live.or_else(ended)
}

/// Remembers that a session has ended well.
fn remember(key: Key, secret: Secret) {
    let mut sessions = SESSIONS.lock();
    if sessions.ended.len() == REMEMBERED {
        sessions.ended.pop_front();
    }
    sessions.ended.push_back((key, secret));
}

/// The place of a session among those that peers can resume, which ends with this value.
#[derive(Debug)]
struct Registered(Key);

impl Registered {
    fn new(key: Key, session: &Weak<Session>) -> Self {
        SESSIONS.lock().live.insert(key, session.clone());
        Self(key)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        SESSIONS.lock().live.remove(&self.0);
    }
}

/// The sessions of a listener that have no connection, the oldest first.
#[derive(Debug, Default)]
pub(in crate::io) struct LostSessions(Mutex<VecDeque<Weak<Session>>>);

impl LostSessions {
    /// Adds a session. Returns the oldest if there are more than `most`.
    fn add(&self, session: &Arc<Session>, most: usize) -> Option<Arc<Session>> {
        let mut lost = self.0.lock();
        lost.retain(|other| other.strong_count() > 0);
        lost.push_back(Arc::downgrade(session));
        if lost.len() > most { lost.pop_front()?.upgrade() } else { None }
    }

    /// Removes a session, which has a connection again, or has ended.
    fn remove(&self, session: &Session) {
        self.0.lock().retain(|other| !std::ptr::eq(other.as_ptr(), session));
    }
}

/// Lets snapshots see a session, until the returned value is dropped.
#[cfg(feature = "inspect")]
fn register(session: &Weak<Session>) -> Place {
    let object: Weak<dyn Inspect> = session.clone();
    inspect::register(object)
}

#[cfg(feature = "inspect")]
impl Inspect for Session {
    fn inspect(&self, snapshot: &mut Snapshot) {
        snapshot.sessions.push(self.report());
    }
}

#[cfg(feature = "inspect")]
impl Session {
    /// Returns its report.
    pub(in crate::io) fn report(&self) -> SessionReport {
        let mut report = SessionReport { gives_up_after: self.gives_up_after, ..SessionReport::default() };
        report.id = self.id.short();
        report.role = if matches!(self.role, Role::Active(_)) { "active".into() } else { "passive".into() };
        report.is_over = self.is_over();
        let path = self.paths.borrow();
        report.connection = path.connection.id().0;
        report.lost = path.is_lost.then(|| path.lost_for());
        report.resumed = path.resumes;
        drop(path);
        report
    }
}
