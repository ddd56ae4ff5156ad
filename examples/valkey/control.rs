//! Control messages: 32 bytes each, big-endian, by Send.

use bytes::{Buf, BufMut};
use tokio_rdma::RemoteRegion;
use tokio_rdma::types::RemoteKey;

/// The length of every control message.
pub(crate) const LENGTH: usize = 32;

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// From a client: asks for the features of the server. From a server: its features, of which none is defined yet.
    GetServerFeature(u64),
    /// The features that a client wants.
    SetClientFeature(u64),
    /// A sign of life.
    Keepalive,
    /// The ring of the sender, which is empty: the peer writes its next bytes to the start of this memory.
    RegisterXferMemory(RemoteRegion),
}

impl Control {
    pub(crate) fn encode(self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        let (opcode, features) = match self {
            Self::GetServerFeature(features) => (0, features),
            Self::SetClientFeature(features) => (1, features),
            Self::Keepalive => (2, 0),
            Self::RegisterXferMemory(_) => (3, 0),
        };
        (&mut bytes[..2]).put_u16(opcode);
        (&mut bytes[24..]).put_u64(features);
        if let Self::RegisterXferMemory(ring) = self {
            let mut place = &mut bytes[16..];
            place.put_u64(ring.address());
            place.put_u32(ring.len());
            place.put_u32(ring.key().0);
        }
        bytes
    }

    /// Returns `None` if it is no control message.
    pub(crate) fn decode(bytes: &[u8; LENGTH]) -> Option<Self> {
        let features = (&bytes[24..]).get_u64();
        Some(match (&bytes[..2]).get_u16() {
            0 => Self::GetServerFeature(features),
            1 => Self::SetClientFeature(features),
            2 => Self::Keepalive,
            3 => {
                let mut place = &bytes[16..];
                let (address, length, key) = (place.get_u64(), place.get_u32(), place.get_u32());
                Self::RegisterXferMemory(RemoteRegion::new(address, RemoteKey(key), length))
            }
            _ => return None,
        })
    }
}
