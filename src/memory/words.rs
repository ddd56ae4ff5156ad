//! Copies between memory that others may access at the same time and ordinary bytes.
//!
//! Rust defines a race between atomic accesses of one size, and leaves one between accesses of different sizes
//! undefined. So there is one size: every access to shared memory is an atomic one to a whole, aligned word of eight
//! bytes. The bytes at the ends of a range share their words with bytes that are not part of it. They are read by
//! reading the word, and written by replacing the word, as long as no other access has changed it, by one in which only
//! they differ. A block of memory that is allocated here has all of the words that it begins, see
//! [`Block`](super::owned::Block). Whole lines of words are copied by accesses that do the same to two words at a time,
//! see [`read_lines`].
//!
//! An allocation of the program may begin and end within a word, whose other bytes have another owner. Its first and
//! last bytes, up to seven each, are accessed one by one, always. So each byte of a block has one size of access, and
//! no byte beside the block is touched.
//!
//! Three kinds of access are no atomic ones of this program, and race with none that matters:
//!
//! * Ordinary references exist to memory without another handle ([`Owned`](super::Owned)), and to memory that is only
//!   read ([`Frozen`](super::Frozen)).
//! * The kernel, and a device, are outside of the program. To it, they are other threads that access words atomically in some
//!   order: hardware keeps them coherent with the processor, and a word of which they have changed a byte is not replaced.
//!
//! A compiler copies atomics one by one, which takes half as long again as the processor needs. So on x86-64 a few
//! instructions copy whole lines. A processor with AVX loads and stores 16 aligned bytes at once (AMD64 manual volume 2 section
//! 7.3.2, Intel's volume 3 section 9.1.1): no access sees a part of a word, which is all that relaxed atomic accesses
//! to the two words would promise.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::Shared;
#[cfg(feature = "soft")]
use super::Slice;

pub(super) const WORD: usize = size_of::<u64>();
/// The number of words copied in one step: as many as a compiler writes out one by one. It leaves a longer loop of atomics as
/// it is.
const BLOCK: usize = 8;

/// A range of shared memory: bytes before the first whole word of its block, words, and bytes behind the last one.
pub(super) struct Range<'a> {
    pub(super) head: &'a [AtomicU8],
    pub(super) body: Words<'a>,
    pub(super) tail: &'a [AtomicU8],
}

impl Range<'_> {
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.body.length + self.tail.len()
    }

    /// Copies as many bytes to the range as it has.
    pub(super) fn write(&self, from: &[u8]) {
        let (head, rest) = from[..self.len()].split_at(self.head.len());
        let (body, tail) = rest.split_at(self.body.length);
        let store = |(cell, byte): (&AtomicU8, &u8)| cell.store(*byte, Ordering::Relaxed);
        self.head.iter().zip(head).for_each(store);
        self.body.write(body);
        self.tail.iter().zip(tail).for_each(store);
    }

    /// Copies the range to as many bytes. They are initialised then.
    pub(super) fn read(&self, into: &mut [MaybeUninit<u8>]) {
        let (head, rest) = into[..self.len()].split_at_mut(self.head.len());
        let (body, tail) = rest.split_at_mut(self.body.length);
        let load = |(cell, byte): (&AtomicU8, &mut MaybeUninit<u8>)| {
            byte.write(cell.load(Ordering::Relaxed));
        };
        self.head.iter().zip(head).for_each(load);
        self.body.read(body);
        self.tail.iter().zip(tail).for_each(load);
    }
}

/// Words of shared memory: `length` bytes, of which the first is `before` bytes into the first word.
pub(super) struct Words<'a> {
    /// The words that the range touches.
    pub(super) words: &'a [AtomicU64],
    pub(super) before: usize,
    pub(super) length: usize,
}

impl<'a> Words<'a> {
    /// Returns the number of bytes in the first word if the range begins within it, and otherwise 0; and the words
    /// behind those bytes.
    fn split(&self) -> (usize, &'a [AtomicU64]) {
        if self.before == 0 {
            return (0, self.words);
        }
        (self.length.min(WORD - self.before), self.words.get(1..).unwrap_or_default())
    }

    /// Copies as many bytes to the range as it has.
    pub(super) fn write(&self, from: &[u8]) {
        let (head, words) = self.split();
        let (first, rest) = from[..self.length].split_at(head);
        if head > 0 {
            store_part(&self.words[0], self.before, first);
        }
        let done = write_lines(words, rest);
        let (words, rest) = (&words[done..], &rest[done * WORD..]);
        let (body, last) = rest.as_chunks::<WORD>();
        store_all(&words[..body.len()], body);
        if !last.is_empty() {
            store_part(&words[body.len()], 0, last);
        }
    }

    /// Copies the range to as many bytes. They are initialised then.
    pub(super) fn read(&self, into: &mut [MaybeUninit<u8>]) {
        let (head, words) = self.split();
        let (first, rest) = into[..self.length].split_at_mut(head);
        if head > 0 {
            load_part(&self.words[0], self.before, first);
        }
        let done = read_lines(words, rest);
        let (words, rest) = (&words[done..], &mut rest[done * WORD..]);
        let (body, last) = rest.as_chunks_mut::<WORD>();
        let (whole, behind) = words.split_at(body.len());
        load_all(whole, body);
        if !last.is_empty() {
            load_part(&behind[0], 0, last);
        }
    }
}

/// Copies to as many words as there are on both sides.
#[inline]
pub(super) fn store_all(cells: &[AtomicU64], from: &[[u8; WORD]]) {
    let ((cells, cells_left), (groups, left)) = (cells.as_chunks::<BLOCK>(), from.as_chunks::<BLOCK>());
    for (cells, group) in cells.iter().zip(groups) {
        (0..BLOCK).for_each(|index| store(&cells[index], &group[index]));
    }
    cells_left.iter().zip(left).for_each(|(cell, word)| store(cell, word));
}

/// Copies from as many words as there are on both sides.
#[inline]
pub(super) fn load_all(cells: &[AtomicU64], into: &mut [[MaybeUninit<u8>; WORD]]) {
    let ((cells, cells_left), (groups, left)) = (cells.as_chunks::<BLOCK>(), into.as_chunks_mut::<BLOCK>());
    for (cells, group) in cells.iter().zip(groups) {
        (0..BLOCK).for_each(|index| group[index] = load(&cells[index]));
    }
    cells_left.iter().zip(left).for_each(|(cell, word)| *word = load(cell));
}

fn store(cell: &AtomicU64, word: &[u8; WORD]) {
    cell.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
}

fn load(cell: &AtomicU64) -> [MaybeUninit<u8>; WORD] {
    let bytes = cell.load(Ordering::Relaxed).to_ne_bytes();
    // SAFETY: a byte that may be uninitialised has the layout of a byte, and any byte is one. (`map` does the same, but calls
    // a closure for each byte in a build without optimisation.)
    unsafe { std::mem::transmute::<[u8; WORD], [MaybeUninit<u8>; WORD]>(bytes) }
}

/// Replaces the bytes of a word from `at` on.
fn store_part(cell: &AtomicU64, at: usize, bytes: &[u8]) {
    let (mut mask, mut new) = ([0; WORD], [0; WORD]);
    mask[at..][..bytes.len()].fill(0xff);
    new[at..][..bytes.len()].copy_from_slice(bytes);
    let (mask, new) = (u64::from_ne_bytes(mask), u64::from_ne_bytes(new));
    let replace = |old| Some(old & !mask | new);
    // It always has a new value.
    let _ = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, replace);
}

/// Returns the bytes of a word from `at` on.
fn load_part(cell: &AtomicU64, at: usize, bytes: &mut [MaybeUninit<u8>]) {
    bytes.copy_from_slice(&load(cell)[at..][..bytes.len()]);
}

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

/// The number of words of a line: those of a cache line.
const LINE: usize = 8;

/// Copies the first words to as many bytes, up to the end of the last line. Returns the number of words copied: 0 if there is no
/// whole line, or the processor cannot do it.
fn read_lines(words: &[AtomicU64], into: &mut [MaybeUninit<u8>]) -> usize {
    let (before, lines) = split(words.len().min(into.len() / WORD), words);
    for (cell, word) in words.iter().zip(into.as_chunks_mut::<WORD>().0).take(before) {
        *word = load(cell);
    }
    let (words, into) = (&words[before..], &mut into[before * WORD..]);
    // SAFETY: both ranges have so many lines. The words are atomics, which may be read at any time, and the bytes are exclusive.
    unsafe { copy_lines(words.as_ptr().cast(), into.as_mut_ptr().cast(), lines) };
    before + lines * LINE
}

/// Copies bytes to the first words, as [`read_lines`] does in the other direction.
fn write_lines(words: &[AtomicU64], from: &[u8]) -> usize {
    let (before, lines) = split(words.len().min(from.len() / WORD), words);
    for (cell, word) in words.iter().zip(from.as_chunks::<WORD>().0).take(before) {
        store(cell, word);
    }
    let (words, from) = (&words[before..], &from[before * WORD..]);
    // SAFETY: both ranges have so many lines, and the words are atomics, which may be written through a shared reference.
    unsafe { copy_lines(from.as_ptr(), words.as_ptr().cast::<u8>().cast_mut(), lines) };
    before + lines * LINE
}

/// Returns how many of `count` words are copied one by one, so that the next one is at a multiple of 16 bytes, and how many lines
/// follow them. None of either, if there are no lines.
fn split(count: usize, words: &[AtomicU64]) -> (usize, usize) {
    let before = usize::from(!words.as_ptr().addr().is_multiple_of(2 * WORD));
    let lines = count.saturating_sub(before) / LINE;
    if lines > 0 && can_copy_lines() { (before, lines) } else { (0, 0) }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn can_copy_lines() -> bool {
    is_x86_feature_detected!("avx")
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn can_copy_lines() -> bool {
    false
}

/// Copies lines of 64 bytes, of which one side is shared words at a multiple of 16 bytes, and the other is exclusive.
///
/// # Safety
/// One range may be read and the other one written; they do not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_lines(from: *const u8, to: *mut u8, lines: usize) {
    if lines == 0 {
        return;
    }
    // SAFETY: the loop reads and writes `lines` times 64 bytes of the two ranges and nothing else. To the shared side it does what
    // relaxed atomic accesses to each word do: see above.
    unsafe {
        std::arch::asm!(
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {lines}",
            "jnz 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            lines = inout(reg) lines => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Does nothing: [`split`] finds no lines on this target.
///
/// # Safety
/// Always safe.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn copy_lines(_: *const u8, _: *mut u8, _: usize) {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::thread;

    use super::*;
    use crate::memory::Owned;

    /// Makes words in which every byte is the number of its place.
    fn numbered(words: u64) -> Vec<AtomicU64> {
        let word =
            |number: u64| u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| number as u8 * 8 + byte));
        (0..words).map(|number| AtomicU64::new(word(number))).collect()
    }

    fn bytes(words: &[AtomicU64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }

    fn range(words: &[AtomicU64], from: usize, length: usize) -> Words<'_> {
        let words = &words[from / WORD..(from + length).div_ceil(WORD).max(from / WORD)];
        Words { words, before: from % WORD, length }
    }

    // Reads and writes of a range leave the bytes beside it as they are (SEC-13).
    #[test]
    fn every_range_is_copied_and_nothing_beside_it() {
        const WORDS: usize = 2 + 2 * BLOCK + 3;
        for from in 0..2 * WORD {
            for length in 0..=WORDS * WORD - from {
                let words = numbered(WORDS as u64);
                let mut found = vec![MaybeUninit::new(0xee); length];
                range(&words, from, length).read(&mut found);
                // SAFETY: all of them were initialised just above, whatever was copied.
                let found: Vec<u8> = found.iter().map(|byte| unsafe { byte.assume_init() }).collect();
                let expected: Vec<u8> = (from..from + length).map(|place| place as u8).collect();
                assert_eq!(found, expected, "{from}+{length}");
                range(&words, from, length).write(&vec![0xee; length]);
                let mut expected = bytes(&numbered(WORDS as u64));
                expected[from..from + length].fill(0xee);
                assert_eq!(bytes(&words), expected, "{from}+{length}");
            }
        }
    }

    // SEC-13: two writers whose ranges meet within a word do not disturb each other.
    #[test]
    fn neighbours_in_one_word_are_independent() {
        let words = numbered(2);
        thread::scope(|scope| {
            for (from, length) in [(0, 5), (5, 6), (11, 5)] {
                let range = range(&words, from, length);
                scope.spawn(move || {
                    for round in 0..10_000_u32 {
                        let mine = vec![round as u8; length];
                        range.write(&mine);
                        let mut found = vec![MaybeUninit::new(0); length];
                        range.read(&mut found);
                        // SAFETY: all of them were initialised just above, whatever was copied.
                        let found: Vec<u8> = found.iter().map(|byte| unsafe { byte.assume_init() }).collect();
                        assert_eq!(found, mine, "nobody else writes these bytes");
                    }
                });
            }
        });
    }

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
        assert!(crate::memory::Shared(frozen.0.clone()).word(0).is_none());
        assert_eq!(&frozen[..], &[0; 8]);
    }
}
