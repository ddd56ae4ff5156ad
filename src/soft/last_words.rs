//! Searches the bytes that arrive while this end disconnects for a Terminate, which reports that data has
//! been lost.

use smallvec::SmallVec;

use crate::proto::rdmap::MAX_TERMINATE;
use crate::wire::ddp::Untagged;
use crate::wire::mpa;
use crate::wire::rdmap::{Opcode, Phase, Terminate};

/// The length field and the first two bytes of a header: enough to know what a frame is.
const START: usize = mpa::LENGTH_SIZE + 2;
/// The longest frame that can be a Terminate.
const LONGEST: usize = mpa::fpdu_length(Untagged::LEN + MAX_TERMINATE);
const _: () = assert!(START < mpa::fpdu_length(0));

/// Follows the frames of a stream whose content is discarded.
pub(super) struct LastWords {
    /// The rest of the current frame.
    skip: usize,
    /// The start of the current frame, or the whole of a Terminate.
    frame: SmallVec<[u8; LONGEST]>,
}

impl LastWords {
    /// Creates a search in a stream that is this many bytes before the end of a frame.
    pub(super) fn behind(skip: usize) -> Self {
        Self { skip, frame: SmallVec::new() }
    }

    /// Reads on. Returns the Terminate as soon as it is complete, and the number of frames that began before
    /// it.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> (Option<Terminate>, u32) {
        let mut frames = 0;
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return (None, frames);
            }
            let wanted = self.wanted();
            let taken = (wanted - self.frame.len()).min(bytes.len());
            self.frame.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if self.frame.len() < wanted {
                return (None, frames);
            }
            if self.frame.len() > START {
                let payload = self.frame.get(mpa::LENGTH_SIZE + Untagged::LEN..).unwrap_or_default();
                let terminate = Terminate::decode(payload, Phase::Streaming);
                return (Some(terminate.unwrap_or(Terminate::UNSPECIFIED)), frames);
            }
            if self.wanted() == START {
                self.skip = self.length() - START;
                self.frame.clear();
                frames += 1;
            }
        }
    }

    /// Returns the number of bytes of the current frame that are needed.
    fn wanted(&self) -> usize {
        let Some(start) = self.frame.first_chunk::<START>() else { return START };
        let untagged = start[mpa::LENGTH_SIZE] & 0x80 == 0;
        let terminate = untagged && start[mpa::LENGTH_SIZE + 1] & 0x0f == Opcode::Terminate as u8;
        let length = self.length();
        if terminate && length <= LONGEST { length } else { START }
    }

    /// Returns the length of the current frame, which is more than that of its start.
    fn length(&self) -> usize {
        let field = self.frame.first_chunk().map_or(0, |field| u16::from_be_bytes(*field));
        mpa::fpdu_length(usize::from(field))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::mpa::{Rtr, rtr_frame, terminate_fpdu};

    // A Terminate is found behind the rest of a frame and any frames (ERR-08).
    #[test]
    fn a_terminate_is_found_behind_anything() {
        let terminate = terminate_fpdu(&Terminate::NO_BUFFER, false);
        let rest_of_a_frame = [0x44; 11];
        let stream =
            [&rest_of_a_frame[..], &rtr_frame(Rtr::Write, false), &rtr_frame(Rtr::Read, false), &terminate]
                .concat();
        for step in [1, 3, 7, stream.len()] {
            let mut words = LastWords::behind(rest_of_a_frame.len());
            let found: Vec<_> = stream.chunks(step).filter_map(|bytes| words.read(bytes).0).collect();
            assert_eq!(found, [Terminate::NO_BUFFER], "{step} bytes at a time");
        }
        let mut words = LastWords::behind(0);
        let (found, frames) = words.read(&stream[rest_of_a_frame.len()..stream.len() - 1]);
        assert_eq!((found, frames), (None, 2), "a byte is missing");
        // SEC-01: the shortest frames, of which each is work.
        assert_eq!(LastWords::behind(0).read(&[0; 4096]), (None, 4096 / 8), "nonsense");
    }
}
