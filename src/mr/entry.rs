//! An entry of a scatter-gather list whose entries are of several types.

use super::buffer::{Buffer, BufferPart};
use super::lend::{Lent, SgEntry};
use super::pool::PoolBytes;
use super::region::{DmaBufSlice, RegionSlice};
use crate::types::Access;

/// One entry of a scatter-gather list with entries of several types (`ND2_SGE`, `ibv_sge`).
///
/// A list with entries of one type needs no conversion: `Vec<Buffer>`, `[RegionSlice; 3]`.
///
/// ```
/// # async fn example(
/// #     queue_pair: &tokio_rdma::QueuePair,
/// #     header: tokio_rdma::Buffer,
/// #     region: &tokio_rdma::Region,
/// # ) -> std::io::Result<()> {
/// use tokio_rdma::mr::Entry;
///
/// // One message: a header from a buffer and a body from a region.
/// let body = region.slice(4096..8192)?;
/// let (result, _entries) = queue_pair.send(vec![Entry::from(header), body.into()])?.await;
/// println!("sent {} bytes", result?.bytes);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Entry {
    /// A whole buffer.
    Buffer(Buffer),
    /// A part of a buffer.
    BufferPart(BufferPart),
    /// A part of a region.
    RegionSlice(RegionSlice),
    /// Bytes in the memory of a pool, as the source of a send or write.
    PoolBytes(PoolBytes),
    /// A part of the memory of another device.
    DmaBufSlice(DmaBufSlice),
}

/// Forwards to the type of each variant, which has the name of the variant.
macro_rules! forward {
    ($($kind:ident),*) => {
        $(impl From<$kind> for Entry {
            fn from(entry: $kind) -> Self {
                Self::$kind(entry)
            }
        })*

        /// The parts of an [`Entry`] that stay with the future.
        pub enum EntryState {
            $(#[doc = "See the variant of `Entry`."] $kind(<$kind as SgEntry>::State),)*
        }

        impl SgEntry for Entry {
            type State = EntryState;

            fn allows(&self, domain: u64, access: Access) -> bool {
                match self {
                    $(Self::$kind(entry) => entry.allows(domain, access),)*
                }
            }

            fn length(&self) -> usize {
                match self {
                    $(Self::$kind(entry) => entry.length(),)*
                }
            }

            fn lend(self) -> Lent<EntryState> {
                match self {
                    $(Self::$kind(entry) => {
                        let Lent(slice, state) = entry.lend();
                        Lent(slice, EntryState::$kind(state))
                    })*
                }
            }

            fn reclaim(Lent(slice, state): Lent<EntryState>) -> Self {
                match state {
                    $(EntryState::$kind(state) => Self::$kind($kind::reclaim(Lent(slice, state))),)*
                }
            }
        }
    };
}

forward!(Buffer, BufferPart, RegionSlice, PoolBytes, DmaBufSlice);
