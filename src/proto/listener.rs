//! The listener: a queue of requests that were not fetched yet, or of callers that wait for one, never of both.
//!
//! ```text
//!  ┌──────┐ bound  ┌───────┐ listen  ┌───────────┐ close  ┌────────┐
//!  │ Idle ├───────▶│ Bound ├────────▶│ Listening ├───────▶│ Closed │   every state: removed ──▶ Dead
//!  └──────┘        └───────┘         └───────────┘        └────────┘
//! ```
//!
//! `R` is a request, as the provider keeps it. The provider refuses each request that this machine returns as
//! refused. The comments name the rows of the state table that are the listener's: P1 to P4.

use std::collections::VecDeque;

use crate::error::StateError;
use crate::status::Status;

/// The most requests that wait unfetched: what a backlog of 0 asks for, and what larger ones are capped to.
///
/// Each of them holds a transport and some hundred bytes, so this also bounds what a flood can occupy.
pub(crate) const MAX_BACKLOG: usize = 1024;

/// The number of queued requests that are checked for life when a request arrives and the queue is full.
const CHECKS: usize = 16;

/// The state of the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// It has no address; a failed Bind leaves it here.
    Idle,
    /// It has an address; a failed Listen leaves it here.
    Bound,
    /// Requests arrive.
    Listening,
    /// Released.
    Closed,
    /// The adapter was removed.
    Dead,
}

/// The name of one pending GetConnectionRequest; in the order in which they were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WaiterId(u64);

/// The answer to GetConnectionRequest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wait<R> {
    /// The request that was the oldest in the queue.
    Ready(R),
    /// One will be [`Delivered`](Arrival::Delivered) to this waiter.
    Pending(WaiterId),
}

/// The destination of a request that arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival<R> {
    /// To this waiter, which waits no more.
    Delivered(WaiterId, R),
    /// Into the queue.
    Queued,
    /// Refused: the backlog is full, or the listener does not listen.
    Refused(R),
}

/// The cause of the end of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The last reference is gone.
    Closed,
    /// The adapter is gone.
    Removed,
}

/// The waiters and requests that are left when a listener ends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Leftovers<R> {
    /// They finish, CANCELED after a close, DEVICE_REMOVED after a removal.
    pub(crate) waiters: Vec<WaiterId>,
    /// They are refused after a close, dropped after a removal.
    pub(crate) requests: Vec<R>,
}

/// One listener.
#[derive(Debug)]
pub(crate) struct Listener<R> {
    state: State,
    backlog: usize,
    /// The requests that were not fetched yet, the oldest first.
    queue: VecDeque<R>,
    /// The place of the request that is checked for life next.
    checked: usize,
    waiters: VecDeque<WaiterId>,
    next_waiter: u64,
}

impl<R> Listener<R> {
    /// Creates a listener without an address.
    pub(crate) fn new() -> Self {
        Self {
            state: State::Idle,
            backlog: 0,
            queue: VecDeque::new(),
            checked: 0,
            waiters: VecDeque::new(),
            next_waiter: 0,
        }
    }

    /// Checks that Bind is allowed now, before the provider reserves an address.
    ///
    /// # Errors
    /// `ADDRESS_ALREADY_ASSOCIATED`, `INVALID_DEVICE_STATE`, `DEVICE_REMOVED`.
    pub(crate) fn may_bind(&self) -> Result<(), Status> {
        match self.state {
            State::Idle => Ok(()),
            State::Bound | State::Listening => Err(Status::ADDRESS_ALREADY_ASSOCIATED),
            State::Closed => Err(Status::INVALID_DEVICE_STATE),
            State::Dead => Err(Status::DEVICE_REMOVED),
        }
    }

    /// Moves to `Bound`: the provider has reserved the address.
    ///
    /// # Errors
    /// As [`may_bind`](Self::may_bind).
    pub(crate) fn bound(&mut self) -> Result<(), Status> {
        self.may_bind()?;
        self.state = State::Bound;
        Ok(())
    }

    /// Checks that Listen is allowed now, before the provider opens its port.
    ///
    /// # Errors
    /// `INVALID_DEVICE_STATE`, `DEVICE_REMOVED`.
    pub(crate) fn may_listen(&self) -> Result<(), Status> {
        match self.state {
            State::Bound => Ok(()),
            State::Idle | State::Listening | State::Closed => Err(Status::INVALID_DEVICE_STATE),
            State::Dead => Err(Status::DEVICE_REMOVED),
        }
    }

    /// Moves to `Listening`: the provider has opened the port. Returns the number of requests that may wait
    /// unfetched, at most [`MAX_BACKLOG`].
    ///
    /// # Errors
    /// As [`may_listen`](Self::may_listen).
    pub(crate) fn listen(&mut self, backlog: usize) -> Result<usize, Status> {
        self.may_listen()?;
        self.backlog = if backlog == 0 { MAX_BACKLOG } else { backlog.min(MAX_BACKLOG) };
        self.state = State::Listening;
        Ok(self.backlog)
    }

    /// Checks that `GetLocalAddress` is valid in this state.
    ///
    /// # Errors
    /// `INVALID_DEVICE_STATE` when it is not listening.
    pub(crate) fn local_address_ready(&self) -> Result<(), StateError> {
        if self.state == State::Listening { Ok(()) } else { Err(StateError::InvalidDeviceState) }
    }

    /// Returns whether a single request waits.
    pub(crate) fn has_one(&self) -> bool {
        self.queue.len() == 1
    }

    /// Returns the name of its state, the backlog, and the numbers of requests and of waiters.
    #[cfg(feature = "inspect")]
    pub(crate) fn facts(&self) -> (&'static str, usize, usize, usize) {
        let state = match self.state {
            State::Idle => "idle",
            State::Bound => "bound",
            State::Listening => "listening",
            State::Closed => "closed",
            State::Dead => "dead",
        };
        (state, self.backlog, self.queue.len(), self.waiters.len())
    }

    /// Returns the oldest request, or enters a waiter for the next one, as GetConnectionRequest does (P1).
    ///
    /// # Errors
    /// `INVALID_DEVICE_STATE`, `DEVICE_REMOVED`.
    pub(crate) fn wait(&mut self) -> Result<Wait<R>, Status> {
        match self.state {
            State::Listening => {}
            State::Idle | State::Bound | State::Closed => return Err(Status::INVALID_DEVICE_STATE),
            State::Dead => return Err(Status::DEVICE_REMOVED),
        }
        if let Some(request) = self.queue.pop_front() {
            self.checked = self.checked.saturating_sub(1);
            return Ok(Wait::Ready(request));
        }
        let waiter = WaiterId(self.next_waiter);
        self.next_waiter += 1;
        self.waiters.push_back(waiter);
        Ok(Wait::Pending(waiter))
    }

    /// Delivers a request that arrived to the oldest waiter, or queues or refuses it (P2).
    ///
    /// The queue is full with the backlog, or with `room` requests if that is less. When the queue is full, queued
    /// requests that are `dead` do not keep a live one from it: they are removed and returned. Each arrival checks a
    /// few of them, in turn, so that a flood costs no more than that.
    pub(crate) fn arrived(
        &mut self,
        request: R,
        room: usize,
        dead: impl FnMut(&R) -> bool,
    ) -> (Arrival<R>, Vec<R>) {
        let is_full = |listener: &Self| listener.queue.len() >= listener.backlog.min(room);
        let gone = if is_full(self) { self.remove_dead(dead) } else { Vec::new() };
        // A waiter takes it without a place in the queue, which is empty then.
        if self.state != State::Listening || (is_full(self) && gone.is_empty()) {
            return (Arrival::Refused(request), gone);
        }
        (self.place(request, VecDeque::push_back), gone)
    }

    /// Removes the dead ones of the next few requests from the queue.
    fn remove_dead(&mut self, mut dead: impl FnMut(&R) -> bool) -> Vec<R> {
        let mut gone = Vec::new();
        for _ in 0..CHECKS.min(self.queue.len()) {
            if self.checked >= self.queue.len() {
                self.checked = 0;
            }
            if self.queue.get(self.checked).is_some_and(&mut dead) {
                gone.extend(self.queue.remove(self.checked));
            } else {
                self.checked += 1;
            }
        }
        gone
    }

    /// Takes back a request that was delivered to a waiter that was dropped before it took the request. The request is
    /// the oldest, so it goes first.
    ///
    /// The backlog does not refuse the request, since it was admitted once.
    pub(crate) fn put_back(&mut self, request: R) -> Arrival<R> {
        if self.state != State::Listening {
            return Arrival::Refused(request);
        }
        let arrival = self.place(request, VecDeque::push_front);
        self.checked += usize::from(matches!(arrival, Arrival::Queued));
        arrival
    }

    /// Removes a waiter. Returns `false` if a request was delivered to it already.
    pub(crate) fn cancel(&mut self, waiter: WaiterId) -> bool {
        let place = self.waiters.iter().position(|&other| other == waiter);
        place.and_then(|place| self.waiters.remove(place)).is_some()
    }

    /// Removes all waiters and returns them, the oldest first.
    pub(crate) fn cancel_all(&mut self) -> Vec<WaiterId> {
        std::mem::take(&mut self.waiters).into()
    }

    /// Returns whether the listener was closed, or its adapter removed.
    #[cfg(any(feature = "verbs", test))]
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, State::Closed | State::Dead)
    }

    /// Goes back to `Bound`, because the port could not be opened, and returns the waiters and requests. A listener
    /// that has ended keeps its state.
    #[cfg(any(feature = "verbs", test))]
    pub(crate) fn withdraw(&mut self) -> Leftovers<R> {
        if self.state == State::Listening {
            self.state = State::Bound;
        }
        self.leftovers()
    }

    /// Ends the listener for good and returns its waiters and requests (P3, P4). Requests that were fetched and
    /// connections are not affected.
    pub(crate) fn end(&mut self, end: End) -> Leftovers<R> {
        self.state = match (self.state, end) {
            (State::Dead, End::Closed) | (_, End::Removed) => State::Dead,
            (State::Idle | State::Bound | State::Listening | State::Closed, End::Closed) => State::Closed,
        };
        self.leftovers()
    }

    fn leftovers(&mut self) -> Leftovers<R> {
        Leftovers { waiters: self.cancel_all(), requests: std::mem::take(&mut self.queue).into() }
    }

    /// Delivers the request to the oldest waiter, or queues it with `push`.
    fn place(&mut self, request: R, push: fn(&mut VecDeque<R>, R)) -> Arrival<R> {
        match self.waiters.pop_front() {
            Some(waiter) => Arrival::Delivered(waiter, request),
            None => {
                push(&mut self.queue, request);
                Arrival::Queued
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn listening(backlog: usize) -> Listener<u32> {
        let mut listener = Listener::new();
        listener.bound().unwrap();
        listener.listen(backlog).unwrap();
        listener
    }

    /// Delivers, queues or refuses a request while all queued requests are alive.
    fn arrived(listener: &mut Listener<u32>, request: u32) -> Arrival<u32> {
        listener.arrived(request, usize::MAX, |_| false).0
    }

    fn pending(listener: &mut Listener<u32>) -> WaiterId {
        match listener.wait() {
            Ok(Wait::Pending(waiter)) => waiter,
            other => panic!("{other:?}"),
        }
    }

    // LS-01, LS-10, CM-06, ERR-04: every call in every state.
    #[test]
    fn calls_at_the_wrong_moment() {
        use Status as S;
        let built = |state| -> Listener<u32> {
            let mut listener = Listener::new();
            match state {
                State::Idle => {}
                State::Bound => listener.bound().unwrap(),
                State::Listening => listener = listening(1),
                State::Closed => drop(listener.end(End::Closed)),
                State::Dead => drop(listener.end(End::Removed)),
            }
            assert_eq!(listener.state, state);
            listener
        };
        let associated = Err(S::ADDRESS_ALREADY_ASSOCIATED);
        let (state, removed) = (Err(S::INVALID_DEVICE_STATE), Err(S::DEVICE_REMOVED));
        let table = [
            (State::Idle, Ok(()), state, state),
            (State::Bound, associated, Ok(()), state),
            (State::Listening, associated, state, Ok(())),
            (State::Closed, state, state, state),
            (State::Dead, removed, removed, removed),
        ];
        for (at, bind, listen, wait) in table {
            assert_eq!(built(at).bound(), bind, "bind in {at:?}");
            assert_eq!(built(at).listen(0).map(drop), listen, "listen in {at:?}");
            assert_eq!(built(at).wait().map(drop), wait, "wait in {at:?}");
            let address = built(at).local_address_ready().map_err(|error| error.status());
            let expected = if at == State::Listening { Ok(()) } else { state };
            assert_eq!(address, expected, "address in {at:?}");
            let refused = at != State::Listening;
            assert_eq!(arrived(&mut built(at), 7) == Arrival::Refused(7), refused, "request in {at:?}");
            assert_eq!(built(at).put_back(7) == Arrival::Refused(7), refused, "put back in {at:?}");
            let closed = if at == State::Dead { State::Dead } else { State::Closed };
            let mut listener = built(at);
            listener.end(End::Closed);
            assert_eq!(listener.state, closed);
            listener.end(End::Removed);
            assert_eq!(listener.state, State::Dead);
        }
    }

    // A backlog of 0 and larger ones than the maximum give the maximum (LS-04).
    #[test]
    fn the_backlog_is_capped_and_refuses_the_excess() {
        for (asked, given) in
            [(0, MAX_BACKLOG), (1, 1), (MAX_BACKLOG, MAX_BACKLOG), (usize::MAX, MAX_BACKLOG)]
        {
            let mut listener = Listener::<u32>::new();
            listener.bound().unwrap();
            assert_eq!(listener.listen(asked), Ok(given));
        }
        let mut listener = listening(2);
        assert_eq!(arrived(&mut listener, 1), Arrival::Queued);
        assert_eq!(arrived(&mut listener, 2), Arrival::Queued);
        assert_eq!(arrived(&mut listener, 3), Arrival::Refused(3));
        assert_eq!(listener.wait(), Ok(Wait::Ready(1)));
        assert_eq!(arrived(&mut listener, 4), Arrival::Queued);
    }

    // Requests go to waiters in the order of their calls, and none goes to a cancelled one (LS-05, LS-06).
    #[test]
    fn waiters_are_served_in_order_except_cancelled() {
        let mut listener = listening(1);
        let [first, second, third] = [(); 3].map(|()| pending(&mut listener));
        assert!(listener.cancel(second));
        assert!(!listener.cancel(second), "once");
        assert_eq!(arrived(&mut listener, 1), Arrival::Delivered(first, 1));
        assert!(!listener.cancel(first), "answered already");
        assert_eq!(arrived(&mut listener, 2), Arrival::Delivered(third, 2));
        assert_eq!(arrived(&mut listener, 3), Arrival::Queued);
    }

    // LS-06, CAN-06: a request that was delivered to a dropped waiter goes to the next, ahead of younger ones.
    #[test]
    fn a_request_put_back_is_still_the_oldest() {
        let mut listener = listening(1);
        let first = pending(&mut listener);
        assert_eq!(arrived(&mut listener, 1), Arrival::Delivered(first, 1));
        assert_eq!(arrived(&mut listener, 2), Arrival::Queued);
        assert_eq!(listener.put_back(1), Arrival::Queued, "even beyond the backlog");
        assert_eq!(arrived(&mut listener, 3), Arrival::Refused(3));
        assert_eq!(listener.wait(), Ok(Wait::Ready(1)));
        assert_eq!(listener.wait(), Ok(Wait::Ready(2)));
        let second = pending(&mut listener);
        assert_eq!(listener.put_back(2), Arrival::Delivered(second, 2));
    }

    // LS-07, CAN-06: requests that were not fetched and callers that wait are returned.
    #[test]
    fn closing_gives_back_what_is_left() {
        let mut listener = listening(0);
        let waiters = vec![pending(&mut listener), pending(&mut listener)];
        assert_eq!(listener.end(End::Closed), Leftovers { waiters, requests: vec![] });
        let mut listener = listening(0);
        arrived(&mut listener, 1);
        arrived(&mut listener, 2);
        assert_eq!(listener.end(End::Closed), Leftovers { waiters: vec![], requests: vec![1, 2] });
        assert_eq!(listener.end(End::Closed), Leftovers { waiters: vec![], requests: vec![] });
    }

    #[test]
    fn dead_requests_make_room() {
        let mut listener = listening(3);
        for request in 1..=3 {
            arrived(&mut listener, request);
        }
        assert_eq!(arrived(&mut listener, 4), Arrival::Refused(4));
        let odd = |request: &u32| *request % 2 == 1;
        assert_eq!(listener.arrived(4, usize::MAX, odd), (Arrival::Queued, vec![1, 3]));
        assert_eq!(listener.arrived(5, usize::MAX, odd), (Arrival::Queued, vec![]), "there is room");
        assert_eq!(listener.wait(), Ok(Wait::Ready(2)));
        assert_eq!(listener.wait(), Ok(Wait::Ready(4)));
        assert_eq!(listener.wait(), Ok(Wait::Ready(5)));
    }

    // SEC-16: without descriptors a few requests wait, and a waiter is served.
    #[test]
    fn less_room_than_the_backlog_refuses_earlier() {
        let mut listener = listening(3);
        assert_eq!(listener.arrived(1, 1, |_| false).0, Arrival::Queued);
        assert_eq!(listener.arrived(2, 1, |_| false).0, Arrival::Refused(2));
        assert_eq!(listener.arrived(3, 1, |request| *request == 1), (Arrival::Queued, vec![1]));
        assert_eq!(listener.wait(), Ok(Wait::Ready(3)));
        let waiter = pending(&mut listener);
        assert_eq!(listener.arrived(4, 1, |_| false).0, Arrival::Delivered(waiter, 4));
    }

    // SEC-07: an arrival checks a few requests of a full queue, and the arrivals together find every dead one.
    #[test]
    fn an_arrival_checks_a_few_requests() {
        let mut listener = listening(0);
        for request in 0..MAX_BACKLOG as u32 {
            arrived(&mut listener, request);
        }
        let (mut checks, last) = (0, MAX_BACKLOG as u32 - 1);
        let mut arrivals = 0;
        loop {
            arrivals += 1;
            let (arrival, gone) = listener.arrived(9999, usize::MAX, |request| {
                checks += 1;
                *request == last
            });
            assert!(checks <= arrivals * CHECKS);
            if arrival == Arrival::Queued {
                assert_eq!(gone, [last]);
                break;
            }
            assert!(arrivals <= MAX_BACKLOG / CHECKS, "all were checked");
        }
    }

    proptest! {
        /// Checks that requests come out in the order in which they went in, each once, and that each waiter is
        /// answered once.
        #[test]
        fn nothing_is_lost_or_doubled(backlog in 1..4_usize, steps in proptest::collection::vec(0..4_u8, 0..60)) {
            let mut listener = listening(backlog);
            let (mut waiting, mut came_out) = (VecDeque::new(), Vec::new());
            let (mut refused, mut next) = (Vec::new(), 0_u32);
            for step in steps {
                match step {
                    0 | 1 => {
                        next += 1;
                        match arrived(&mut listener, next) {
                            Arrival::Delivered(waiter, request) => {
                                prop_assert_eq!(waiting.pop_front(), Some(waiter));
                                came_out.push(request);
                            }
                            Arrival::Queued => {}
                            Arrival::Refused(request) => {
                                prop_assert!(listener.queue.len() == backlog && waiting.is_empty());
                                refused.push(request);
                            }
                        }
                    }
                    2 => match listener.wait() {
                        Ok(Wait::Ready(request)) => came_out.push(request),
                        Ok(Wait::Pending(waiter)) => waiting.push_back(waiter),
                        Err(status) => prop_assert!(false, "{status:?}"),
                    },
                    _ => {
                        if let Some(waiter) = waiting.pop_back() {
                            prop_assert!(listener.cancel(waiter));
                        }
                    }
                }
                prop_assert!(listener.queue.is_empty() || listener.waiters.is_empty());
            }
            let left = listener.end(End::Closed);
            prop_assert_eq!(left.waiters, Vec::from(waiting));
            came_out.extend(left.requests);
            prop_assert!(came_out.is_sorted(), "oldest first");
            came_out.extend(refused);
            came_out.sort_unstable();
            prop_assert_eq!(came_out, (1..=next).collect::<Vec<_>>());
        }
    }
}
