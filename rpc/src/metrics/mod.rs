//! Histograms, counters and gauges for the [`metrics`](https://docs.rs/metrics) facade (feature `metrics`).
//!
//! Install the recorder before the first channel and server: connections that were made earlier are not counted. Without the
//! feature, metrics are not compiled.
//!
//! The names that OpenTelemetry has for calls, of its semantic conventions 1.45, are written as Prometheus has them: with
//! underscores, and the unit behind. Conventions without a name for a figure leave it to this package.
//!
//! | name | kind | labels | meaning |
//! |---|---|---|---|
//! | `rpc_client_call_duration_seconds` | histogram | those of gRPC | calls of gRPC at the client: `rpc.client.call.duration` |
//! | `rpc_server_call_duration_seconds` | histogram | those of gRPC | calls of gRPC at the server: `rpc.server.call.duration` |
//! | `http_client_request_duration_seconds` | histogram | those of HTTP | all other calls at the client: `http.client.request.duration` |
//! | `http_server_request_duration_seconds` | histogram | those of HTTP | all other calls at the server: `http.server.request.duration` |
//! | `tokio_rdma_rpc_calls_in_flight` | gauge | `end` | calls that have begun and have not ended |
//! | `tokio_rdma_rpc_sent_bytes_total` | counter | `end` | bytes of bodies sent: of requests at the client, of answers at the server |
//! | `tokio_rdma_rpc_received_bytes_total` | counter | `end` | bytes of bodies received |
//! | `tokio_rdma_rpc_resets_sent_total` | counter | `end`, `code` | calls that this end has reset |
//! | `tokio_rdma_rpc_resets_received_total` | counter | `end`, `code` | resets of the peer |
//! | `tokio_rdma_rpc_connects_total` | counter | `end`, `outcome` | attempts to open a connection, hello included: `connected` or `failed` |
//! | `tokio_rdma_rpc_reconnects_total` | counter | `outcome` | those of a channel that has been connected, or has tried to be, before |
//! | `tokio_rdma_rpc_connections` | gauge | `end` | open connections |
//! | `tokio_rdma_rpc_connections_lost_total` | counter | `end`, `error_type` | connections that have ended out of order: `lost` or `protocol` |
//!
//! The number of samples of a duration is the number of calls, by their outcome. A duration begins with the call, and ends with the
//! last byte of the answer, with the error, or when the call is dropped. An answer that is dropped unread counts as what the server has
//! said if its end had come, and else as cancelled. No call is repeated, so nothing counts repeated ones.
//! A server has no sample of requests that it refuses because of its limit of calls, or that were reset before they began: those are
//! among the resets.
//!
//! | label | OpenTelemetry | value |
//! |---|---|---|
//! | `end` | | `client` or `server` |
//! | `rpc_system_name` | `rpc.system.name` | gRPC: `grpc` |
//! | `rpc_method` | `rpc.method` | gRPC: `package.Service/Method`, or `_OTHER` |
//! | `rpc_status_code` | `rpc.status_code` | gRPC: `OK`, `CANCELLED` and so on; `CANCELLED` also for a call that was dropped before its end |
//! | `http_request_method` | `http.request.method` | HTTP: `GET` and so on, or `_OTHER` |
//! | `http_response_status_code` | `http.response.status_code` | HTTP: the status, if there is an answer; `_OTHER` if it is none of the registered ones |
//! | `error_type` | `error.type` | of calls that have failed: the status, or without one `cancelled`, `connect`, `lost`, `refused`, `internal`, `deadline`, `too_large`, `protocol` or `body` |
//! | `code` | | `none`, `cancelled`, `refused`, `internal`, `deadline`, `too_large` or `protocol`: the [`Code`](crate::Code) |
//!
//! As the conventions have it, each status but `OK` is an error at the client, and at the server `UNKNOWN`, `DEADLINE_EXCEEDED`,
//! `UNIMPLEMENTED`, `INTERNAL`, `UNAVAILABLE` and `DATA_LOSS`; of HTTP those from 400 on, at the server from 500 on. A server sees
//! no reason why its client drops a call: a deadline that passes there first is `CANCELLED` here.
//!
//! # Memory
//! A recorder keeps every series for ever, so that a peer must not be able to make new ones. No path of HTTP is a label. `rpc_method`
//! has at most 256 values at each end, and of up to 256 bytes; calls of all other methods have `_OTHER`. At the server a method is
//! one of them from its first call with the status `OK` on: those that a peer makes up are unimplemented, or rejected. All other labels
//! have few values. `server.address` is in the [spans](crate#what-it-tells) alone: a thousand servers would be a thousand times the series.

#[cfg(not(feature = "metrics"))]
mod off;
#[cfg(feature = "metrics")]
mod on;

#[cfg(not(feature = "metrics"))]
pub(crate) use off::{CallMetrics, ConnectionMetrics, Traffic, TrafficMetrics, count_connect};
#[cfg(feature = "metrics")]
pub use on::describe;
#[cfg(feature = "metrics")]
pub(crate) use on::{CallMetrics, ConnectionMetrics, Traffic, TrafficMetrics, count_connect};
