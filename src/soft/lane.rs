//! A lane of the soft provider.

use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::adapter::Adapter;
use super::queue_pair::QueuePair;
use crate::error::{NotifyError, OpenError, PostErrorKind};
use crate::inflight::Done;
use crate::provider::lane::{LaneParts, LaneRequest, LaneState};
use crate::provider::work::RemoteAddress;
use crate::types::{QueuePairId, Slot};

/// A lane of a soft adapter.
pub(crate) struct Lane {
    slots: Slots,
}

/// The slots.
pub(crate) struct Slots;

impl Slots {
    pub(crate) fn take(&mut self) -> Option<u32> {
        None
    }

    pub(crate) fn give(&mut self, _slot: u32) -> bool {
        false
    }

    pub(crate) fn bytes(&self, _slot: u32) -> Option<&[u8]> {
        None
    }

    pub(crate) fn bytes_mut(&mut self, _slot: u32) -> Option<&mut [u8]> {
        None
    }

    pub(crate) fn pair(&mut self, _read: u32, _write: u32) -> Option<(&[u8], &mut [u8])> {
        None
    }
}

impl Lane {
    pub(crate) fn new(_adapter: &Arc<Adapter>, _parts: LaneParts) -> Result<Self, OpenError> {
        Err(OpenError::Unsupported("lanes on soft adapters"))
    }

    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    pub(crate) fn slots_mut(&mut self) -> &mut Slots {
        &mut self.slots
    }

    pub(crate) fn outstanding(&self) -> u32 {
        0
    }

    pub(crate) fn queue_pair(&mut self) -> Result<(QueuePairId, Arc<QueuePair>), OpenError> {
        Err(OpenError::DeviceRemoved)
    }

    pub(crate) fn close(&mut self, _id: QueuePairId) {}

    pub(crate) fn state(&mut self, _id: QueuePairId) -> LaneState {
        LaneState::Gone
    }

    pub(crate) fn send(&mut self, _: QueuePairId, _: Slot, _: usize) -> Result<(), PostErrorKind> {
        Err(PostErrorKind::ConnectionInvalid)
    }

    pub(crate) fn write(
        &mut self,
        _: QueuePairId,
        _: (Slot, Range<usize>),
        _: RemoteAddress,
    ) -> Result<(), PostErrorKind> {
        Err(PostErrorKind::ConnectionInvalid)
    }

    pub(crate) fn read(
        &mut self,
        _: QueuePairId,
        _: (Slot, Range<usize>),
        _: RemoteAddress,
    ) -> Result<(), PostErrorKind> {
        Err(PostErrorKind::ConnectionInvalid)
    }

    pub(crate) fn receive(&mut self, _: QueuePairId, _: Slot) -> Result<(), PostErrorKind> {
        Err(PostErrorKind::ConnectionInvalid)
    }

    pub(crate) fn request(&mut self, _: LaneRequest<'_>) -> Result<(), PostErrorKind> {
        Err(PostErrorKind::ConnectionInvalid)
    }

    pub(crate) fn ring(&mut self) {}

    pub(crate) fn poll(&mut self, _: &mut [Done]) -> Result<usize, NotifyError> {
        Ok(0)
    }

    pub(crate) fn poll_ready(
        &mut self,
        _: &mut Context<'_>,
        _: &mut [Done],
    ) -> Poll<Result<usize, NotifyError>> {
        Poll::Pending
    }
}
