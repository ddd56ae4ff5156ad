//! Counters, gauges and histograms for the [`metrics`](https://docs.rs/metrics) facade (feature `metrics`).
//!
//! Install the recorder before the first connection: connections and streams created earlier are not counted. Without a
//! recorder the overhead is minimal. Without the feature, metrics are not compiled.
//!
//! | name | kind | labels | meaning |
//! |---|---|---|---|
//! | `tokio_rdma_connections` | gauge | `state` | connections and connection attempts |
//! | `tokio_rdma_phase_seconds` | histogram | `state` | time that a connection spent in a state |
//! | `tokio_rdma_errors_total` | counter | `call`, `status` | failed calls on connections, and lost connections |
//! | `tokio_rdma_sessions_total` | counter | `outcome` | connections that resume sessions of streams: `resumed`, `refused`, `unknown`, or `over` if the stream had ended |
//! | `tokio_rdma_accepts_total` | counter | `kind`, `outcome` | peers of listeners, by what became of them |
//! | `tokio_rdma_half_open` | gauge | `kind` | peers that a listener waits for before it can go on |
//! | `tokio_rdma_streams` | gauge | `kind` | open streams |
//! | `tokio_rdma_sent_bytes_total` | counter | `kind` | bytes written to streams |
//! | `tokio_rdma_received_bytes_total` | counter | `kind` | bytes read from streams |
//! | `tokio_rdma_credits_exhausted_total` | counter | `kind` | writes that waited for room, mostly for credits of the peer |
//! | `tokio_rdma_broken_total` | counter | `kind`, `status` | streams that broke; a lost connection of a session that goes on is none |
//!
//! | `state` | duration |
//! |---|---|
//! | `connecting` | from the connect until the peer's reply: the first phase of the handshake |
//! | `replied` | from the reply until the active side completes or rejects |
//! | `completing` | from the complete until the connection is established: the third phase |
//! | `requested` | from the request until the passive side accepts or rejects |
//! | `accepting` | from the accept until the connection is established: the second phase and the third |
//! | `connected` | while the connection is established |
//! | `peer_gone` | from the peer's disconnect, or the loss of the connection, until this side disconnects |
//! | `disconnecting` | from the disconnect until the peer's response |
//!
//! `call` is `connect`, `complete`, `accept` or `disconnect`, or `connection` for a lost connection. `status` is the
//! name of a [`Status`](crate::Status). `kind` is `stream`, for an [`RdmaStream`](crate::RdmaStream).
//!
//! The `kind` of `tokio_rdma_accepts_total` and `tokio_rdma_half_open` is the kind of the listener:
//!
//! | `kind` | a peer is half open | `outcome` |
//! |---|---|---|
//! | `listener` | from its TCP connection until its request is complete (soft provider) | `requested`, `refused` (the backlog is full), `closed`, `invalid`, `timed_out`, `replaced`, `no_resources` (no descriptors or memory to accept) |
//! | `stream`, `acceptor` | from the beginning of the answer to its request until the connection is established | `accepted`, `failed`, `timed_out`, `replaced`, `no_resources` (no memory for its connection) |
//! | `tls` | during its TLS handshake | `accepted`, `failed`, `timed_out`, `replaced` |
//!
//! `replaced` counts half-open peers that were dropped because there were too many.

#[cfg(feature = "metrics")]
mod on;

#[cfg(not(feature = "metrics"))]
pub(crate) use off::{AcceptMetrics, PendingMetrics, PhaseGuard, Traffic, count_session};
#[cfg(feature = "metrics")]
pub use on::describe;
#[cfg(feature = "metrics")]
pub(crate) use on::{AcceptMetrics, PendingMetrics, PhaseGuard, Traffic, count_session};

/// No-op metrics, used without the feature `metrics`.
#[cfg(not(feature = "metrics"))]
mod off {
    use crate::status::Status;

    #[derive(Default)]
    pub(crate) struct PendingMetrics;

    impl PendingMetrics {
        pub(crate) fn failed(&mut self, _call: &'static str, _status: Status) {}

        pub(crate) fn moved(&mut self, _guard: &mut PhaseGuard, _state: Option<&'static str>) {}

        pub(crate) fn is_empty(&self) -> bool {
            true
        }

        pub(crate) fn record(self) {}
    }

    pub(crate) struct PhaseGuard;

    impl PhaseGuard {
        pub(crate) fn new(_state: Option<&'static str>) -> Self {
            Self
        }
    }

    pub(crate) struct Traffic;

    impl Traffic {
        pub(crate) fn new(_kind: &'static str) -> Self {
            Self
        }

        pub(crate) fn sent(&self, _bytes: usize) {}

        pub(crate) fn received(&self, _bytes: usize) {}

        pub(crate) fn exhausted(&self) {}

        pub(crate) fn broken(&self, _status: Status) {}
    }

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct AcceptMetrics;

    impl AcceptMetrics {
        pub(crate) const fn new(_kind: &'static str) -> Self {
            Self
        }

        pub(crate) fn count(&self, _outcome: &'static str) {}

        pub(crate) fn half_open(&self) -> HalfOpenGuard {
            HalfOpenGuard
        }
    }

    pub(crate) fn count_session(_outcome: &'static str) {}

    pub(crate) struct HalfOpenGuard;
}
