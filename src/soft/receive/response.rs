//! Places the segments of a Read Response in the sink, also those that were predicted.

use tracing::trace;

use super::{Receiver, State};
use crate::inflight::{self, Payload};
use crate::soft::placement::{Destination, OnComplete};
use crate::soft::predict::{Arrived, PredictedSegments};
use crate::soft::read_ahead::LARGE;
use crate::soft::turn::{Stop, Violation};
use crate::status::Status;
use crate::wire::ddp::{Header, Tagged};
use crate::wire::mpa;
use crate::wire::rdmap::Opcode;

impl Receiver {
    /// Predicts the segments behind this one, of which a part has arrived. Returns `None` if they cannot be
    /// predicted.
    pub(super) fn predict(&self, header: &Header, length: usize) -> Option<Box<PredictedSegments>> {
        let &Header::Tagged(Tagged { last: false, opcode: Opcode::ReadResponse, stag, to }) = header else {
            return None;
        };
        // A message among them might have to wait for a receive, with all bytes that have come behind it
        // (SEC-12).
        if length < LARGE || self.connection.receives.is_shared() {
            return None;
        }
        let end = to.wrapping_add(length as u64);
        // Offsets in the sink of this side count from 0.
        let rest = self.connection.send_queue().sink_from(usize::try_from(end).ok()?);
        PredictedSegments::new(stag, end, length, &rest)
    }

    /// Records `length` bytes behind the payload of the current frame: in the places of the predicted
    /// segments, or in the staging buffer.
    pub(super) fn received_behind(&mut self, length: usize) -> Result<(), Stop> {
        let Some(predicted) = self.predicted.take_if(|_| length > 0) else {
            self.staging.filled(length);
            return Ok(());
        };
        let (arrived, predicted) = predicted.verify(length, &mut self.staging);
        for segment in arrived {
            self.arrived(&segment)?;
        }
        self.predicted = predicted;
        Ok(())
    }

    /// Completes the current segment of a Read Response, because the next one has arrived as predicted.
    fn arrived(&mut self, segment: &Arrived) -> Result<(), Stop> {
        let Arrived { header, stag, to, length, last, placed } = *segment;
        trace!(connection = %self.connection.id, opcode = ?Opcode::ReadResponse, length, "frame received");
        self.heard = true;
        self.header[..header.len()].copy_from_slice(&header);
        let sink = self.sink((stag, to), (length, last), header.len())?;
        let destination = Destination::Local(inflight::range(&sink, placed, usize::MAX));
        let trailer = mpa::pad_length(Tagged::LEN + length) + mpa::CRC_SIZE;
        self.state = State::Payload {
            destination,
            left: length - placed,
            trailer,
            on_complete: OnComplete::Response { last },
        };
        Ok(())
    }

    /// Returns the memory for a segment of a Read Response.
    pub(super) fn sink(
        &self,
        from: (u32, u64),
        (length, last): (usize, bool),
        header: usize,
    ) -> Result<Payload, Stop> {
        self.connection.send_queue().response(from, length, last).map_err(|terminate| {
            let terminate = terminate.with_header(&self.header[..header]);
            Stop::Violation(Box::new(Violation { terminate, blame: Status::REMOTE_ERROR }))
        })
    }
}
