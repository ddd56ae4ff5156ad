//! Metrics for the recorder of the `metrics` facade.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use ::metrics::{
    Counter, Gauge, Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use http::{Method, Uri};
use tokio::time::Instant;

use crate::error::Error;
use crate::observation::{Kind, method_name, rpc_method};
use crate::wire::Code;

const RPC_CLIENT: &str = "rpc_client_call_duration_seconds";
const RPC_SERVER: &str = "rpc_server_call_duration_seconds";
const HTTP_CLIENT: &str = "http_client_request_duration_seconds";
const HTTP_SERVER: &str = "http_server_request_duration_seconds";
const IN_FLIGHT: &str = "tokio_rdma_rpc_calls_in_flight";
const SENT: &str = "tokio_rdma_rpc_sent_bytes_total";
const RECEIVED: &str = "tokio_rdma_rpc_received_bytes_total";
const RESETS_SENT: &str = "tokio_rdma_rpc_resets_sent_total";
const RESETS_RECEIVED: &str = "tokio_rdma_rpc_resets_received_total";
const CONNECTS: &str = "tokio_rdma_rpc_connects_total";
const RECONNECTS: &str = "tokio_rdma_rpc_reconnects_total";
const CONNECTIONS: &str = "tokio_rdma_rpc_connections";
const LOST: &str = "tokio_rdma_rpc_connections_lost_total";

/// Registers a description of each metric with the recorder. Call this once, after the recorder was installed.
pub fn describe() {
    describe_histogram!(RPC_CLIENT, Unit::Seconds, "Duration of outgoing calls of gRPC, by outcome");
    describe_histogram!(RPC_SERVER, Unit::Seconds, "Duration of incoming calls of gRPC, by outcome");
    describe_histogram!(HTTP_CLIENT, Unit::Seconds, "Duration of outgoing HTTP requests, by outcome");
    describe_histogram!(HTTP_SERVER, Unit::Seconds, "Duration of incoming HTTP requests, by outcome");
    describe_gauge!(IN_FLIGHT, Unit::Count, "Calls that have begun and have not ended");
    describe_counter!(SENT, Unit::Bytes, "Bytes of bodies sent");
    describe_counter!(RECEIVED, Unit::Bytes, "Bytes of bodies received");
    describe_counter!(RESETS_SENT, Unit::Count, "Calls that this end has reset, by code");
    describe_counter!(RESETS_RECEIVED, Unit::Count, "Resets of the peer, by code");
    describe_counter!(CONNECTS, Unit::Count, "Attempts to open a connection, by outcome");
    describe_counter!(RECONNECTS, Unit::Count, "Attempts to open a connection again, by outcome");
    describe_gauge!(CONNECTIONS, Unit::Count, "Open connections");
    describe_counter!(LOST, Unit::Count, "Connections that have ended out of order, by error");
}

/// The label `end`.
fn end(is_client: bool) -> &'static str {
    if is_client { "client" } else { "server" }
}

/// The most methods that are labels at an end, and the most bytes of one.
const MOST_METHODS: usize = 256;
const LONGEST_METHOD: usize = 256;

/// The methods that are labels. Their number is bounded, because the peers of a server, and those of a proxy's channel, choose
/// them.
struct Methods(Mutex<Option<HashSet<Arc<str>>>>);

static CLIENT: Methods = Methods::new();
static SERVER: Methods = Methods::new();

impl Methods {
    const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Returns the label of a method. One that is new is added if `admits`, and if there is room.
    fn label(&self, method: &str, admits: bool) -> Option<Arc<str>> {
        let mut methods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let methods = methods.get_or_insert_default();
        if let Some(known) = methods.get(method) {
            return Some(known.clone());
        }
        if !admits || methods.len() >= MOST_METHODS || method.len() > LONGEST_METHOD {
            return None;
        }
        let method = Arc::<str>::from(method);
        methods.insert(method.clone());
        Some(method)
    }
}

/// The metrics of one call.
pub(crate) struct CallMetrics {
    since: Instant,
    in_flight: Gauge,
    method: Method,
    uri: Uri,
}

impl CallMetrics {
    pub(crate) const IS_ON: bool = true;

    /// Records that a call has begun.
    pub(crate) fn begin(kind: Kind, method: &Method, uri: &Uri) -> Self {
        let in_flight = gauge!(IN_FLIGHT, "end" => end(kind.is_client));
        in_flight.increment(1.0);
        Self { since: Instant::now(), in_flight, method: method.clone(), uri: uri.clone() }
    }

    /// Records how the call has ended: with the status of its protocol, and the class of the error.
    pub(crate) fn end(&self, kind: Kind, status: Option<&str>, error: Option<&str>) {
        let mut labels = Vec::with_capacity(4);
        let name = if kind.is_grpc {
            let methods = if kind.is_client { &CLIENT } else { &SERVER };
            let admits = kind.is_client || status == Some("OK");
            let method = methods.label(rpc_method(&self.uri), admits);
            labels.push(Label::from_static_parts("rpc_system_name", "grpc"));
            labels.push(match method {
                Some(method) => Label::new("rpc_method", method),
                None => Label::from_static_parts("rpc_method", "_OTHER"),
            });
            if kind.is_client { RPC_CLIENT } else { RPC_SERVER }
        } else {
            labels.push(Label::new("http_request_method", method_name(&self.method).to_owned()));
            if kind.is_client { HTTP_CLIENT } else { HTTP_SERVER }
        };
        let status_label = if kind.is_grpc { "rpc_status_code" } else { "http_response_status_code" };
        labels.extend(status.map(|value| Label::new(status_label, value.to_owned())));
        labels.extend(error.map(|value| Label::new("error_type", value.to_owned())));
        histogram!(name, labels).record(self.since.elapsed());
    }
}

impl Drop for CallMetrics {
    fn drop(&mut self) {
        self.in_flight.decrement(1.0);
    }
}

/// What has been sent and received under a lock. It is recorded after the lock is released, because the recorder is foreign
/// code.
#[derive(Default)]
pub(crate) struct Traffic {
    sent: u64,
    received: u64,
    resets: Vec<(&'static str, Code)>,
}

impl Traffic {
    /// Counts bytes of a body that are sent.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
    }

    /// Counts bytes of a body that have arrived.
    pub(crate) fn received(&mut self, bytes: usize) {
        self.received += bytes as u64;
    }

    /// Counts a reset that is sent.
    pub(crate) fn reset_sent(&mut self, code: Code) {
        self.resets.push((RESETS_SENT, code));
    }

    /// Counts a reset that has arrived.
    pub(crate) fn reset_received(&mut self, code: Code) {
        self.resets.push((RESETS_RECEIVED, code));
    }
}

/// The metrics of what a connection sends and receives.
pub(crate) struct TrafficMetrics {
    is_client: bool,
    sent: Counter,
    received: Counter,
}

impl TrafficMetrics {
    pub(crate) fn new(is_client: bool) -> Self {
        let end = end(is_client);
        Self { is_client, sent: counter!(SENT, "end" => end), received: counter!(RECEIVED, "end" => end) }
    }

    /// Records what has been sent and received.
    pub(crate) fn record(&self, traffic: Traffic) {
        if traffic.sent > 0 {
            self.sent.increment(traffic.sent);
        }
        if traffic.received > 0 {
            self.received.increment(traffic.received);
        }
        for (name, code) in traffic.resets {
            counter!(name, "end" => end(self.is_client), "code" => code.name()).increment(1);
        }
    }
}

/// Records an attempt to open a connection. `is_again` says that it is not the first one of a channel.
pub(crate) fn count_connect(is_client: bool, is_again: bool, is_connected: bool) {
    let outcome = if is_connected { "connected" } else { "failed" };
    counter!(CONNECTS, "end" => end(is_client), "outcome" => outcome).increment(1);
    if is_again {
        counter!(RECONNECTS, "outcome" => outcome).increment(1);
    }
}

/// The metrics of an open connection.
pub(crate) struct ConnectionMetrics {
    is_client: bool,
    open: Gauge,
}

impl ConnectionMetrics {
    /// Records that a connection is open, until this is dropped.
    pub(crate) fn open(is_client: bool) -> Self {
        let open = gauge!(CONNECTIONS, "end" => end(is_client));
        open.increment(1.0);
        Self { is_client, open }
    }

    /// Records how the connection has ended.
    pub(crate) fn end(self, outcome: &Result<(), Error>) {
        if let Err(error) = outcome {
            counter!(LOST, "end" => end(self.is_client), "error_type" => error.kind()).increment(1);
        }
    }
}

impl Drop for ConnectionMetrics {
    fn drop(&mut self) {
        self.open.decrement(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_bounded_in_number_and_length() {
        let methods = Methods::new();
        assert_eq!(methods.label("first", false), None, "not admitted");
        assert_eq!(methods.label(&"x".repeat(LONGEST_METHOD + 1), true), None, "too long");
        for number in 0..MOST_METHODS {
            assert!(methods.label(&number.to_string(), true).is_some(), "{number}");
        }
        assert_eq!(methods.label("first", true), None, "too many");
        assert_eq!(methods.label("7", false).as_deref(), Some("7"), "known");
    }
}
