//! Computes the CRC32C of bytes in the pass that copies them.
//!
//! A copy waits for the caches, and a checksum for the multiplier: one pass takes hardly longer than the copy alone. It needs
//! carry-less multiplication in registers of 512 bits (AVX-512F and VPCLMULQDQ). Other processors copy, and then compute.
//!
//! Others may write shared memory at any time, and the checksum of what is copied out of it has to be that of the copy. So each byte is
//! read once, into a register from which it is stored and added. What is copied into shared memory has been checked before: the
//! checksum that is computed beside such a copy is that of other bytes, see [`Unchecked`].
//!
//! The loop folds: a remainder of 64 bytes in each of four registers is multiplied by the power of x that moves it 256 bytes ahead, and
//! added to the bytes there (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009). The
//! remainders are folded to one in the end. Those 64 bytes have the checksum of all that were folded. They, and the bytes before and
//! behind the loop, are left to the library.

use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU64;

use super::Slice;
use super::words::WORD;
use crate::wire::mpa::Crc;

/// The number of bytes in a step of the loop.
const STEP: usize = 256;
/// The number of bytes in a remainder.
const REMAINDER: usize = 64;
/// The alignment of the accesses to two words at a time, see [`words`](super::words).
const PAIR: usize = 2 * WORD;

/// Exclusive bytes of which the checksum is computed while others are copied.
pub(crate) struct Unchecked<'a> {
    /// The bytes that have not been added to the checksum.
    rest: &'a [u8],
    /// The state of the checksum, if bytes have been added.
    state: Option<u32>,
}

impl<'a> Unchecked<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, state: None }
    }

    /// Returns the checksum of all bytes, if a part of them has been added to it.
    pub(crate) fn finish(self) -> Option<u32> {
        let mut crc = Crc::of_state(self.state?);
        crc.update(self.rest);
        Some(crc.finish())
    }
}

impl Slice {
    /// Appends the slice to `into`, and adds the appended bytes to `crc`. Returns their number.
    pub(crate) fn append_checked(&self, into: &mut Vec<u8>, crc: &mut Crc) -> usize {
        let start = into.len();
        let before = self.before_pair();
        let steps = (self.len() - before) / STEP;
        let words = self.aligned_words(before, steps * STEP).filter(|_| steps > 0 && folds_copies());
        let Some(words) = words else { return self.append_and_add(into, crc) };
        into.reserve(self.len());
        self.part(0, before).append_and_add(into, crc);
        fold_words(words, &mut into.spare_capacity_mut()[..steps * STEP], crc);
        // SAFETY: so many bytes behind the end have just been written.
        unsafe { into.set_len(into.len() + steps * STEP) };
        self.part(before + steps * STEP, STEP).append_and_add(into, crc);
        into.len() - start
    }

    /// Copies `from` to the slice at `at` as [`write`](Slice::write) does, and adds about as many of the bytes of `other` to their checksum.
    pub(crate) fn write_beside(&self, at: usize, from: &[u8], other: &mut Unchecked<'_>) -> usize {
        let part = self.part(at, from.len());
        let before = part.before_pair();
        let steps = (part.len() - before).min(other.rest.len()) / STEP;
        let may_fold = steps > 0 && folds_copies() && self.is_writable();
        let words = part.aligned_words(before, steps * STEP).filter(|_| may_fold);
        let Some(words) = words else { return self.write(at, from) };
        let (first, from) = from[..part.len()].split_at(before);
        let (body, last) = from.split_at(steps * STEP);
        let (beside, rest) = other.rest.split_at(steps * STEP);
        part.write(0, first);
        let mut crc = other.state.map_or_else(Crc::new, Crc::of_state);
        write_words(words, body, beside, &mut crc);
        part.write(before + body.len(), last);
        (other.rest, other.state) = (rest, Some(crc.state()));
        part.len()
    }

    /// Appends the slice to `into`, and then adds the appended bytes to `crc`. Returns their number.
    fn append_and_add(&self, into: &mut Vec<u8>, crc: &mut Crc) -> usize {
        let start = into.len();
        self.append_to(self.len(), into);
        crc.update(&into[start..]);
        into.len() - start
    }

    /// Returns the number of bytes before the first address that is a multiple of 16.
    fn before_pair(&self) -> usize {
        if self.is_host_mapped() { (self.address(0).addr().wrapping_neg() % PAIR).min(self.len()) } else { 0 }
    }
}

/// Returns whether the checksum of a copy is computed in one pass with it.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) fn folds_copies() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
}

/// Returns whether the checksum of a copy is computed in one pass with it.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) fn folds_copies() -> bool {
    false
}

/// Copies words, which begin at a multiple of 16 bytes and are a positive number of steps, to as many bytes, and adds them to `crc`. The
/// processor can do it.
fn fold_words(words: &[AtomicU64], into: &mut [MaybeUninit<u8>], crc: &mut Crc) {
    let (steps, from, to) = (into.len() / STEP, words.as_ptr().cast(), into.as_mut_ptr().cast());
    debug_assert!(folds_copies() && steps > 0 && words.len() * WORD == into.len());
    // SAFETY: both ranges have so many steps. The words are atomics, which may be read at any time, and the bytes are exclusive.
    continue_behind(crc, |state, remainder| unsafe { fold(from, to, steps, state, remainder) });
}

/// Copies bytes to as many words, which are as those of [`fold_words`], and adds as many other bytes to `crc`.
fn write_words(words: &[AtomicU64], from: &[u8], beside: &[u8], crc: &mut Crc) {
    let (steps, to) = (from.len() / STEP, words.as_ptr().cast::<u8>().cast_mut());
    debug_assert!(
        folds_copies() && steps > 0 && words.len() * WORD == from.len() && from.len() == beside.len()
    );
    let (from, beside) = (from.as_ptr(), beside.as_ptr());
    // SAFETY: all three ranges have so many steps. The words are atomics, which may be written through a shared reference, and the others
    // are exclusive bytes.
    continue_behind(crc, |state, remainder| unsafe {
        fold_beside(from, to, beside, steps, state, remainder)
    });
}

/// Adds what `fold` reads, from the state of `crc` to a remainder, to `crc`.
fn continue_behind(crc: &mut Crc, fold: impl FnOnce(u32, &mut [u8; REMAINDER])) {
    let mut remainder = [0; REMAINDER];
    fold(crc.state(), &mut remainder);
    *crc = Crc::of_state(0);
    crc.update(&remainder);
}

/// The powers of x that move 16 bytes 256 bytes ahead, and those that move them 64 bytes ahead: x^(8n+31) for the first and x^(8n-33)
/// for the last eight bytes, modulo the polynomial, with reflected bits.
#[cfg(all(target_arch = "x86_64", not(miri)))]
static POWERS: [u64; 4] = [0xdcb1_7aa4, 0xb9e0_2b86, 0x740e_ef02, 0x9e4a_ddf8];

/// Copies 64 bytes of shared words, two at a time, to exclusive bytes, and to `zmm$line`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! copy_out {
    ($line:literal, $at:literal) => {
        concat!(
            "vmovdqa xmm",
            $line,
            ", [{from} + ",
            $at,
            "]\n",
            "vmovdqa xmm12, [{from} + ",
            $at,
            " + 16]\n",
            "vmovdqa xmm13, [{from} + ",
            $at,
            " + 32]\n",
            "vmovdqa xmm14, [{from} + ",
            $at,
            " + 48]\n",
            "vinserti32x4 zmm",
            $line,
            ", zmm",
            $line,
            ", xmm12, 1\n",
            "vinserti32x4 zmm13, zmm13, xmm14, 1\n",
            "vinserti64x4 zmm",
            $line,
            ", zmm",
            $line,
            ", ymm13, 1\n",
            "vmovdqu64 [{to} + ",
            $at,
            "], zmm",
            $line,
            "\n",
        )
    };
}

/// Copies 64 exclusive bytes to shared words, two at a time, and loads as many other bytes to `zmm$line`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! copy_in {
    ($line:literal, $at:literal) => {
        concat!(
            "vmovdqu64 zmm",
            $line,
            ", [{beside} + ",
            $at,
            "]\n",
            "vmovdqu xmm12, [{from} + ",
            $at,
            "]\n",
            "vmovdqu xmm13, [{from} + ",
            $at,
            " + 16]\n",
            "vmovdqa [{to} + ",
            $at,
            "], xmm12\n",
            "vmovdqa [{to} + ",
            $at,
            " + 16], xmm13\n",
            "vmovdqu xmm12, [{from} + ",
            $at,
            " + 32]\n",
            "vmovdqu xmm13, [{from} + ",
            $at,
            " + 48]\n",
            "vmovdqa [{to} + ",
            $at,
            " + 32], xmm12\n",
            "vmovdqa [{to} + ",
            $at,
            " + 48], xmm13\n",
        )
    };
}

/// Multiplies the remainder in `zmm$of` by the powers in zmm15, and adds `zmm$line`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! fold_line {
    ($of:literal, $line:literal) => {
        concat!(
            "vpclmulqdq zmm12, zmm",
            $of,
            ", zmm15, 0x00\n",
            "vpclmulqdq zmm",
            $of,
            ", zmm",
            $of,
            ", zmm15, 0x11\n",
            "vpternlogq zmm",
            $of,
            ", zmm12, zmm",
            $line,
            ", 0x96\n",
        )
    };
}

/// The loop over steps, whose lines `$copy` copies.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! fold_steps {
    ($copy:ident, $from:expr, $to:expr, $beside:expr, $steps:expr, $state:expr, $remainder:expr) => {
        std::arch::asm!(
            "vbroadcasti32x4 zmm15, [{powers}]",
            $copy!("0", "0"),
            $copy!("1", "64"),
            $copy!("2", "128"),
            $copy!("3", "192"),
            // What came before is added to the first four bytes.
            "vmovd xmm12, {state:e}",
            "vpxorq zmm0, zmm0, zmm12",
            "jmp 3f",
            "2:",
            $copy!("4", "0"),
            fold_line!("0", "4"),
            $copy!("5", "64"),
            fold_line!("1", "5"),
            $copy!("6", "128"),
            fold_line!("2", "6"),
            $copy!("7", "192"),
            fold_line!("3", "7"),
            "3:",
            "add {from}, 256",
            "add {to}, 256",
            "add {beside}, 256",
            "dec {steps}",
            "jnz 2b",
            "vbroadcasti32x4 zmm15, [{powers} + 16]",
            fold_line!("0", "1"),
            fold_line!("0", "2"),
            fold_line!("0", "3"),
            "vmovdqu64 [{remainder}], zmm0",
            "vzeroupper",
            from = inout(reg) $from => _,
            to = inout(reg) $to => _,
            beside = inout(reg) $beside => _,
            steps = inout(reg) $steps => _,
            state = in(reg) $state,
            powers = in(reg) &raw const POWERS,
            remainder = in(reg) $remainder,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        )
    };
}

/// Copies steps of 256 bytes from shared words at a multiple of 16 bytes to exclusive bytes, and returns the remainder of them behind
/// bytes with the remainder `state`.
///
/// # Safety
/// The processor has AVX-512F and VPCLMULQDQ. One range may be read and the other one written; they do not overlap. `steps` is not 0.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn fold(from: *const u8, to: *mut u8, steps: usize, state: u32, remainder: &mut [u8; REMAINDER]) {
    // SAFETY: the instructions read and write `steps` times 256 bytes of the two ranges, read the four powers, and write the 64 bytes of
    // the remainder. To the shared side they do what relaxed atomic loads of each word do, see [`words`](super::words).
    unsafe { fold_steps!(copy_out, from, to, 0_usize, steps, state, remainder) };
}

/// Copies steps of 256 bytes from exclusive bytes to shared words at a multiple of 16 bytes, and returns the remainder of as many bytes
/// `beside` behind bytes with the remainder `state`.
///
/// # Safety
/// As [`fold`]; the bytes beside may be read, and do not overlap the words.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn fold_beside(
    from: *const u8,
    to: *mut u8,
    beside: *const u8,
    steps: usize,
    state: u32,
    remainder: &mut [u8; REMAINDER],
) {
    // SAFETY: as in `fold`, with reads of a third range, and stores to the shared side that do what relaxed atomic ones do.
    unsafe { fold_steps!(copy_in, from, to, beside, steps, state, remainder) };
}

/// Does nothing: [`folds_copies`] is false on this target.
///
/// # Safety
/// Always safe.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn fold(_: *const u8, _: *mut u8, _: usize, _: u32, _: &mut [u8; REMAINDER]) {}

/// Does nothing: [`folds_copies`] is false on this target.
///
/// # Safety
/// Always safe.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn fold_beside(_: *const u8, _: *mut u8, _: *const u8, _: usize, _: u32, _: &mut [u8; REMAINDER]) {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Owned;
    use crate::wire::mpa::crc32c;

    /// Makes bytes without a pattern.
    fn noise(length: usize) -> Vec<u8> {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed as u8
        };
        (0..length).map(|_| next()).collect()
    }

    /// Appends slices behind `before`, and checks the bytes and the checksum of all of it.
    fn check(before: &[u8], slices: &[Slice], expected: &[u8]) {
        let mut crc = Crc::new();
        crc.update(before);
        let mut into = before.to_vec();
        for slice in slices {
            assert_eq!(slice.append_checked(&mut into, &mut crc), slice.len());
        }
        assert!(into[before.len()..] == *expected, "{before:?} {slices:?}");
        assert_eq!(crc.finish(), crc32c(&into), "{before:?} {slices:?}");
    }

    // The bytes behind which a slice is appended are the seed.
    #[test]
    fn every_length_and_alignment_has_the_checksum_of_the_library() {
        const LONGEST: usize = 4096;
        let bytes = noise(LONGEST + 64);
        let shared = Owned::copied(&[&bytes]).expect("memory").share();
        for length in 0..=LONGEST {
            for offset in 0..PAIR {
                let slice = shared.slice(offset, length).expect("in bounds");
                check(&bytes[..length % 19], &[slice], &bytes[offset..offset + length]);
            }
        }
    }

    // A payload may consist of several slices, cut anywhere.
    #[test]
    fn slices_have_one_checksum() {
        let bytes = noise(70_000);
        let shared = Owned::copied(&[&bytes]).expect("memory").share();
        let mut cuts = noise(300).into_iter();
        let mut cut =
            || usize::from(cuts.next().expect("enough")) * 257 + usize::from(cuts.next().expect("enough"));
        for _ in 0..50 {
            let mut ends = [cut(), cut(), bytes.len()].map(|end| end.min(bytes.len()));
            ends.sort_unstable();
            let mut start = 0;
            let slices = ends.map(|end| {
                let first = std::mem::replace(&mut start, end);
                shared.slice(first, end - first)
            });
            check(b"a header", &slices.map(|slice| slice.expect("in bounds")), &bytes);
        }
    }

    // What is written is checked already, and the checksum is that of the other bytes, of any length.
    #[test]
    fn writes_beside_a_checksum_change_no_other_bytes() {
        let bytes = noise(4 * 4096);
        let shared = Owned::zeroed(4096 + 64).expect("memory").share();
        for length in (0..=4096).step_by(7) {
            for (other, offset) in
                [(length, 0), (length + 16, 5), (length / 2, 8), (0, 1), (4096, 16), (300, 31)]
            {
                shared.clone().whole().write(0, &[0xee; 4096 + 64]);
                let slice = shared.slice(offset, length + 1).expect("in bounds");
                let beside = &bytes[length + offset..][..other];
                let mut unchecked = Unchecked::new(beside);
                assert_eq!(slice.write_beside(1, &bytes[..length + 9], &mut unchecked), length);
                let has_begun = folds_copies() && (length / STEP).min(other / STEP) > 1;
                let checksum = unchecked.finish();
                assert!(
                    checksum.map_or(!has_begun, |checksum| checksum == crc32c(beside)),
                    "{length} {other} {offset}"
                );
                let mut all = [0; 4096 + 64];
                shared.clone().whole().read(0, &mut all);
                let (before, rest) = all.split_at(offset + 1);
                assert!(rest[..length] == bytes[..length], "{length} {other} {offset}");
                assert!(
                    before.iter().chain(&rest[length..]).all(|byte| *byte == 0xee),
                    "{length} {other} {offset}"
                );
            }
        }
        let frozen = Owned::zeroed(4096).expect("memory").freeze();
        let slice = crate::memory::Shared(frozen.0.clone()).whole();
        let mut unchecked = Unchecked::new(&bytes);
        assert_eq!(slice.write_beside(0, &bytes[..4096], &mut unchecked), 0);
        assert!(*frozen == [0; 4096] && unchecked.finish().is_none());
    }

    // An allocation of the program may begin anywhere, and bytes beside its whole words have other owners.
    #[test]
    fn lent_memory_is_checked_within_its_bounds() {
        let bytes = noise(1500);
        for skip in 0..17 {
            for end in 1500 - 17..=1500 {
                let (memory, _returned) = Owned::lend(bytes::BytesMut::from(&bytes[..end]).split_off(skip));
                check(b"", &[memory.share().whole()], &bytes[skip..end]);
            }
        }
    }

    // A checksum of other bytes than were copied would end the connection (RFC 5044 section 4.4).
    #[test]
    fn checksum_is_that_of_the_copy_while_memory_changes() {
        use std::sync::atomic::{AtomicBool, Ordering};

        let shared = Owned::zeroed(16 * 1024).expect("memory").share();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let slice = shared.clone().whole();
                for round in 0_u32.. {
                    slice.write(0, &[round as u8; 16 * 1024]);
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            for _ in 0..2_000 {
                let (mut into, mut crc) = (Vec::new(), Crc::new());
                shared.clone().whole().append_checked(&mut into, &mut crc);
                assert_eq!(crc.finish(), crc32c(&into));
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
