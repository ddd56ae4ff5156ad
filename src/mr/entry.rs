//! Scatter-gather lists: memory in one piece, and several pieces of any kinds.

use smallvec::SmallVec;

use super::buffer::{Buffer, BufferPart};
use super::dmabuf::DmaBufSlice;
use super::pool::PoolBytes;
use super::region::RegionSlice;
use crate::flight::{Lender, Parts, Payload};
use crate::memory::{Owned, Slice};
use crate::types::Access;

/// Memory in one piece, which is one entry of a scatter-gather list.
pub trait Single: Sized + Send + 'static {
    /// What it needs to be put together again.
    type Rest: Send + Unpin + 'static;

    /// Whether a request of the adapter with this domain may use it in this way.
    fn allows(&self, domain: u64, access: Access) -> bool;

    /// How many bytes it lends.
    fn length(&self) -> usize;

    /// Takes it apart.
    fn lend(self) -> Piece<Self::Rest>;

    /// Puts it together again.
    fn reclaim(piece: Piece<Self::Rest>) -> Self;
}

/// A [`Single`] taken apart for its time with a provider.
pub struct Piece<T> {
    pub(super) slice: Slice,
    pub(super) rest: T,
}

/// One piece of a list that came back with fewer than were lent, which no provider does.
fn nothing() -> Slice {
    Owned::empty().share().whole()
}

impl<S: Single> Lender for S {
    type Rest = S::Rest;

    fn allows(&self, domain: u64, access: Access) -> bool {
        Single::allows(self, domain, access)
    }

    fn length(&self) -> usize {
        Single::length(self)
    }

    fn lend(self) -> Parts<S::Rest> {
        let Piece { slice, rest } = Single::lend(self);
        Parts { payload: Payload::from_buf([slice]), rest }
    }

    fn reclaim(mut parts: Parts<S::Rest>) -> Self {
        let slice = parts.payload.pop().unwrap_or_else(nothing);
        Single::reclaim(Piece { slice, rest: parts.rest })
    }
}

/// The rests of a list.
type Rests<S> = SmallVec<[<S as Single>::Rest; 4]>;

impl<S: Single> Lender for Vec<S> {
    type Rest = Rests<S>;

    fn allows(&self, domain: u64, access: Access) -> bool {
        self.iter().all(|single| Single::allows(single, domain, access))
    }

    fn length(&self) -> usize {
        self.iter().map(Single::length).sum()
    }

    fn lend(self) -> Parts<Rests<S>> {
        let (payload, rest) =
            self.into_iter().map(|single| single.lend()).map(|Piece { slice, rest }| (slice, rest)).unzip();
        Parts { payload, rest }
    }

    fn reclaim(parts: Parts<Rests<S>>) -> Self {
        let slices = parts.payload.into_iter().chain(std::iter::repeat_with(nothing));
        parts.rest.into_iter().zip(slices).map(|(rest, slice)| S::reclaim(Piece { slice, rest })).collect()
    }
}

impl<S: Single, const N: usize> Lender for [S; N] {
    type Rest = [S::Rest; N];

    fn allows(&self, domain: u64, access: Access) -> bool {
        self.iter().all(|single| Single::allows(single, domain, access))
    }

    fn length(&self) -> usize {
        self.iter().map(Single::length).sum()
    }

    fn lend(self) -> Parts<[S::Rest; N]> {
        let mut payload = Payload::new();
        let rest = self.map(|single| {
            let Piece { slice, rest } = single.lend();
            payload.push(slice);
            rest
        });
        Parts { payload, rest }
    }

    fn reclaim(parts: Parts<[S::Rest; N]>) -> Self {
        let mut slices = parts.payload.into_iter();
        parts.rest.map(|rest| {
            let slice = slices.next().unwrap_or_else(nothing);
            S::reclaim(Piece { slice, rest })
        })
    }
}

/// Declares [`Entry`], and what its pieces are.
macro_rules! entries {
    ($($(#[$doc:meta])* $kind:ident($single:ident),)*) => {
        /// One entry of a scatter-gather list whose entries are not all of one kind (`ND2_SGE`).
        ///
        /// A list that is can be sent as it is: `Vec<Buffer>`, `[RegionSlice; 3]`.
        ///
        /// ```
        /// # async fn example(
        /// #     queue_pair: &tokio_rdma::QueuePair,
        /// #     header: tokio_rdma::Buffer,
        /// #     region: &tokio_rdma::Region,
        /// # ) -> std::io::Result<()> {
        /// use tokio_rdma::mr::Entry;
        ///
        /// // A header from here, and a body from there: one message.
        /// let body = region.slice(4096..8192)?;
        /// let (outcome, _entries) = queue_pair.send(vec![Entry::from(header), body.into()])?.await;
        /// println!("{} bytes sent", outcome?.bytes);
        /// # Ok(())
        /// # }
        /// ```
        #[derive(Debug)]
        #[non_exhaustive]
        pub enum Entry {
            $($(#[$doc])* $kind($single),)*
        }

        $(impl From<$single> for Entry {
            fn from(single: $single) -> Self {
                Self::$kind(single)
            }
        })*

        /// What stays with the future of an [`Entry`].
        pub enum EntryRest {
            $(#[doc = "See the variant of `Entry`."] $kind(<$single as Single>::Rest),)*
        }

        impl Single for Entry {
            type Rest = EntryRest;

            fn allows(&self, domain: u64, access: Access) -> bool {
                match self {
                    $(Self::$kind(single) => Single::allows(single, domain, access),)*
                }
            }

            fn length(&self) -> usize {
                match self {
                    $(Self::$kind(single) => Single::length(single),)*
                }
            }

            fn lend(self) -> Piece<EntryRest> {
                match self {
                    $(Self::$kind(single) => {
                        let Piece { slice, rest } = Single::lend(single);
                        Piece { slice, rest: EntryRest::$kind(rest) }
                    })*
                }
            }

            fn reclaim(Piece { slice, rest }: Piece<EntryRest>) -> Self {
                match rest {
                    $(EntryRest::$kind(rest) => {
                        Self::$kind(<$single as Single>::reclaim(Piece { slice, rest }))
                    })*
                }
            }
        }
    };
}

entries! {
    /// A whole buffer.
    Buffer(Buffer),
    /// A part of one.
    BufferPart(BufferPart),
    /// A part of a region.
    RegionSlice(RegionSlice),
    /// Bytes that are only sent or written from.
    PoolBytes(PoolBytes),
    /// A part of the memory of another device.
    DmaBufSlice(DmaBufSlice),
}
