//! Attempts at the addresses of a name, each with a head start (RFC 8305, "Happy Eyeballs").
//!
//! This module handles addresses and time. The caller defines what an attempt does.

use std::collections::HashSet;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use crate::cm::wait_until;

/// The time from the start of an attempt to the start of the next: the Connection Attempt Delay of RFC 8305 section 8.
pub(super) const HEAD_START: Duration = Duration::from_millis(250);

/// Returns the order in which addresses are tried: the families alternate, starting with that of the first address, and
/// each keeps the order that the resolver returned (RFC 8305 section 4). Each address occurs once.
pub(super) fn in_turns(addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut seen = HashSet::new();
    let known: Vec<_> = addresses.into_iter().filter(|address| seen.insert(*address)).collect();
    let first = known.first().is_some_and(SocketAddr::is_ipv4);
    let (one, other): (Vec<_>, Vec<_>) = known.into_iter().partition(|address| address.is_ipv4() == first);
    let turns = 0..one.len().max(other.len());
    turns.flat_map(|turn| [one.get(turn), other.get(turn)]).flatten().copied().collect()
}

/// Returns the value of the first attempt that succeeds, of those at each address or other place. An attempt starts when the head start of the previous one has
/// passed, or when any attempt has failed.
///
/// # Errors
/// If all attempts have failed, or the deadline has passed: the place and the error of each that has begun, in the
/// order of the places. `expired` is the error of one that was still in progress.
///
/// # Cancel safety
/// Dropping the future drops the attempts in progress. So does the first success.
pub(super) async fn race<P: Clone, T, E, F>(
    places: &[P],
    head_start: Duration,
    mut attempt: impl FnMut(P) -> F,
    deadline: Option<Instant>,
    expired: impl Fn(P) -> E,
) -> Result<T, Vec<(P, E)>>
where
    F: Future<Output = Result<T, E>>,
{
    let mut waiting = places.iter().cloned().enumerate();
    // Each is polled whenever one is: there are few, and a set that polls only those that were woken wakes the task
    // once more for each wait.
    let mut running: Vec<(usize, Pin<Box<F>>)> = Vec::new();
    // Those of the attempts that have begun.
    let mut errors: Vec<Option<E>> = Vec::new();
    loop {
        // After the last attempt there is no next one to start.
        let next = waiting.next().map(|(number, place)| {
            running.push((number, Box::pin(attempt(place))));
            errors.push(None);
        });
        let turn = next.and_then(|()| Instant::now().checked_add(head_start));
        tokio::select! {
            biased;
            ended = poll_fn(|cx| poll_any(&mut running, cx)) => match ended {
                Some((_, Ok(winner))) => return Ok(winner),
                Some((number, Err(error))) => errors[number] = Some(error),
                None => break,
            },
            () = wait_until(turn) => {}
            () = wait_until(deadline) => break,
        }
    }
    let begun = places.iter().cloned().zip(errors);
    Err(begun.map(|(place, error)| (place.clone(), error.unwrap_or_else(|| expired(place)))).collect())
}

/// Resolves with the number and the outcome of an attempt that has ended, and removes it; with `None` if there is no attempt.
fn poll_any<F: Future>(
    running: &mut Vec<(usize, Pin<Box<F>>)>,
    cx: &mut Context<'_>,
) -> Poll<Option<(usize, F::Output)>> {
    for (at, (number, attempt)) in running.iter_mut().enumerate() {
        if let Poll::Ready(outcome) = attempt.as_mut().poll(cx) {
            let number = *number;
            drop(running.swap_remove(at));
            return Poll::Ready(Some((number, outcome)));
        }
    }
    if running.is_empty() { Poll::Ready(None) } else { Poll::Pending }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::pending;

    use tokio::time::sleep;

    use super::*;

    /// Runs a race without a limit.
    async fn race<T, E, F: Future<Output = Result<T, E>>>(
        addresses: &[SocketAddr],
        head_start: Duration,
        attempt: impl FnMut(SocketAddr) -> F,
    ) -> Result<T, Vec<(SocketAddr, E)>> {
        super::race(addresses, head_start, attempt, None, |_| unreachable!("there is no limit")).await
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn addresses(count: u16) -> Vec<SocketAddr> {
        (1..=count).map(|port| SocketAddr::from(([192, 0, 2, 1], port))).collect()
    }

    /// An event of an attempt.
    #[derive(Debug, PartialEq, Eq, Clone, Copy)]
    enum Event {
        Begun,
        Failed,
        Won,
        Dropped,
    }

    /// Writes down what happens to attempts, and after how many milliseconds.
    struct Diary {
        start: Instant,
        entries: RefCell<Vec<(u128, u16, Event)>>,
    }

    impl Diary {
        fn new() -> Self {
            Self { start: Instant::now(), entries: RefCell::default() }
        }

        fn note(&self, address: SocketAddr, event: Event) {
            self.entries.borrow_mut().push((self.start.elapsed().as_millis(), address.port(), event));
        }

        /// Makes an attempt that ends after so many milliseconds; with `None` it never does.
        async fn attempt(
            &self,
            address: SocketAddr,
            after: Option<u64>,
            outcome: Result<(), ()>,
        ) -> Result<u16, &'static str> {
            struct Unless<'a>(&'a Diary, SocketAddr, bool);
            impl Drop for Unless<'_> {
                fn drop(&mut self) {
                    if !self.2 {
                        self.0.note(self.1, Event::Dropped);
                    }
                }
            }
            self.note(address, Event::Begun);
            let mut ended = Unless(self, address, false);
            match after {
                Some(after) => sleep(Duration::from_millis(after)).await,
                None => pending().await,
            }
            ended.2 = true;
            self.note(address, if outcome.is_ok() { Event::Won } else { Event::Failed });
            outcome.map(|()| address.port()).map_err(|()| "no")
        }
    }

    // IO-07: families take turns, the resolver's first family first, its order within a family kept.
    #[test]
    fn families_take_turns() {
        let [a, b, c] = ["192.0.2.1:7", "192.0.2.2:7", "192.0.2.3:7"].map(address);
        let [x, y] = ["[2001:db8::1]:7", "[2001:db8::2]:7"].map(address);
        assert_eq!(in_turns([x, y, a, b, c]), [x, a, y, b, c]);
        assert_eq!(in_turns([a, b, c, x, y]), [a, x, b, y, c]);
        assert_eq!(in_turns([b, a, b, a]), [b, a], "each once");
        assert_eq!(in_turns([]), []);
    }

    // An attempt begins when the one before has failed or used up its head start, and those that lose are dropped (IO-07).
    #[tokio::test(start_paused = true)]
    async fn attempts_begin_by_failure_or_time() {
        use Event::{Begun, Dropped, Failed, Won};

        /// After how many milliseconds each attempt ends, and how; the winner, and what happens.
        type Case<'a> = (&'a [(Option<u64>, Result<(), ()>)], u16, &'a [(u128, u16, Event)]);
        let cases: [Case<'_>; 4] = [
            (&[(Some(249), Ok(())), (None, Ok(()))], 1, &[(0, 1, Begun), (249, 1, Won)]),
            (
                &[(None, Ok(())), (None, Ok(())), (Some(10), Ok(())), (None, Ok(()))],
                3,
                &[
                    (0, 1, Begun),
                    (250, 2, Begun),
                    (500, 3, Begun),
                    (510, 1, Dropped),
                    (510, 2, Dropped),
                    (510, 3, Won),
                ],
            ),
            (
                &[(Some(20), Err(())), (Some(20), Ok(()))],
                2,
                &[(0, 1, Begun), (20, 1, Failed), (20, 2, Begun), (40, 2, Won)],
            ),
            // A slow address that answers after all beats one that began later.
            (
                &[(Some(300), Ok(())), (Some(100), Ok(()))],
                1,
                &[(0, 1, Begun), (250, 2, Begun), (300, 1, Won), (300, 2, Dropped)],
            ),
        ];
        for (attempts, winner, expected) in cases {
            let diary = Diary::new();
            let attempt = |address: SocketAddr| {
                let (after, outcome) = attempts[usize::from(address.port()) - 1];
                diary.attempt(address, after, outcome)
            };
            assert_eq!(race(&addresses(attempts.len() as u16), HEAD_START, attempt).await, Ok(winner));
            let mut entries = diary.entries.into_inner();
            // Those that lose are dropped in any order.
            entries.sort_by_key(|(at, port, _)| (*at, *port));
            assert_eq!(entries, expected);
        }
    }

    // IO-07: every attempt with its error, in the order of the addresses and not of the failures.
    #[tokio::test(start_paused = true)]
    async fn the_errors_of_all_are_kept() {
        let diary = Diary::new();
        let all = addresses(3);
        let errors = race(&all, HEAD_START, |address| {
            diary.attempt(address, Some(1000 - 300 * u64::from(address.port())), Err(()))
        })
        .await
        .expect_err("all fail");
        assert_eq!(errors, all.iter().map(|address| (*address, "no")).collect::<Vec<_>>());
        let failures: Vec<_> =
            diary.entries.into_inner().into_iter().filter(|entry| entry.2 == Event::Failed).collect();
        assert_eq!(failures, [(600, 3, Event::Failed), (650, 2, Event::Failed), (700, 1, Event::Failed)]);
    }

    // IO-07: the limit holds for all attempts, and the error has the result of each that had begun.
    #[tokio::test(start_paused = true)]
    async fn at_the_limit_everyone_is_called_off() {
        let diary = Diary::new();
        let all = addresses(4);
        let attempt =
            |address: SocketAddr| diary.attempt(address, (address.port() == 2).then_some(100), Err(()));
        let limit = diary.start + Duration::from_millis(500);
        let errors = super::race(&all, HEAD_START, attempt, Some(limit), |_| "too late").await;
        let expected = vec![(all[0], "too late"), (all[1], "no"), (all[2], "too late")];
        assert_eq!(errors, Err(expected));
        let last = diary.entries.into_inner().split_off(4);
        assert!(last.iter().all(|(at, _, event)| (*at, *event) == (500, Event::Dropped)), "{last:?}");
        assert_eq!(last.len(), 2);
    }

    // IO-07: dropping the race drops the attempts.
    #[tokio::test(start_paused = true)]
    async fn a_race_that_is_dropped_drops_its_attempts() {
        let diary = Diary::new();
        {
            let all = addresses(2);
            let attempt = |address| diary.attempt(address, None, Ok(()));
            let race = race(&all, HEAD_START, attempt);
            tokio::time::timeout(Duration::from_millis(300), race).await.expect_err("nobody answers");
        }
        let dropped = diary.entries.into_inner().into_iter().filter(|entry| entry.2 == Event::Dropped);
        assert_eq!(dropped.count(), 2);
    }
}
