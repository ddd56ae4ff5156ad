//! Completion queues that the program polls: the connections whose sockets a poll reads and writes.
//!
//! A connection has a task that waits for its socket. A program that polls a queue in a loop may leave no
//! thread to that task, or to the runtime that would wake it. So the second poll in a row that finds the
//! queue empty polls the sockets itself. A program that waits when the queue is empty leaves the thread to
//! the task: an empty poll before a wait does not touch the sockets. Of the polls that find something, every
//! 32nd polls the sockets.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use smallvec::SmallVec;

use super::connection::ConnectionShared;
use crate::sync::Mutex;

/// The number of sockets that one poll reads and writes at most. Each costs a system call or two.
const SOCKETS: usize = 16;
/// A poll that finds something also polls the sockets once in this many polls.
const POLLS: u32 = 32;

/// The connections that complete in a queue.
#[derive(Default)]
pub(crate) struct CompletionQueue {
    members: Mutex<Members>,
    /// The number of polls that have found something since the sockets were polled or a wait began; [`POLLS`]
    /// if the last poll has found nothing and no wait has begun since. Only a hint: it guards nothing.
    polls: AtomicU32,
}

#[derive(Default)]
struct Members {
    connections: Vec<Member>,
    /// The place at which the next poll begins.
    next: usize,
}

struct Member {
    connection: Weak<ConnectionShared>,
    /// The index in the list. Written with the lock.
    place: Arc<AtomicUsize>,
}

impl CompletionQueue {
    /// Polls the sockets of a connection that has been established, until what this returns is dropped.
    pub(super) fn add(self: &Arc<Self>, connection: &Arc<ConnectionShared>) -> Membership {
        let connections = &mut self.members.lock().connections;
        let place = Arc::new(AtomicUsize::new(connections.len()));
        connections.push(Member { connection: Arc::downgrade(connection), place: place.clone() });
        Membership { queue: self.clone(), place }
    }

    /// Counts a poll of the program, which has found nothing if `is_empty`. The second poll in a row that
    /// finds nothing makes [`progress`](Self::progress), and so does every [`POLLS`]th of those that find
    /// something: a program that posts a request for each that has completed may find something at each poll.
    pub(crate) fn poll(&self, is_empty: bool, is_satisfied: impl Fn() -> bool) {
        let before = self.polls.load(Ordering::Relaxed);
        let (after, is_due) = match (before, is_empty) {
            (before, true) => (POLLS, before == POLLS),
            (POLLS, false) => (1, false),
            (before, false) if before + 1 == POLLS => (0, true),
            (before, false) => (before + 1, false),
        };
        if before != after {
            self.polls.store(after, Ordering::Relaxed);
        }
        if is_due {
            self.progress(is_satisfied);
        }
    }

    /// Begins to wait for completions: the next poll that finds nothing leaves the sockets to their tasks.
    pub(crate) fn begin_wait(&self) {
        self.polls.store(0, Ordering::Relaxed);
    }

    /// Polls the sockets of the next few connections, until `is_satisfied`. The connection behind the last of
    /// them is the first of the next call.
    pub(crate) fn progress(&self, is_satisfied: impl Fn() -> bool) {
        let connections = self.next_connections();
        for (place, connection) in &connections {
            connection.poll_now();
            if is_satisfied() {
                self.members.lock().next = place + 1;
                break;
            }
        }
    }

    /// Returns the next connections, with their places. The caller may drop them, because it holds no lock.
    fn next_connections(&self) -> SmallVec<[(usize, Arc<ConnectionShared>); SOCKETS]> {
        let mut members = self.members.lock();
        let places = members.connections.len();
        let first = members.next.min(places);
        let mut found = SmallVec::new();
        for place in (first..places).chain(0..first) {
            if found.len() == SOCKETS {
                members.next = place;
                break;
            }
            let connection = members.connections[place].connection.upgrade();
            found.extend(connection.map(|connection| (place, connection)));
        }
        found
    }
}

/// Takes a connection off the queue when it is dropped.
pub(super) struct Membership {
    queue: Arc<CompletionQueue>,
    place: Arc<AtomicUsize>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut members = self.queue.members.lock();
        let place = self.place.load(Ordering::Relaxed);
        let left = members.connections.swap_remove(place);
        if let Some(moved) = members.connections.get(place) {
            moved.place.store(place, Ordering::Relaxed);
        }
        drop(members);
        drop(left);
    }
}
