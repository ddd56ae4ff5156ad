//! The readiness of both directions.

use std::future::pending;

use tokio::io::{Interest, Ready};

use super::{State, StreamInner};
use crate::io::wakers::Side;

impl StreamInner {
    /// Resolves when one of these directions is ready. Any number of tasks may wait.
    pub(in crate::io) async fn readiness(&self, interest: Interest) -> Ready {
        let wait = async |side: Side, waits: bool| {
            if !waits {
                return pending().await;
            }
            let attempt = |state: &mut State, collected| {
                let ready = self.ready_now(state, interest, collected);
                (!ready.is_empty()).then_some(ready)
            };
            self.wait_for(side, attempt).await
        };
        // The end of the stream wakes both directions.
        let reads = interest.is_readable() || !interest.is_writable();
        tokio::select! {
            biased;
            ready = wait(Side::Reader, reads) => ready,
            ready = wait(Side::Writer, interest.is_writable()) => ready,
        }
    }

    /// Returns the readiness. `collected` is whether all completions have been collected.
    fn ready_now(&self, state: &State, interest: Interest, collected: bool) -> Ready {
        let machine = &state.machine;
        let has_ended = collected && state.ended.is_some();
        let flag = |is_set, flag| if is_set { flag } else { Ready::EMPTY };
        let mut ready = flag(has_ended && interest.is_error(), Ready::ERROR);
        if interest.is_readable() {
            let is_closed = has_ended || collected && machine.is_peer_done();
            ready |= flag(self.is_ready(state, Side::Reader, collected).is_some(), Ready::READABLE);
            ready |= flag(is_closed, Ready::READ_CLOSED);
        }
        if interest.is_writable() {
            let is_closed = has_ended || collected && machine.is_peer_gone();
            ready |= flag(self.is_ready(state, Side::Writer, collected).is_some(), Ready::WRITABLE);
            ready |= flag(is_closed, Ready::WRITE_CLOSED);
        }
        ready
    }
}
