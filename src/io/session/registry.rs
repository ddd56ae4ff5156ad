//! The sessions of the passive ends of a process, by their ids.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Weak};

use super::Session;
use crate::proto::session::{Id, Secret};
use crate::sync::Mutex;

/// The sessions that have ended well and are remembered, for peers that have lost the connection with the last message.
const REMEMBERED: usize = 1024;

/// The network of a session, and its id: simulated networks of the same seed have the same ids.
pub(super) type Key = (u64, Id);

static SESSIONS: LazyLock<Mutex<Sessions>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Sessions {
    live: HashMap<Key, Weak<Session>>,
    ended: VecDeque<(Key, Secret)>,
}

/// A session that a peer asks for.
pub(super) enum Found {
    Live(Arc<Session>),
    /// It has ended, with all that the peer has sent.
    Ended(Secret),
}

impl Found {
    pub(super) fn secret(&self) -> &Secret {
        match self {
            Self::Live(session) => &session.secret,
            Self::Ended(secret) => secret,
        }
    }
}

/// Returns the session with this key.
pub(super) fn find(key: Key) -> Option<Found> {
    let sessions = SESSIONS.lock();
    let live = sessions.live.get(&key).and_then(Weak::upgrade).map(Found::Live);
    let ended =
        || sessions.ended.iter().find(|(known, _)| *known == key).map(|(_, secret)| Found::Ended(*secret));
    live.or_else(ended)
}

/// Remembers that a session has ended well.
pub(super) fn remember(key: Key, secret: Secret) {
    let mut sessions = SESSIONS.lock();
    if sessions.ended.len() == REMEMBERED {
        sessions.ended.pop_front();
    }
    sessions.ended.push_back((key, secret));
}

/// The place of a session among those that peers can resume, which ends with this value.
#[derive(Debug)]
pub(super) struct Registered(Key);

impl Registered {
    pub(super) fn new(key: Key, session: &Weak<Session>) -> Self {
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
    pub(super) fn add(&self, session: &Arc<Session>, most: usize) -> Option<Arc<Session>> {
        let mut lost = self.0.lock();
        lost.retain(|other| other.strong_count() > 0);
        lost.push_back(Arc::downgrade(session));
        if lost.len() > most { lost.pop_front()?.upgrade() } else { None }
    }

    /// Removes a session, which has a connection again, or has ended.
    pub(super) fn remove(&self, session: &Session) {
        self.0.lock().retain(|other| !std::ptr::eq(other.as_ptr(), session));
    }
}
