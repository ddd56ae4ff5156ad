//! The calls on a connector whose futures may be dropped: each is a guard that undoes its part.

use std::task::{Context, Poll};

use super::ConnectorDriver;
use crate::proto::connector::Input;
use crate::status::Status;
use crate::sync::WaitKey;

/// A place in the list of futures that wait for the end of the connection.
pub(super) struct Watch<'a, D: ConnectorDriver> {
    connector: &'a D,
    key: WaitKey,
}

impl<'a, D: ConnectorDriver> Watch<'a, D> {
    /// Registers a future with the machine (NotifyDisconnect).
    pub(super) fn new(connector: &'a D) -> Result<Self, Status> {
        let key = connector.lock().as_mut().answers.notify.register(());
        let watch = Self { connector, key };
        connector.handle(Input::NotifyDisconnect).map(|()| watch)
    }

    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Status> {
        let mut state = self.connector.lock();
        let (polled, replaced) = state.as_mut().answers.notify.poll(self.key, cx);
        drop(state);
        drop(replaced);
        polled
    }
}

impl<D: ConnectorDriver> Drop for Watch<'_, D> {
    fn drop(&mut self) {
        let waiter = self.connector.lock().as_mut().answers.notify.remove(self.key);
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
    /// Guards the call that [`begin_connect`](super::ConnectorState::begin_connect) has begun.
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
        let canceled = !self.returned;
        // Under one lock, so that the input cannot meet the attempt of another call.
        let _ = self.connector.handle_if(|state| {
            state.as_mut().connect_called = false;
            canceled.then_some(Input::Cancel)
        });
    }
}

/// A call of Connect that waits for its queue pair, and that a cancel ends.
pub(crate) struct ConnectWait<'a, D: ConnectorDriver> {
    connector: &'a D,
    key: WaitKey,
}

impl<'a, D: ConnectorDriver> ConnectWait<'a, D> {
    pub(super) fn new(connector: &'a D) -> Self {
        let key = connector.lock().as_mut().waits.register(());
        Self { connector, key }
    }

    /// Polls for the cancel.
    pub(super) fn poll_canceled(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.connector.lock();
        let (polled, replaced) = state.as_mut().waits.poll(self.key, cx);
        drop(state);
        drop(replaced);
        polled
    }

    /// Returns whether a cancel has ended this wait, for the step that begins the connect.
    pub(crate) fn is_canceled(&self, state: &mut D::State) -> bool {
        state.as_mut().waits.is_notified(self.key)
    }
}

impl<D: ConnectorDriver> Drop for ConnectWait<'_, D> {
    fn drop(&mut self) {
        let waiter = self.connector.lock().as_mut().waits.remove(self.key);
        drop(waiter);
    }
}

/// A guard that feeds a connector one last input if the future of a call that owns the connection is dropped early.
pub(crate) struct OnDrop<'a, D: ConnectorDriver> {
    connector: Option<&'a D>,
    input: Input,
}

impl<'a, D: ConnectorDriver> OnDrop<'a, D> {
    pub(crate) fn new(connector: &'a D, input: Input) -> Self {
        Self { connector: Some(connector), input }
    }

    /// Disarms the guard after the call has been answered.
    pub(crate) fn disarm(mut self) {
        self.connector = None;
    }
}

impl<D: ConnectorDriver> Drop for OnDrop<'_, D> {
    fn drop(&mut self) {
        if let Some(connector) = self.connector.take() {
            let _ = connector.handle(self.input.clone());
        }
    }
}
