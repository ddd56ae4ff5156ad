//! The calls on a connector: their answers, and guards of those whose futures may be dropped, which undo their part.

use std::task::{Context, Poll};

use super::{AfterStep, Answer, ConnectorDriver, ConnectorState};
use crate::proto::connector::{Input, Op};
use crate::status::Status;
use crate::sync::{WaitKey, WaitSet, Waiter};

/// The answers to calls, and the tasks that wait for them.
#[derive(Default)]
pub(super) struct Answers {
    /// The answer to Connect, CompleteConnect, Accept or Disconnect. One place suffices: the machine accepts none of them before the
    /// one ahead of it is answered, and the answer is collected before the handle for the next call exists.
    pub(super) call: Waiter<Answer>,
    pub(super) notify: WaitSet<Status>,
}

impl Answers {
    pub(super) fn of(&mut self, op: Op) -> Option<&mut Waiter<Answer>> {
        match op {
            Op::Connect | Op::CompleteConnect | Op::Accept | Op::Disconnect => Some(&mut self.call),
            // Every waiter has an answer of its own.
            Op::NotifyDisconnect => None,
        }
    }
}

/// A place in a list of futures that wait at a connector.
pub(crate) struct Waiting<'a, D: ConnectorDriver, T: Copy> {
    connector: &'a D,
    list: fn(&mut ConnectorState) -> &mut WaitSet<T>,
    key: WaitKey,
}

/// A call of Connect that waits for its queue pair, and that a cancel ends.
pub(crate) type ConnectWait<'a, D> = Waiting<'a, D, ()>;

impl<'a, D: ConnectorDriver, T: Copy> Waiting<'a, D, T> {
    pub(super) fn new(connector: &'a D, list: fn(&mut ConnectorState) -> &mut WaitSet<T>) -> Self {
        let key = list(connector.lock().as_mut()).register(());
        Self { connector, list, key }
    }

    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<T> {
        let mut state = self.connector.lock();
        let (polled, replaced) = (self.list)(state.as_mut()).poll(self.key, cx);
        drop(state);
        drop(replaced);
        polled
    }

    /// Returns whether the wait has ended, for a step that begins behind it.
    pub(super) fn is_over(&self, state: &mut ConnectorState) -> bool {
        (self.list)(state).is_notified(self.key)
    }
}

impl<D: ConnectorDriver, T: Copy> Drop for Waiting<'_, D, T> {
    fn drop(&mut self) {
        let waiter = (self.list)(self.connector.lock().as_mut()).remove(self.key);
        drop(waiter);
    }
}

/// A call of Connect, from its acceptance until it returns.
///
/// No other call of Connect is accepted as long as it lives: the answer, its cause and its data are stored beside the machine, and belong
/// to this call even when its attempt has failed and the machine would accept another. A call that is dropped before it has
/// returned cancels its attempt, and with it a connection that the peer has accepted; an attempt that has failed stays as it is.
pub(crate) struct ConnectCall<'a, D: ConnectorDriver> {
    connector: &'a D,
    returned: bool,
}

impl<'a, D: ConnectorDriver> ConnectCall<'a, D> {
    /// Guards a call that has begun.
    pub(crate) fn new(connector: &'a D) -> Self {
        Self { connector, returned: false }
    }

    /// Ends a call that has collected its answer and all that belongs to it.
    pub(crate) fn returned(mut self) {
        self.returned = true;
    }
}

impl<D: ConnectorDriver> Drop for ConnectCall<'_, D> {
    fn drop(&mut self) {
        if self.returned {
            self.connector.lock().as_mut().connect_called = false;
            return;
        }
        // Under one lock, so that the input cannot meet the attempt of another call.
        self.connector.step(AfterStep::run, |state, after| {
            state.as_mut().connect_called = false;
            let _ = self.connector.advance(state, Input::Cancel, after);
        });
    }
}

/// A guard that releases a connector if the future of a call that owns the connection is dropped early.
pub(crate) struct ReleaseGuard<'a, D: ConnectorDriver> {
    connector: Option<&'a D>,
}

impl<'a, D: ConnectorDriver> ReleaseGuard<'a, D> {
    pub(crate) fn new(connector: &'a D) -> Self {
        Self { connector: Some(connector) }
    }

    /// Disarms the guard after the call has been answered.
    pub(crate) fn disarm(mut self) {
        self.connector = None;
    }
}

impl<D: ConnectorDriver> Drop for ReleaseGuard<'_, D> {
    fn drop(&mut self) {
        if let Some(connector) = self.connector {
            connector.release();
        }
    }
}
