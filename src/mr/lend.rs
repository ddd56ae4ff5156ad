//! The memory of a request while it is lent to a provider: one buffer, a list of them, of one type or several, or none.

use smallvec::SmallVec;

use crate::inflight::{LentList, Payload, sealed};
use crate::memory::{Owned, Slice};
use crate::types::Access;

/// Memory in one piece, which is one entry of a scatter-gather list.
pub trait SgEntry: Sized + Send + 'static {
    /// The part that stays with the future while the memory is lent.
    type State: Send + Unpin + 'static;

    /// Returns whether a request of the adapter with this domain may use it in this way.
    fn allows(&self, domain: u64, access: Access) -> bool;

    /// Returns the number of bytes that it lends.
    fn length(&self) -> usize;

    /// Splits the entry into the memory for the provider and the state that stays with the future.
    fn lend(self) -> Lent<Self::State>;

    /// Joins the memory and the state to the entry again.
    fn reclaim(lent: Lent<Self::State>) -> Self;
}

/// The memory of an [`SgEntry`] for the provider, and the state that stays with the future.
pub struct Lent<T>(pub(super) Slice, pub(super) T);

/// Returns an empty slice, for each piece that is missing in a list that came back: a device that may still write to
/// the memory keeps it.
fn nothing() -> Slice {
    Owned::empty().share().whole()
}

impl<S: SgEntry> sealed::WorkBuffer for S {
    type State = S::State;

    fn allows(&self, domain: u64, access: Access) -> bool {
        SgEntry::allows(self, domain, access)
    }

    fn length(&self) -> usize {
        SgEntry::length(self)
    }

    fn lend(self) -> LentList<S::State> {
        let Lent(slice, state) = SgEntry::lend(self);
        LentList { payload: Payload::from_buf([slice]), state }
    }

    fn reclaim(list: LentList<S::State>) -> Self {
        let slice = match list.payload.into_inner() {
            Ok([slice]) => slice,
            Err(mut payload) => payload.pop().unwrap_or_else(nothing),
        };
        SgEntry::reclaim(Lent(slice, list.state))
    }
}

/// The states of the entries of a list.
type States<S> = SmallVec<[<S as SgEntry>::State; 4]>;

impl<S: SgEntry> sealed::WorkBuffer for Vec<S> {
    type State = States<S>;

    fn allows(&self, domain: u64, access: Access) -> bool {
        self.iter().all(|entry| SgEntry::allows(entry, domain, access))
    }

    fn length(&self) -> usize {
        self.iter().map(SgEntry::length).sum()
    }

    fn lend(self) -> LentList<States<S>> {
        let (payload, state) = self.into_iter().map(S::lend).map(|Lent(slice, state)| (slice, state)).unzip();
        LentList { payload, state }
    }

    fn reclaim(list: LentList<States<S>>) -> Self {
        let slices = list.payload.into_iter().chain(std::iter::repeat_with(nothing));
        list.state.into_iter().zip(slices).map(|(state, slice)| S::reclaim(Lent(slice, state))).collect()
    }
}

impl<S: SgEntry, const N: usize> sealed::WorkBuffer for [S; N] {
    type State = [S::State; N];

    fn allows(&self, domain: u64, access: Access) -> bool {
        self.iter().all(|entry| SgEntry::allows(entry, domain, access))
    }

    fn length(&self) -> usize {
        self.iter().map(SgEntry::length).sum()
    }

    fn lend(self) -> LentList<[S::State; N]> {
        let mut payload = Payload::new();
        let state = self.map(|entry| {
            let Lent(slice, state) = entry.lend();
            payload.push(slice);
            state
        });
        LentList { payload, state }
    }

    fn reclaim(list: LentList<[S::State; N]>) -> Self {
        let mut slices = list.payload.into_iter();
        list.state.map(|state| S::reclaim(Lent(slices.next().unwrap_or_else(nothing), state)))
    }
}

/// The bytes of an inline request. They were copied when the request was posted, and its future returns none.
#[derive(Debug)]
pub struct Inline {
    _private: (),
}

impl sealed::WorkBuffer for Inline {
    type State = ();

    fn allows(&self, _domain: u64, access: Access) -> bool {
        access.is_empty()
    }

    fn length(&self) -> usize {
        0
    }

    fn lend(self) -> LentList<()> {
        LentList { payload: Payload::new(), state: () }
    }

    fn reclaim(_list: LentList<()>) -> Self {
        // The memory of a copy has no further use.
        Self { _private: () }
    }
}

/// No memory: a message of 0 bytes, or a receive for one.
impl sealed::WorkBuffer for () {
    type State = ();

    fn allows(&self, _domain: u64, _access: Access) -> bool {
        true
    }

    fn length(&self) -> usize {
        0
    }

    fn lend(self) -> LentList<()> {
        LentList { payload: Payload::new(), state: () }
    }

    fn reclaim(_list: LentList<()>) -> Self {}
}
