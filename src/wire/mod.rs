//! iWARP bytes to values and back: MPA, DDP and RDMAP frames.
//!
//! No state, no clock and no panic on any bytes. What is encoded follows the RFCs (5044, 6581, 5041, 5040, 7306);
//! what is decoded also covers what the Linux soft-iWARP driver (siw) is known to send instead.

pub(crate) mod crc;
pub(crate) mod ddp;
pub(crate) mod extensions;
pub(crate) mod mpa;
pub(crate) mod rdmap;

/// The `N` bytes at `at`, or `None` when the input ends before them.
fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}
