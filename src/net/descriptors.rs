//! The descriptors that peers hold before the program has accepted their connections, and after the connections have ended.
//!
//! Peers decide how many of these there are, so all of them together get a share of `RLIMIT_NOFILE`, and the rest is left for the
//! other work of the process. Each step of a connection has a [`Budget`] of its own: peers that fill the places of one step take
//! none of the places of another. Within a budget each [`Holder`], such as a listening socket, has a part that the other
//! holders cannot use up.

use std::collections::BTreeMap;
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit};

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// The most sockets of ended connections whose last bytes are under way.
const MOST_LINGERING: usize = 256;

/// The limit of the process is asked for once in this many uses of a budget: a system call for each connection is not worth what a few
/// connections of the last limit take.
const USES: u32 = 16;

/// The budgets are given in parts of this size.
const PARTS: usize = 32;

/// The budgets of a host.
#[derive(Debug)]
pub(crate) struct Descriptors {
    /// Peers from their TCP connection until their request: by listening socket.
    pub(crate) half_open: Arc<Budget>,
    /// Complete requests that wait for the program or for a handshake: by listening socket.
    pub(crate) requested: Arc<Budget>,
    /// Handshakes, and connections that the program has not accepted yet: by acceptor.
    pub(crate) handshakes: Arc<Budget>,
    /// TLS handshakes: by TLS listener.
    #[cfg_attr(
        not(feature = "rustls"),
        allow(dead_code, reason = "only the listener of the feature `rustls` has holders of it")
    )]
    pub(crate) tls: Arc<Budget>,
    /// Peers that may still read their refusal: by adapter.
    pub(crate) refused: Arc<Budget>,
    /// Sockets of ended connections whose last bytes are under way.
    pub(crate) ended: Arc<Holder>,
}

impl Descriptors {
    /// Creates the budgets of a host with so many descriptors.
    pub(crate) fn new(limit: fn() -> usize) -> Self {
        let budget = |parts, most| {
            let (known, uses) = (AtomicUsize::new(usize::MAX), AtomicU32::new(0));
            Arc::new(Budget { limit, known, uses, parts, most, state: Mutex::default() })
        };
        // Before the program has accepted: less than half. Together with the last: less than five eighths.
        Self {
            half_open: budget(4, usize::MAX),
            requested: budget(4, usize::MAX),
            handshakes: budget(4, usize::MAX),
            tls: budget(2, usize::MAX),
            refused: budget(1, usize::MAX),
            ended: budget(4, MOST_LINGERING).holder(),
        }
    }

    /// Creates the budgets of this process.
    pub(crate) fn of_process() -> Self {
        // A process may change its limit at any time.
        Self::new(|| {
            let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(limit, _)| limit);
            usize::try_from(limit).unwrap_or(usize::MAX)
        })
    }
}

/// A number of descriptors for one purpose, shared by its holders.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: fn() -> usize,
    /// The limit when it was last asked for, and the number of uses since.
    known: AtomicUsize,
    uses: AtomicU32,
    parts: usize,
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// The number of descriptors that each holder has.
    held: BTreeMap<u64, usize>,
}

impl Budget {
    /// Adds a holder.
    pub(crate) fn holder(self: &Arc<Self>) -> Arc<Holder> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.held.insert(number, 0);
        Arc::new(Holder { budget: self.clone(), number, own: AtomicUsize::new(0) })
    }

    /// Returns the number of descriptors of the budget now. It may make a system call, so no lock is held meanwhile.
    fn most(&self) -> usize {
        if self.uses.fetch_add(1, Ordering::Relaxed).is_multiple_of(USES) {
            self.known.store((self.limit)(), Ordering::Relaxed);
        }
        (self.known.load(Ordering::Relaxed) / PARTS).saturating_mul(self.parts).min(self.most)
    }
}

/// One of the holders that share a budget.
#[derive(Debug)]
pub(crate) struct Holder {
    budget: Arc<Budget>,
    number: u64,
    /// The number of descriptors that it has. Written with the lock of the budget.
    own: AtomicUsize,
}

impl Holder {
    /// Returns whether the budget has room for one more of this holder. It always has if this holder has none.
    pub(crate) fn has_room(&self) -> bool {
        self.is_enough(1)
    }

    /// Returns whether the budget suffices if this holder has so many more. The first descriptor takes no lock.
    fn is_enough(&self, more: usize) -> bool {
        let most = self.most(more);
        most == usize::MAX || self.fits(most, &self.budget.state.lock(), more)
    }

    /// Takes a descriptor, whether or not there is room.
    pub(crate) fn hold(self: &Arc<Self>) -> Held {
        self.count(&mut self.budget.state.lock())
    }

    /// Takes a descriptor if there is room.
    pub(crate) fn try_hold(self: &Arc<Self>) -> Option<Held> {
        let most = self.most(1);
        let mut state = self.budget.state.lock();
        self.fits(most, &state, 1).then(|| self.count(&mut state))
    }

    /// Returns the number of descriptors of the budget, or any if this holder has room without it: so many more are its first.
    fn most(&self, more: usize) -> usize {
        if self.own.load(Ordering::Relaxed) + more <= 1 { usize::MAX } else { self.budget.most() }
    }

    fn count(self: &Arc<Self>, state: &mut State) -> Held {
        *state.held.entry(self.number).or_default() += 1;
        self.own.fetch_add(1, Ordering::Relaxed);
        Held(Arc::new(Count { holder: self.clone(), is_released: AtomicBool::new(false) }))
    }

    /// Returns whether a budget of `most` suffices if this holder has so many more. One half of a budget is divided evenly among the
    /// holders, and the other half is for the holders that come first.
    fn fits(&self, most: usize, state: &State, more: usize) -> bool {
        let own = state.held.get(&self.number).map_or(0, |held| held + more);
        if own <= 1 {
            return true;
        }
        let holders = state.held.len().max(1);
        let part = most / 2 / holders;
        let common = most - part * holders;
        let borrowed: usize = state.held.values().map(|held| held.saturating_sub(part)).sum();
        own <= part || borrowed + more.min(own - part) <= common
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.budget.state.lock().held.remove(&self.number);
    }
}

/// A descriptor that is counted, until it is released or the last clone of this is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Held(Arc<Count>);

#[derive(Debug)]
struct Count {
    holder: Arc<Holder>,
    is_released: AtomicBool,
}

impl Held {
    /// Returns whether the budget suffices for all that this holder has.
    pub(crate) fn fits(&self) -> bool {
        self.0.holder.is_enough(0)
    }

    /// Returns whether the budget has room for one more of this holder.
    pub(crate) fn has_room(&self) -> bool {
        self.0.holder.has_room()
    }

    /// Ends the counting: the program has the descriptor.
    pub(crate) fn release(&self) {
        self.0.release();
    }
}

impl Count {
    fn release(&self) {
        if self.is_released.swap(true, Ordering::Relaxed) {
            return;
        }
        let holder = &self.holder;
        if let Some(held) = holder.budget.state.lock().held.get_mut(&holder.number) {
            *held -= 1;
            holder.own.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes descriptors while there is room.
    fn fill(holder: &Arc<Holder>) -> Vec<Held> {
        std::iter::from_fn(|| holder.try_hold()).collect()
    }

    #[test]
    fn all_budgets_leave_the_process_three_eighths() {
        let Descriptors { half_open, requested, handshakes, tls, refused, ended } = Descriptors::new(|| 1024);
        let before =
            [&half_open, &requested, &handshakes, &tls, &refused].map(|budget| fill(&budget.holder()));
        let before: usize = before.iter().map(Vec::len).sum();
        assert!(before < 512, "{before}");
        assert_eq!((before, fill(&ended).len()), (480, 128));
        assert_eq!(fill(&Descriptors::new(|| 1 << 20).ended).len(), MOST_LINGERING);
    }

    #[test]
    fn each_holder_has_a_reserved_share() {
        let budget = Descriptors::new(|| 1024).half_open;
        let alone = budget.holder();
        assert_eq!(fill(&alone).len(), 128);
        let (first, second) = (budget.holder(), budget.holder());
        // A third of one half is 21, and 65 are left.
        let many = fill(&first);
        assert_eq!((many.len(), fill(&second).len()), (21 + 65, 21));
        drop((many, alone));
        assert_eq!(fill(&second).len(), 32 + 64);
    }

    #[test]
    fn changed_limit_is_noticed() {
        static LIMIT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(1024);
        let holder = Descriptors::new(|| LIMIT.load(Ordering::Relaxed)).half_open.holder();
        let held = fill(&holder);
        for (limit, has_room) in [(2048, true), (1024, false)] {
            LIMIT.store(limit, Ordering::Relaxed);
            assert!((0..USES).any(|_| holder.has_room() == has_room), "{} are held", held.len());
        }
    }

    #[test]
    fn one_is_always_allowed_and_more_are_counted() {
        let holder = Descriptors::new(|| 0).requested.holder();
        let one = holder.try_hold().expect("it has none");
        assert!(one.fits() && !holder.has_room());
        let two = holder.hold();
        assert!(!two.fits());
        let socket = two.clone();
        drop(two);
        assert!(!one.fits(), "the socket is open");
        socket.release();
        assert!(one.fits());
        drop(socket);
        assert!(holder.try_hold().is_none(), "released once");
    }
}
