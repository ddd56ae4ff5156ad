//! Lanes of either provider.

use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::{Adapter, QueuePair};
use crate::error::{NotifyError, OpenError, PostErrorKind};
use crate::inflight::{Done, LaneState};
use crate::provider::work::{LaneParts, LaneRequest, RemoteAddress};
#[cfg(feature = "soft")]
use crate::soft;
use crate::types::{QueuePairId, Slot};
#[cfg(feature = "verbs")]
use crate::verbs;

by_provider_enums! {
    /// A lane: slots of memory, queue pairs, and their completions, with one owner. Each call asks which variant it is, and a number of
    /// its own says so at once.
    #[repr(u8)]
    pub(crate) enum Lane { Soft(soft::lane::Lane), Verbs(verbs::lane::Lane) }
}

impl Lane {
    pub(crate) fn new(adapter: &Adapter, parts: LaneParts) -> Result<Self, OpenError> {
        Ok(by_provider!(
            adapter,
            Adapter::Soft(adapter) => Self::Soft(soft::lane::Lane::new(adapter, parts)?),
            Adapter::Verbs(adapter) => Self::Verbs(verbs::lane::Lane::new(&adapter.context, parts)?),
        ))
    }

    /// Makes a queue pair, which connects like any other.
    pub(crate) fn queue_pair(&mut self) -> Result<(QueuePairId, QueuePair), OpenError> {
        Ok(by_provider!(
            self,
            Self::Soft(lane) => {
                let (id, queue_pair): (_, Arc<_>) = lane.queue_pair()?;
                (id, QueuePair::Soft(queue_pair))
            },
            Self::Verbs(lane) => {
                let (id, queue_pair): (_, Arc<_>) = lane.queue_pair()?;
                (id, QueuePair::Verbs(queue_pair))
            },
        ))
    }

    pub(crate) fn close(&mut self, queue_pair: QueuePairId) {
        dispatch!(self, lane => lane.close(queue_pair));
    }

    pub(crate) fn state(&mut self, queue_pair: QueuePairId) -> LaneState {
        dispatch!(self, lane => lane.state(queue_pair))
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Option<u32> {
        dispatch!(self, lane => lane.slots_mut().take())
    }

    #[inline]
    pub(crate) fn give(&mut self, slot: Slot) -> bool {
        dispatch!(self, lane => lane.slots_mut().give(slot.0))
    }

    #[inline]
    pub(crate) fn bytes(&self, slot: Slot) -> Option<&[u8]> {
        dispatch!(self, lane => lane.slots().bytes(slot.0))
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self, slot: Slot) -> Option<&mut [u8]> {
        dispatch!(self, lane => lane.slots_mut().bytes_mut(slot.0))
    }

    pub(crate) fn pair(&mut self, read: Slot, write: Slot) -> Option<(&[u8], &mut [u8])> {
        dispatch!(self, lane => lane.slots_mut().pair(read.0, write.0))
    }

    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        queue_pair: QueuePairId,
        slot: Slot,
        length: usize,
    ) -> Result<(), PostErrorKind> {
        dispatch!(self, lane => lane.send(queue_pair, slot, length))
    }

    #[inline]
    pub(crate) fn write(
        &mut self,
        queue_pair: QueuePairId,
        from: (Slot, Range<usize>),
        to: RemoteAddress,
    ) -> Result<(), PostErrorKind> {
        dispatch!(self, lane => lane.write(queue_pair, from, to))
    }

    #[inline]
    pub(crate) fn read(
        &mut self,
        queue_pair: QueuePairId,
        into: (Slot, Range<usize>),
        from: RemoteAddress,
    ) -> Result<(), PostErrorKind> {
        dispatch!(self, lane => lane.read(queue_pair, into, from))
    }

    #[inline(always)]
    pub(crate) fn receive(&mut self, queue_pair: QueuePairId, slot: Slot) -> Result<(), PostErrorKind> {
        dispatch!(self, lane => lane.receive(queue_pair, slot))
    }

    #[inline(always)]
    pub(crate) fn send_all(
        &mut self,
        queue_pair: QueuePairId,
        of: impl IntoIterator<Item = (Slot, usize)>,
    ) -> Result<usize, PostErrorKind> {
        dispatch!(self, lane => lane.send_all(queue_pair, of))
    }

    #[inline(always)]
    pub(crate) fn receive_all(
        &mut self,
        queue_pair: QueuePairId,
        of: impl IntoIterator<Item = Slot>,
    ) -> Result<usize, PostErrorKind> {
        dispatch!(self, lane => lane.receive_all(queue_pair, of))
    }

    pub(crate) fn request(&mut self, request: LaneRequest<'_>) -> Result<(), PostErrorKind> {
        dispatch!(self, lane => lane.request(request))
    }

    #[inline]
    pub(crate) fn ring(&mut self) {
        dispatch!(self, lane => lane.ring());
    }

    #[inline(always)]
    pub(crate) fn poll<'d>(&mut self, into: &'d mut [Done]) -> Result<&'d [Done], NotifyError> {
        by_provider!(
            self,
            Self::Soft(lane) => {
                let count = lane.poll(into)?;
                Ok(into.get(..count).unwrap_or_default())
            },
            Self::Verbs(lane) => {
                let count = lane.poll(into);
                into.get(..count).ok_or_else(|| lane.ended())
            },
        )
    }

    pub(crate) fn poll_ready(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut [Done],
    ) -> Poll<Result<usize, NotifyError>> {
        dispatch!(self, lane => lane.poll_ready(cx, into))
    }

    #[inline]
    pub(crate) fn outstanding(&self) -> u32 {
        dispatch!(self, lane => lane.outstanding())
    }
}
