//! Encoding and decoding of iWARP frames: MPA, DDP and RDMAP.
//!
//! The functions have no state and no clock, and do not panic on any bytes. Encoded frames follow the RFCs (5044, 6581,
//! 5041, 5040, 7306). Decoding also accepts the known deviations of the Linux soft-iWARP driver (siw).

pub(crate) mod ddp;
pub(crate) mod extensions;
pub(crate) mod mpa;
pub(crate) mod rdmap;

/// Returns the `N` bytes at `at`, `None` if the input is shorter.
fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}
