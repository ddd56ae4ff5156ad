//! The queue pairs of the device that a queue pair has had, one after the other.
//!
//! One is good for one attempt to connect, or for one connection. The newest is in use, or a job ends it; after that the next one is in
//! use, or none. Earlier ones may drain: the device may still complete their receives of a shared queue.

use std::sync::{Arc, Weak};

use tokio::sync::Notify;

use super::DeviceQp;
use super::device::Sequel;
use super::keepalive::Silence;
use super::post::Deferred;
use crate::inflight::{Payload, Ticket, WakeList};
use crate::status::Status;
use crate::sys::WcResult;
use crate::verbs::memory::Window;
use crate::verbs::receive_queue::Receives;
use crate::verbs::work_queue::WorkQueue;

/// The queue pairs of the device that a queue pair has had.
#[derive(Default)]
pub(super) struct Generations {
    newest: Newest,
    /// The one that is ending is among them as soon as its requests were taken from the owner.
    pub(super) draining: Vec<Draining>,
}

/// The last queue pair of the device that was made.
#[derive(Default)]
enum Newest {
    /// It has ended, and there is no other.
    #[default]
    Ended,
    Current(Current),
    Ending(Ending),
}

/// The queue pair of the device in use: requests are posted to it.
pub(super) struct Current {
    pub(super) qp: Arc<DeviceQp>,
    /// It has left the state in which it was made, for an attempt.
    pub(super) used: bool,
    /// See [`Ending::flushed`].
    pub(super) flushed: bool,
    /// It was given to a driver that connects it by itself, and may not have done so yet.
    pub(super) lent: bool,
    /// A message of the peer has come, before the connection manager has established the connection: the device is
    /// connected, and may send.
    pub(super) has_received: bool,
    /// The device has refused deferred requests: nothing can be posted behind them.
    pub(super) refused: bool,
    /// The number of reads and atomics that may be outstanding at once. It is set when the connection is made.
    pub(super) reads: u32,
    /// The number of last requests in a row that the device will not report.
    pub(super) unsignaled: u32,
    /// The state of the detection of a silent peer.
    pub(super) silence: Silence,
    /// Requests that wait for the doorbell: the last of the send queue.
    pub(super) deferred: Vec<Deferred>,
    /// The bytes of requests that are inline, until they have been posted: empty when none waits.
    pub(super) copies: Vec<u8>,
    /// The windows that were bound on it.
    pub(super) windows: Vec<Weak<Window>>,
}

/// The queue pair of the device that a job ends, as its owner needs it for what still completes.
pub(super) struct Ending {
    key: u32,
    receives: Option<Arc<Receives>>,
    last_receive: Arc<Notify>,
    /// The user has flushed the queue pair during the attempt, or before the next queue pair of the device was made: the end
    /// does not keep its receives.
    flushed: bool,
    silence: Silence,
    /// The job that follows the destruction, while a thread in a call holds the queue pair. It may also run once the
    /// device has completed every request.
    pub(super) sequel: Option<Arc<Sequel>>,
}

/// A queue pair of the device that has ended, and may still complete receives of a shared queue.
pub(super) struct Draining {
    pub(super) key: u32,
    /// `None` while it is being destroyed.
    pub(super) qp: Option<Arc<DeviceQp>>,
    pub(super) receives: Arc<Receives>,
    /// The requests of its send queue, and the status with which they finish.
    pub(super) requests: WorkQueue,
    pub(super) status: Status,
}

impl Generations {
    /// Returns the queue pair of the device in use.
    pub(super) fn current(&self) -> Option<&Current> {
        if let Newest::Current(current) = &self.newest { Some(current) } else { None }
    }

    pub(super) fn current_mut(&mut self) -> Option<&mut Current> {
        if let Newest::Current(current) = &mut self.newest { Some(current) } else { None }
    }

    /// Returns the one that a job ends.
    pub(super) fn ending(&self) -> Option<&Ending> {
        if let Newest::Ending(ending) = &self.newest { Some(ending) } else { None }
    }

    pub(super) fn ending_mut(&mut self) -> Option<&mut Ending> {
        if let Newest::Ending(ending) = &mut self.newest { Some(ending) } else { None }
    }

    /// Returns the key of the one whose requests are those of the owner's queues.
    pub(super) fn key(&self) -> Option<u32> {
        match &self.newest {
            Newest::Current(current) => Some(current.qp.key()),
            Newest::Ending(ending) => Some(ending.key),
            Newest::Ended => None,
        }
    }

    /// Uses this one from now on.
    pub(super) fn begin(&mut self, qp: Arc<DeviceQp>) {
        self.newest = Newest::Current(Current {
            qp,
            used: false,
            flushed: false,
            lent: false,
            has_received: false,
            refused: false,
            reads: 0,
            unsignaled: 0,
            silence: Silence::default(),
            deferred: Vec::new(),
            copies: Vec::new(),
            windows: Vec::new(),
        });
    }

    /// Takes the one in use, for the calls that end it. From then on nothing is posted to it, and its key is that of the
    /// one that is ending.
    pub(super) fn detach(&mut self) -> Option<Current> {
        let newest = std::mem::take(&mut self.newest);
        let Newest::Current(mut current) = newest else {
            self.newest = newest;
            return None;
        };
        self.newest = Newest::Ending(Ending {
            key: current.qp.key(),
            receives: current.qp.receives.clone(),
            last_receive: current.qp.last_receive.clone(),
            flushed: current.flushed,
            silence: std::mem::take(&mut current.silence),
            sequel: None,
        });
        Some(current)
    }

    /// Records the end of the one that was ending. Returns whether it was flushed.
    pub(super) fn settle(&mut self) -> bool {
        let Newest::Ending(Ending { flushed, .. }) = self.newest else { return false };
        self.newest = Newest::Ended;
        flushed
    }

    /// Records that the user has flushed the queue pair: the end of the newest one does not keep its receives.
    pub(super) fn flush(&mut self) {
        match &mut self.newest {
            Newest::Current(Current { flushed, .. }) | Newest::Ending(Ending { flushed, .. }) => {
                *flushed = true
            }
            Newest::Ended => {}
        }
    }

    /// Returns the silence of the peer of the newest one.
    pub(super) fn silence(&mut self) -> Option<&mut Silence> {
        match &mut self.newest {
            Newest::Current(Current { silence, .. }) | Newest::Ending(Ending { silence, .. }) => {
                Some(silence)
            }
            Newest::Ended => None,
        }
    }

    /// Takes the receive at this place of the shared queue, which the newest one has completed.
    pub(super) fn take_shared(&self, place: u32) -> Option<(Ticket, Payload)> {
        let receives = match &self.newest {
            Newest::Current(current) => current.qp.receives.as_ref(),
            Newest::Ending(ending) => ending.receives.as_ref(),
            Newest::Ended => None,
        };
        receives.and_then(|receives| receives.take(place))
    }

    /// Returns the one with this key that drains.
    pub(super) fn draining(&mut self, key: u32) -> Option<&mut Draining> {
        self.draining.iter_mut().find(|draining| draining.key == key)
    }

    /// Removes the one with this key that drains, which is destroyed.
    pub(super) fn drained(&mut self, key: u32) -> Option<Draining> {
        let place = self.draining.iter().position(|draining| draining.key == key)?;
        Some(self.draining.swap_remove(place))
    }

    /// Ends the wait for the last receive of the one with this key, which takes no further receive of a shared queue. If
    /// it is in use, it has failed: when it ends, there is nothing to wait for.
    pub(super) fn takes_no_receive(&self, key: u32) {
        match &self.newest {
            Newest::Current(current) if current.qp.key() == key => current.qp.last_receive.notify_one(),
            Newest::Ending(ending) if ending.key == key => ending.last_receive.notify_one(),
            _ => {}
        }
        self.draining.iter().filter(|draining| draining.key == key).for_each(Draining::notify);
    }

    /// Ends the waits for the last receives.
    pub(super) fn stop_waiting(&self) {
        self.draining.iter().for_each(Draining::notify);
    }
}

impl Current {
    /// Adds a window that was bound on it, without those that are gone.
    pub(super) fn add_window(&mut self, window: &Arc<Window>) {
        self.windows.retain(|other| other.strong_count() > 0);
        if !self.windows.iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(window))) {
            self.windows.push(Arc::downgrade(window));
        }
    }
}

impl Draining {
    /// Finishes the requests up to one that the device has completed: their memory is free.
    pub(super) fn complete(&mut self, sequence: u32, result: WcResult, wakes: &mut WakeList) {
        self.requests.finished(sequence, result);
        while let Some((outstanding, _)) = self.requests.pop() {
            let (ticket, completed) = outstanding.ended(self.status, true, wakes);
            self.requests.sink.complete(ticket, completed, wakes);
        }
    }

    /// Ends the wait for the last receive: no receive is to come, or the device will not report it.
    fn notify(&self) {
        if let Some(qp) = &self.qp {
            qp.last_receive.notify_one();
        }
    }
}
