//! Checks frames, with CRC on, before any of their payload is placed: in the staging buffer if all of a frame has
//! arrived, or where its parts are gathered.
//!
//! If the next frame is staged too, its checksum is computed in the pass that copies the payload of the current one,
//! whose checksum is known already. Nothing of the next frame is used for that, and nothing is reported of it: a wrong
//! checksum ends the connection in the turn of that frame.

use super::buffer::LARGE;
use super::turn::{Stop, Turn, reject};
use super::{Receiver, State, Step};
use crate::memory::{self, Unchecked};
use crate::wire::ddp::Header;
use crate::wire::mpa::{self, crc32c};
use crate::wire::rdmap::{Opcode, Terminate};

/// The checksum of the next staged frame.
pub(super) struct KnownChecksum(u32);

/// Returns the length of the frame at the start of these bytes, if its length field has arrived.
fn length_of(bytes: &[u8]) -> Option<usize> {
    let &[high, low] = bytes.first_chunk()?;
    Some(mpa::fpdu_length(usize::from(u16::from_be_bytes([high, low]))))
}

/// Returns a large frame at the start of these bytes, without its checksum, if all of it has arrived.
fn large_frame(bytes: &[u8]) -> Option<Unchecked<'_>> {
    let length = length_of(bytes).filter(|length| *length >= LARGE && memory::folds_copies())?;
    Some(Unchecked::new(&bytes.get(..length)?[..length - mpa::CRC_SIZE]))
}

impl Receiver {
    /// Begins a frame that is to be checked: in the staging buffer if all of it has arrived, or gathered. Its checksum
    /// may be `known` from the step before, and that of the `next` frame may be known for the step behind.
    pub(super) fn begin_frame(
        &mut self,
        known: Option<KnownChecksum>,
        next: &mut Option<KnownChecksum>,
        turn: &mut Turn<'_, '_>,
    ) -> Result<Step, Stop> {
        let Some(length) = length_of(self.staging.unread()) else { return Ok(Step::NeedMore) };
        self.ahead.begin(length, false);
        if self.staging.unread().len() < length {
            self.frame.begin(length);
            self.state = State::Gather;
            return Ok(Step::Continue);
        }
        let staging = std::mem::take(&mut self.staging);
        let (frame, behind) = staging.unread().split_at(length);
        let outcome = self.checked(frame, known, (behind, next), turn);
        self.staging = staging;
        if let Ok(false) = outcome {
            return Ok(Step::AwaitReceive);
        }
        self.staging.take(length);
        outcome?;
        self.frame_done();
        Ok(Step::Continue)
    }

    /// Adds staged bytes to the frame that is gathered, and checks it once it is whole.
    pub(super) fn gather_frame(&mut self, turn: &mut Turn<'_, '_>) -> Result<Step, Stop> {
        let taken = self.frame.push(self.staging.unread());
        self.staging.take(taken);
        if !self.frame.is_complete() {
            return Ok(Step::NeedMore);
        }
        self.state = State::Header;
        let frame = std::mem::take(&mut self.frame);
        let outcome = self.checked(frame.gathered(), None, (&[], &mut None), turn);
        self.frame = frame;
        if let Ok(false) = outcome {
            self.state = State::Gather;
            return Ok(Step::AwaitReceive);
        }
        self.frame.release();
        outcome?;
        self.frame_done();
        Ok(Step::Continue)
    }

    /// Checks a whole frame, whose checksum may be `known`, and processes it. Returns false if it has to wait for a
    /// receive. If it has not, the checksum of the `next` frame, which begins `behind` it, may be known then.
    fn checked(
        &mut self,
        frame: &[u8],
        known: Option<KnownChecksum>,
        (behind, next): (&[u8], &mut Option<KnownChecksum>),
        turn: &mut Turn<'_, '_>,
    ) -> Result<bool, Stop> {
        let (body, field) = frame.split_at(frame.len() - mpa::CRC_SIZE);
        let checksum = known.map_or_else(|| crc32c(body), |known| known.0);
        let good = field.first_chunk().is_some_and(|field| mpa::crc_from_wire(*field) == checksum);
        let (header, length, consumed) = match Header::decode(body) {
            Ok(decoded) => decoded,
            Err(_) if !good => return Err(Terminate::CRC.into()),
            Err(error) => return Err(reject(error, body)),
        };
        // siw sends its Terminate without a checksum when the start-up itself went wrong.
        let last_words = !self.heard && header.opcode() == Opcode::Terminate;
        if !good && !last_words {
            return Err(Terminate::CRC.into());
        }
        self.header[..consumed].copy_from_slice(&body[..consumed]);
        let (payload, mut ahead) = (&body[consumed..consumed + length], large_frame(behind));
        let is_done = self.take_frame(&header, payload, consumed, &mut ahead, turn)?;
        *next = if is_done { ahead.and_then(Unchecked::finish).map(KnownChecksum) } else { None };
        Ok(is_done)
    }
}
