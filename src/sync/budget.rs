//! The budget that a task of the runtime has for one turn, see [`coop`].

use std::task::{Context, Poll, ready};

use tokio::task::coop;

/// Polls with `poll`, which uses up one unit of the budget if it is ready. Without a budget the task yields first, so that a
/// loop over futures that are always ready does not keep other tasks waiting.
pub(crate) fn poll_budgeted<T>(
    cx: &mut Context<'_>,
    poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    if !coop::has_budget_remaining() {
        let _ = ready!(coop::poll_proceed(cx));
    }
    let output = ready!(poll(cx));
    if let Poll::Ready(turn) = coop::poll_proceed(cx) {
        turn.made_progress();
    }
    Poll::Ready(output)
}
