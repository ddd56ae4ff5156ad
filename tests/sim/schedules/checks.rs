//! The facts about each attempt to connect, and the results that they allow.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use tokio::time::Instant;
use tokio_rdma::error::{AcceptError, ConnectError, DisconnectError};
use tokio_rdma::{DisconnectReason, ReadLimits, Status};

use crate::tools::{Call, Kind, Side, must_end};

/// The read limits of an adapter.
const ADAPTER: ReadLimits = ReadLimits::new(128, 128);

/// The terms of one side: its private data, and the read limits that it asked for.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) data: Vec<u8>,
    pub(super) limits: ReadLimits,
}

/// An attempt to connect.
#[derive(Debug, Default)]
pub(super) struct Attempt {
    pub(super) request: Option<Terms>,
    pub(super) reply: Option<Terms>,
    /// The data of the reject of the passive side.
    pub(super) reject: Option<Vec<u8>>,
    /// The active side has completed.
    pub(super) completed: bool,
    /// The active side has the reply, and has said no.
    pub(super) declined: bool,
    /// A side has ended the attempt or the connection otherwise than in order.
    pub(super) abrupt: bool,
    /// The read limits of the connection, at each side that has one.
    pub(super) connected: [Option<ReadLimits>; 2],
}

impl Attempt {
    /// Whether the passive side can tell it from others.
    fn is_numbered(&self) -> bool {
        self.request.as_ref().and_then(|request| number_in(&request.data)).is_some()
    }
}

/// Everything that is known.
#[derive(Debug, Default)]
pub(super) struct Facts {
    attempts: RefCell<BTreeMap<u16, Attempt>>,
    /// There was a fault: of the path, or of a host.
    pub(super) faulty: Cell<bool>,
    /// An adapter of this side was removed.
    pub(super) removed: [Cell<bool>; 2],
    /// Something of this side was cancelled, or its queue pair was dropped.
    pub(super) canceled: [Cell<bool>; 2],
    /// The number of times that each call had each result.
    pub(super) results: RefCell<BTreeMap<(Call, String), u32>>,
}

/// The attempt that private data belongs to, if it has room for the number.
pub(super) fn number_in(data: &[u8]) -> Option<u16> {
    data.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

impl Facts {
    /// Waits for a call, which must end, and counts its result.
    pub(super) async fn call<T, E: Kind>(
        &self,
        call: Call,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let (outcome, name) = must_end(call, future, self).await;
        *self.results.borrow_mut().entry((call, name)).or_default() += 1;
        outcome
    }

    /// Changes what is known of an attempt.
    pub(super) fn of<R>(&self, number: u16, change: impl FnOnce(&mut Attempt) -> R) -> R {
        change(self.attempts.borrow_mut().entry(number).or_default())
    }

    /// A call is ended from outside only if somebody did that.
    fn check_ended(&self, side: Side, status: Status) {
        let place = side as usize;
        assert!(status != Status::DEVICE_REMOVED || self.removed[place].get(), "removed by nobody");
        assert!(status != Status::CANCELED || self.canceled[place].get(), "cancelled by nobody");
    }

    /// PD-01, NEG-04: the passive side sees what the active side has sent.
    pub(super) fn check_request(&self, data: &[u8], limits: ReadLimits) {
        let Some(number) = number_in(data) else { return };
        self.of(number, |attempt| {
            let sent = attempt.request.as_ref().expect("somebody asked");
            assert_eq!(sent.data, data, "PD-01");
            // Its inbound is the outbound of the other.
            let offer = sent.limits.capped_to(ADAPTER);
            assert_eq!((limits.inbound, limits.outbound), (offer.outbound, offer.inbound), "NEG-04");
        });
    }

    /// PD-02, NEG-01, NEG-02: the active side sees what the passive side has sent, and the limits that both come to.
    pub(super) fn check_reply(&self, number: u16, data: &[u8], limits: ReadLimits) {
        self.of(number, |attempt| {
            let Some(sent) = &attempt.reply else { return };
            assert_eq!(sent.data, data, "PD-02");
            let [ours, theirs] = [attempt.request.as_ref().expect("it has asked"), sent]
                .map(|it| it.limits.capped_to(ADAPTER));
            let expected =
                ReadLimits::new(ours.inbound.min(theirs.outbound), ours.outbound.min(theirs.inbound));
            assert_eq!(limits, expected, "NEG-01, NEG-02");
        });
    }

    /// A connect has failed so much later: for a reason.
    pub(super) fn check_connect(
        &self,
        number: u16,
        error: &ConnectError,
        begun: Instant,
        limit: Option<Duration>,
    ) {
        self.check_ended(Side::Active, error.status());
        let late = limit.is_some_and(|limit| begun.elapsed() >= limit);
        match error {
            ConnectError::Rejected { private_data, .. } => {
                let data = private_data.as_deref().unwrap_or_default();
                self.of(number, |attempt| {
                    // Without a number the passive side does not know which attempt it has rejected.
                    assert!(
                        !attempt.is_numbered() || attempt.reject.as_deref() == Some(data),
                        "PD-03: {data:?}"
                    );
                });
            }
            ConnectError::TimedOut { .. } => assert!(late || self.faulty.get(), "CM-12: before its time"),
            ConnectError::InvalidBufferSize { length: 253, .. } | ConnectError::Refused { .. } => {}
            ConnectError::QueuePairActive | ConnectError::Canceled | ConnectError::DeviceRemoved => {}
            // The interface is gone, and the adapter has not noticed.
            ConnectError::Bind(_) | ConnectError::NetworkUnreachable { .. } if self.removed[0].get() => {}
            // A connection of before has the port.
            ConnectError::AddressAlreadyExists { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    /// A complete has failed: because somebody left.
    pub(super) fn check_complete(&self, error: &ConnectError) {
        self.check_ended(Side::Active, error.status());
        let canceled = self.canceled[0].get();
        match error {
            ConnectError::Aborted { .. } | ConnectError::Canceled | ConnectError::DeviceRemoved => {}
            ConnectError::Invalid => assert!(canceled, "cancelled by nobody"),
            other => panic!("{other:?}"),
        }
    }

    /// An accept has failed: a peer that says no differs from one that vanishes (X1).
    pub(super) fn check_accept(&self, number: Option<u16>, error: &AcceptError) {
        self.check_ended(Side::Passive, error.status());
        let check = |check: &dyn Fn(&mut Attempt)| {
            if let Some(number) = number {
                self.of(number, check);
            }
        };
        match error {
            AcceptError::Refused { .. } => {
                // A cancel, or the drop of the queue pair, says no as well.
                let canceled = self.canceled[0].get();
                check(&|it| assert!(it.declined || canceled, "LS-15: refused by nobody"));
            }
            AcceptError::Aborted { .. } => {
                let faulty = self.faulty.get();
                check(&|it| assert!(faulty || !it.declined || it.abrupt, "LS-15: the peer has said no"));
            }
            AcceptError::InvalidBufferSize { length: 253, .. } => {}
            AcceptError::Canceled | AcceptError::DeviceRemoved => {}
            other => panic!("{other:?}"),
        }
    }

    /// A side is connected: the other one has completed, and both have the same limits.
    pub(super) fn check_connected(&self, number: u16, side: Side, limits: ReadLimits) {
        self.of(number, |attempt| {
            assert!(attempt.completed, "CM-09: nobody has completed");
            attempt.connected[side as usize] = Some(limits);
            if let [Some(active), Some(passive)] = attempt.connected {
                assert_eq!((active.inbound, active.outbound), (passive.outbound, passive.inbound), "NEG-03");
            }
        });
    }

    /// A connection is lost only by a fault, or if the peer has ended it otherwise than in order.
    fn check_loss(&self, number: u16, side: Side, loss: &dyn Debug) {
        // Without a number the passive side does not know which attempt it has given up.
        let abrupt = self.of(number, |attempt| attempt.abrupt || !attempt.is_numbered());
        let canceled = self.canceled[1 - side as usize].get();
        assert!(self.faulty.get() || abrupt || canceled, "lost for no reason: {loss:?}");
    }

    /// A connection has ended.
    pub(super) fn check_reason(&self, number: u16, side: Side, reason: &DisconnectReason) {
        match reason {
            DisconnectReason::Lost { .. } => self.check_loss(number, side, reason),
            DisconnectReason::Peer | DisconnectReason::Local => {}
            other => self.check_ended(side, other.status()),
        }
    }

    /// A disconnect has failed.
    pub(super) fn check_disconnect(&self, number: u16, side: Side, error: &DisconnectError, begun: Instant) {
        self.check_ended(side, error.status());
        match error {
            DisconnectError::TimedOut { limit } => {
                assert!(self.faulty.get() && begun.elapsed() >= *limit, "DIS-14: before its time");
            }
            DisconnectError::Lost { .. } => self.check_loss(number, side, error),
            _ => {}
        }
    }
}
