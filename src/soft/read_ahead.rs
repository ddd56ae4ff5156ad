//! Limits how many bytes a read brings ahead of their place.
//!
//! Bytes that land in the staging buffer have to be copied. A read that brings much is worth that copy: the
//! kernel acknowledges each read, and many short ones have the peer go on in small steps. So a read brings as
//! many frames as are still in the cache when they are copied. The reader of a stream, which has memory for
//! the payload itself, gets only the headers.

use crate::wire::mpa;

/// The length from which on a frame is large, and so, very likely, are those that follow.
pub(super) const LARGE: usize = 16 * 1024;
/// The number of small frames that may follow a large one before large ones are no longer expected: the rest
/// of a Write that is no multiple of a frame, and the Send that announces it, for a message that was cut in
/// two.
const SMALL_BETWEEN: u8 = 4;
const HEADERS_ONLY: usize = 20;
/// The number of bytes that are read ahead between two frames for the reader of a stream.
const BETWEEN: usize = 4096;

/// The number of bytes that are read ahead while small frames are expected.
pub(super) const MANY: usize = 64 * 1024;
/// The most bytes of large frames that are read ahead, eight of the largest: few system calls, and all of it
/// is still in the cache when it is copied, and checked with CRC on.
pub(super) const MOST: usize = 8 * mpa::fpdu_length(mpa::MAX_ULPDU);

/// The frames that are expected, from the lengths of the last ones.
pub(super) struct ReadAhead {
    /// The most bytes of large frames that are read ahead.
    limit: usize,
    /// The length of the last large frame.
    large: usize,
    /// The number of frames since the last large one.
    since_large: u8,
}

impl ReadAhead {
    /// Creates the state of a connection without frames. `waits` if a message may have to wait for a receive,
    /// with all that has been read behind it.
    pub(super) fn new(waits: bool) -> Self {
        Self { limit: if waits { MANY } else { MOST }, large: LARGE, since_large: u8::MAX }
    }

    /// Records the begin of a frame of this length, length field and trailer included.
    pub(super) fn begin(&mut self, length: usize) {
        if length >= LARGE {
            self.large = length;
            self.since_large = 0;
        } else {
            self.since_large = self.since_large.saturating_add(1);
        }
    }

    /// Returns whether the next frames are likely to be large.
    pub(super) fn expects_large(&self) -> bool {
        self.since_large <= SMALL_BETWEEN
    }

    /// Returns the most bytes that the next read of a stream's reader brings ahead, within a payload or
    /// between two.
    pub(super) fn headers(&self, in_payload: bool) -> usize {
        match in_payload {
            _ if !self.expects_large() => MANY,
            true => HEADERS_ONLY,
            false => BETWEEN,
        }
    }

    /// Returns the room that a turn needs.
    pub(super) fn room(&self) -> usize {
        if self.expects_large() { self.limit } else { MANY }
    }

    /// Returns the most bytes that the next read brings behind the current frame: whole large frames if they
    /// are expected.
    pub(super) fn whole_frames(&self) -> usize {
        if self.expects_large() { (self.limit / self.large * self.large).max(MANY) } else { MANY }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A message of a byte stream ends with the rest of its last frame, and with a Send of four bytes. The
    // payload of the next message must not go through the staging buffer for that.
    #[test]
    fn the_end_of_a_large_message_does_not_announce_small_ones() {
        let mut ahead = ReadAhead::new(false);
        assert_eq!(ahead.headers(false), MANY, "nothing is known");
        for length in [65_520, 65_520, 4, 256, 4] {
            ahead.begin(length);
            assert_eq!((ahead.headers(true), ahead.headers(false)), (HEADERS_ONLY, BETWEEN), "{length}");
        }
        ahead.begin(65_520);
        for length in [256, 4, 256, 4, 4] {
            ahead.begin(length);
        }
        assert_eq!(ahead.headers(true), MANY, "small ones come now, many at once");
    }

    // A part of a frame is one more read, and with CRC on it is copied to where the rest of it is gathered.
    #[test]
    fn large_frames_are_read_as_a_whole() {
        let mut ahead = ReadAhead::new(false);
        assert_eq!(ahead.whole_frames(), MANY);
        for (length, frames) in [(mpa::fpdu_length(mpa::MAX_ULPDU), 8), (65_540, 8), (LARGE, 32)] {
            ahead.begin(length);
            assert_eq!(ahead.whole_frames(), frames * length);
            assert!(ahead.whole_frames() <= MOST);
        }
    }

    // With a shared receive queue, a peer decides how long a message waits, and all that was read behind it
    // (SEC-12).
    #[test]
    fn little_is_read_behind_a_message_that_may_wait() {
        let mut ahead = ReadAhead::new(true);
        ahead.begin(mpa::fpdu_length(mpa::MAX_ULPDU));
        assert_eq!((ahead.whole_frames(), ahead.room()), (MANY, MANY));
    }
}
