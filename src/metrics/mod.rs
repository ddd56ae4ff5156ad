//! Counters, gauges and histograms, for the recorder of the facade [`metrics`](https://docs.rs/metrics) (feature `metrics`).
//!
//! Without the feature nothing of this is compiled, and without a recorder it costs next to nothing. What was made before
//! the recorder was installed is not counted: install it first.
//!
//! | name | kind | labels | what |
//! |---|---|---|---|
//! | `tokio_rdma_connections` | gauge | `state` | connections, and attempts at one |
//! | `tokio_rdma_phase_seconds` | histogram | `state` | how long a connection was in that state |
//! | `tokio_rdma_errors_total` | counter | `call`, `status` | calls on connections that failed, and connections that were lost |
//! | `tokio_rdma_streams` | gauge | `kind` | what is open of byte streams and of messages |
//! | `tokio_rdma_sent_bytes_total` | counter | `kind` | what was written to them |
//! | `tokio_rdma_received_bytes_total` | counter | `kind` | what was read from them |
//! | `tokio_rdma_credits_exhausted_total` | counter | `kind` | writes that waited for room, most of all with the peer |
//! | `tokio_rdma_broken_total` | counter | `kind`, `status` | those that broke |
//!
//! | `state` | how long it lasts |
//! |---|---|
//! | `connecting` | from the connect until the peer's answer: the first phase of the handshake |
//! | `replied` | while the active side looks at the answer |
//! | `completing` | from then until the connection is whole: the third phase |
//! | `requested` | while the passive side looks at the request |
//! | `accepting` | from its accept until the connection is whole: the second phase, and the third |
//! | `connected` | the life of the connection |
//! | `peer_gone` | the peer has left, or the connection was lost, and this side has not said that it knows |
//! | `disconnecting` | from the disconnect until the peer's answer |
//!
//! `call` is `connect`, `complete`, `accept` or `disconnect`, or `connection` for one that was lost, and `status` one of the
//! names of [`Status`](crate::Status). `kind` is `stream` for an [`RdmaStream`](crate::RdmaStream) and `messages` for
//! [`Messages`](crate::Messages).

#[cfg(not(feature = "metrics"))]
mod off;
#[cfg(feature = "metrics")]
mod on;

#[cfg(not(feature = "metrics"))]
pub(crate) use off::{Notes, Stay, Traffic};
#[cfg(feature = "metrics")]
pub use on::describe;
#[cfg(feature = "metrics")]
pub(crate) use on::{Notes, Stay, Traffic};
