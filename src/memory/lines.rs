//! Copies of whole lines of shared memory, by accesses of two words at a time.
//!
//! A compiler copies atomics one by one, which takes half as long again as the processor needs. So on x86-64 a few
//! instructions do it. A processor with AVX loads and stores 16 aligned bytes at once (AMD64 manual volume 2 section
//! 7.3.2, Intel's volume 3 section 9.1.1): no access sees a part of a word, which is all that relaxed atomic accesses
//! to the two words would promise.

use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU64;

use super::words::{WORD, load, store};

/// The number of words of a line: those of a cache line.
const LINE: usize = 8;

/// Copies the first words to as many bytes, up to the end of the last line. Returns the number of words copied: 0 if there is no
/// whole line, or the processor cannot do it.
pub(super) fn read(words: &[AtomicU64], into: &mut [MaybeUninit<u8>]) -> usize {
    let (before, lines) = split(words.len().min(into.len() / WORD), words);
    for (cell, word) in words.iter().zip(into.as_chunks_mut::<WORD>().0).take(before) {
        *word = load(cell);
    }
    let (words, into) = (&words[before..], &mut into[before * WORD..]);
    // SAFETY: both ranges have so many lines. The words are atomics, which may be read at any time, and the bytes are exclusive.
    unsafe { copy(words.as_ptr().cast(), into.as_mut_ptr().cast(), lines) };
    before + lines * LINE
}

/// Copies bytes to the first words, as [`read`] does in the other direction.
pub(super) fn write(words: &[AtomicU64], from: &[u8]) -> usize {
    let (before, lines) = split(words.len().min(from.len() / WORD), words);
    for (cell, word) in words.iter().zip(from.as_chunks::<WORD>().0).take(before) {
        store(cell, word);
    }
    let (words, from) = (&words[before..], &from[before * WORD..]);
    // SAFETY: both ranges have so many lines, and the words are atomics, which may be written through a shared reference.
    unsafe { copy(from.as_ptr(), words.as_ptr().cast::<u8>().cast_mut(), lines) };
    before + lines * LINE
}

/// Returns how many of `count` words are copied one by one, so that the next one is at a multiple of 16 bytes, and how many lines
/// follow them. None of either, if there are no lines.
fn split(count: usize, words: &[AtomicU64]) -> (usize, usize) {
    let before = usize::from(!words.as_ptr().addr().is_multiple_of(2 * WORD));
    let lines = count.saturating_sub(before) / LINE;
    if lines > 0 && is_possible() { (before, lines) } else { (0, 0) }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn is_possible() -> bool {
    is_x86_feature_detected!("avx")
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn is_possible() -> bool {
    false
}

/// Copies lines of 64 bytes, of which one side is shared words at a multiple of 16 bytes, and the other is exclusive.
///
/// # Safety
/// One range may be read and the other one written; they do not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy(from: *const u8, to: *mut u8, lines: usize) {
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
unsafe fn copy(_: *const u8, _: *mut u8, _: usize) {}
