// SPDX-License-Identifier: GPL-3.0-only
//! An async-rdma queue pair's address, as it travels in private data.
//!
//! async-rdma leaves it to its user how a [`QueuePairEndpoint`] gets to the peer. Here it is 22 bytes, in network
//! byte order: the queue pair number, the LID (zero on Ethernet), the GID.

use std::io;

use async_rdma::{Gid, QueuePairEndpoint, QueuePairEndpointBuilder};

/// How long the address is.
pub(crate) const LENGTH: usize = 4 + 2 + 16;

/// The address as private data.
pub(crate) fn encode(endpoint: &QueuePairEndpoint) -> [u8; LENGTH] {
    let mut out = [0; LENGTH];
    out[..4].copy_from_slice(&endpoint.qp_num().to_be_bytes());
    out[4..6].copy_from_slice(&endpoint.lid().to_be_bytes());
    out[6..].copy_from_slice(endpoint.gid().as_raw());
    out
}

/// The address in private data. What follows it is ignored: InfiniBand and RoCE pad private data with zeros.
///
/// # Errors
/// There is less than an address.
pub(crate) fn decode(data: &[u8]) -> io::Result<QueuePairEndpoint> {
    let (number, rest) = data.split_first_chunk().ok_or_else(too_short)?;
    let (lid, rest) = rest.split_first_chunk().ok_or_else(too_short)?;
    let (gid, _) = rest.split_first_chunk().ok_or_else(too_short)?;
    QueuePairEndpointBuilder::default()
        .qp_num(u32::from_be_bytes(*number))
        .lid(u16::from_be_bytes(*lid))
        .gid(Gid::from_raw(*gid))
        .build()
        .map_err(io::Error::other)
}

/// The peer sent something else.
fn too_short() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the private data holds no address of a queue pair")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address in which no two bytes are the same.
    const BYTES: [u8; LENGTH] =
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21];

    #[test]
    fn an_address_survives_with_and_without_padding() {
        let endpoint = decode(&BYTES).expect("an address");
        assert_eq!((*endpoint.qp_num(), *endpoint.lid()), (0x0001_0203, 0x0405));
        assert_eq!(endpoint.gid().as_raw()[..], BYTES[6..]);
        assert_eq!(encode(&endpoint), BYTES);
        let mut padded = BYTES.to_vec();
        padded.resize(196, 0);
        assert_eq!(decode(&padded).expect("an address"), endpoint);
    }

    #[test]
    fn less_than_an_address_is_an_error() {
        for length in 0..LENGTH {
            let error = decode(&BYTES[..length]).expect_err("too short");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}
