//! Atomic access to one word of shared memory.
//!
//! The words are those of [`words`](super::words), so accesses of the two modules do not mix sizes.

use std::sync::atomic::AtomicU64;
#[cfg(feature = "soft")]
use std::sync::atomic::Ordering;

use super::Shared;
#[cfg(feature = "soft")]
use super::Slice;
use super::words::WORD;

impl Shared {
    /// Returns whether the numbers of eight bytes at offsets that are multiples of eight are words.
    #[cfg(feature = "soft")]
    pub(crate) fn has_aligned_words(&self) -> bool {
        self.0.memory.block.start().addr().get().is_multiple_of(WORD)
    }

    /// Returns the eight bytes at `offset` for access by atomics of the program, as a number in host byte order.
    ///
    /// `None` if they are not within the memory, if their address is not a multiple of eight, if the memory is frozen, or if the
    /// bytes belong to another device.
    pub(crate) fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let block = &self.0.memory.block;
        let end = offset.checked_add(WORD)?;
        if end > block.len() || self.0.is_frozen() {
            return None;
        }
        let first = block.start().as_ptr().wrapping_add(offset);
        if !first.addr().is_multiple_of(WORD) {
            return None;
        }
        // SAFETY: the eight bytes lie within one live, initialised allocation, which `self` keeps, and are aligned. An aligned word
        // within an allocation is one of its block's whole words. While there is a `Shared`, those are accessed by atomics of this
        // size only, or by the kernel or a device, because the memory is neither exclusive nor frozen.
        Some(unsafe { AtomicU64::from_ptr(first.cast()) })
    }
}

#[cfg(feature = "soft")]
impl Slice {
    /// Replaces the first eight bytes, a number in host byte order, atomically by the result of `change`, and returns
    /// the old number. `None` if the slice is shorter or not aligned to eight, or if [`Shared::word`] returns `None`.
    pub(crate) fn update(&self, change: impl Fn(u64) -> u64) -> Option<u64> {
        let word = self.memory.word(self.offset).filter(|_| self.length >= WORD)?;
        word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |value| Some(change(value))).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::super::Owned;

    // An atomic of the peer needs eight bytes at a multiple of eight (QP-23).
    #[cfg(feature = "soft")]
    #[test]
    fn updates_need_eight_aligned_bytes() {
        let shared = Owned::zeroed(17).expect("memory").share();
        let at = |offset, length| shared.slice(offset, length).expect("in bounds");
        at(8, 8).write(0, &5_u64.to_ne_bytes());
        assert_eq!(at(8, 8).update(|value| value + 1), Some(5));
        assert_eq!(at(8, 9).update(|value| value + 1), Some(6));
        assert_eq!(at(8, 7).update(|value| value + 1), None, "too short");
        assert_eq!(at(4, 8).update(|value| value + 1), None, "not aligned");
        let mut found = [0; 8];
        at(8, 8).read(0, &mut found);
        assert_eq!(u64::from_ne_bytes(found), 7);
    }

    // SEC-13: an allocation of the program may begin anywhere, and its address counts, not the offset.
    #[test]
    fn words_are_aligned_by_address_and_within_memory() {
        for skip in 0..8 {
            let (memory, _returned) = Owned::lend(bytes::BytesMut::from(&[0; 40][..]).split_off(skip));
            let address = memory.as_ptr().addr();
            let shared = memory.share();
            for offset in (0..=shared.len()).chain([usize::MAX, usize::MAX - 7]) {
                let is_within = offset.checked_add(8).is_some_and(|end| end <= shared.len());
                let is_word = is_within && (address + offset).is_multiple_of(8);
                assert_eq!(shared.word(offset).is_some(), is_word, "{skip} {offset}");
            }
        }
        let shared = Owned::zeroed(23).expect("memory").share();
        shared.word(8).expect("a word").store(0x0102_0304_0506_0708, Ordering::Relaxed);
        let mut found = [0; 8];
        shared.clone().whole().read(8, &mut found);
        assert_eq!(u64::from_ne_bytes(found), 0x0102_0304_0506_0708);
    }

    #[test]
    fn frozen_memory_has_no_words() {
        let memory = Owned::zeroed(8).expect("memory");
        let frozen = memory.freeze();
        assert!(super::super::Shared(frozen.0.clone()).word(0).is_none());
        assert_eq!(&frozen[..], &[0; 8]);
    }
}
