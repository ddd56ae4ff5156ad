//! uDAPL's `dat_ep_connect`, walked from the top of its page to the bottom: parameters, description, return values,
//! usage. Each test is named after the item. What uDAPL calls an outcome is looked up in `tokio_rdma::status`.
//!
//! uDAPL answers twice, with a return value and later with an event; a future answers once. Its endpoint becomes
//! DISCONNECTED when an attempt fails and must be reset; a queue pair of ours is as it was and may be used again, which
//! the tests of failures show by doing so.

mod common;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use common::seeds::*;
use common::*;
use futures::future::Either;
use futures::poll;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio_rdma::error::{ConnectError, PostErrorKind, Reason};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::status::{DatEvent, DatReturn, Outcome};
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Connector, QueuePair, ReadLimits, Status};

fn fresh(adapter: &Adapter) -> (Connector, QueuePair) {
    (adapter.connector(), queue_pair(adapter))
}

/// The failure is this outcome, which is told later, by this event.
fn comes_as(error: &ConnectError, outcome: Outcome, event: DatEvent) {
    assert_eq!(error.status(), outcome.status());
    assert_eq!(outcome.dat_event(), Some(event));
}

/// The failure is this outcome, which the call itself returns.
fn returns(error: &ConnectError, outcome: Outcome, value: DatReturn) {
    assert_eq!(error.status(), outcome.status());
    assert_eq!(outcome.dat_return().map(DatReturn::without_subtype), Some(value));
}

// ---- Parameters

// `ep_handle`
#[tokio::test]
async fn ep_handle_is_the_queue_pair_that_gets_connected() {
    let adapter = adapter();
    let half = half_open(&adapter, ConnectParams::default(), AcceptParams::default()).await;
    let send = |queue_pair: &QueuePair| queue_pair.send(adapter.buffer(1).expect("a buffer")).map(drop);
    assert!(send(&half.queue_pair).is_err());
    let _connection = within(half.reply.complete()).await.expect("completed");
    send(&half.queue_pair).expect("it is connected");
}

// `remote_ia_address`, `remote_conn_qual`: address and port. CM-31
#[tokio::test]
async fn remote_ia_address_and_remote_conn_qual_find_the_listener() {
    for ip in BOTH {
        let adapter = adapter_at(ip, SoftConfig::default());
        let (other, _) = listening_at(&adapter, ip);
        let asked = asked_by(adapter.connector(), &adapter, ip, ConnectParams::default()).await;
        assert_eq!(asked.request.local_addr(), asked.listener.local_addr().expect("listening"));
        assert!(poll!(Box::pin(other.request())).is_pending(), "the other port");
    }
}

// CM-12
#[tokio::test]
async fn timeout_ends_the_wait_and_a_peer_in_time_does_not_notice_it() {
    let adapter = adapter();
    let (connector, queue_pair) = fresh(&adapter);
    let (_holder, address) = silent(BOTH[0]);
    let params = ConnectParams::default().timeout(LONG);
    let error = within(connector.connect(&queue_pair, address, params)).await.expect_err("no answer");
    assert!(matches!(error, ConnectError::TimedOut), "{error:?}");
    let params = ConnectParams::default().timeout(PATIENCE);
    drop(half_open(&adapter, params, AcceptParams::default()).await);
}

// CM-12: the value must be positive; none at all is answered before the peer has heard of it.
#[tokio::test]
async fn timeout_of_zero() {
    let adapter = adapter();
    let (connector, queue_pair) = fresh(&adapter);
    let (holder, address) = silent(BOTH[0]);
    let params = ConnectParams::default().timeout(Duration::ZERO);
    let error = within(connector.connect(&queue_pair, address, params)).await.expect_err("no patience");
    assert!(matches!(error, ConnectError::TimedOut), "{error:?}");
    settled().await;
    holder.set_nonblocking(true).expect("an option");
    assert!(holder.accept().is_err(), "nobody came");
    connects(&connector, &adapter, &queue_pair).await;
}

// CM-12, LS-24: DAT_TIMEOUT_INFINITE is the default.
#[tokio::test]
async fn timeout_infinite_waits_for_the_slowest_peer() {
    let adapter = adapter_with(impatient());
    let mut asked = asked(&adapter, ConnectParams::default()).await;
    tokio::time::sleep(LONG).await;
    assert!(poll!(&mut asked.connecting).is_pending());
    let passive = queue_pair(&adapter);
    let _accepting = accepting(asked.request, &passive, AcceptParams::default());
    drop(within(asked.connecting).await.expect("joined").expect("accepted"));
}

// PD-01
#[tokio::test]
async fn private_data_and_its_size() {
    let adapter = adapter();
    for length in [0, 1, adapter.info().max_request_data] {
        let asked = asked(&adapter, ConnectParams::default().private_data(vec![6; length])).await;
        assert_eq!(asked.request.private_data()[..], vec![6; length]);
        assert!(asked.request.private_data().is_exact());
    }
}

// CM-13: seen by a peer whose kernel answers in the class that it is asked in.
#[test]
fn qos_is_in_the_packets() {
    in_own_network(async || {
        std::fs::write("/proc/sys/net/ipv4/tcp_reflect_tos", "1").expect("a setting");
        for ip in BOTH {
            let adapter = adapter_at(ip, SoftConfig::default());
            let (holder, address) = silent(ip);
            for class in [None, Some(0x68), Some(0xb8)] {
                let params = ConnectParams::default();
                let params = class.map_or(params.clone(), |class| params.traffic_class(class));
                let (connector, queue_pair) = fresh(&adapter);
                let _connecting = connecting(&Arc::new(connector), &queue_pair, address, params);
                settled().await;
                let (stream, _) = holder.accept().expect("a connection");
                let socket = SockRef::from(&stream);
                let seen = if ip.is_ipv4() { socket.tos_v4() } else { socket.tclass_v6() };
                assert_eq!(seen.expect("an option"), u32::from(class.unwrap_or(0)), "{ip}");
            }
        }
    });
}

// `connect_flags`, default 0; with the flag: multipath, where the kernel has it, and otherwise not at all.
#[tokio::test]
async fn connect_flags_multipath_is_never_ignored() {
    let adapter = adapter();
    for multipath in [false, true] {
        let (connector, queue_pair) = fresh(&adapter);
        let params = ConnectParams::default().multipath(multipath);
        let Ok(peer) = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)) else {
            let (_listener, address) = listening(&adapter);
            if multipath {
                let error =
                    within(connector.connect(&queue_pair, address, params)).await.expect_err("missing");
                assert!(matches!(error, ConnectError::NotSupported(_)), "{error:?}");
            }
            continue;
        };
        peer.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("bound");
        peer.listen(1).expect("listening");
        let address = peer.local_addr().expect("its address").as_socket().expect("an IP address");
        let _connecting = connecting(&Arc::new(connector), &queue_pair, address, params);
        settled().await;
        let (stream, _) = peer.accept().expect("a connection");
        let expected = if multipath { Protocol::MPTCP } else { Protocol::TCP };
        assert_eq!(stream.protocol().expect("an option"), Some(expected));
    }
}

// ---- Description

// CM-07: the port of this end is in the connection request.
#[tokio::test]
async fn description_the_local_port_is_known_to_both() {
    let adapter = adapter();
    let asked = asked(&adapter, ConnectParams::default()).await;
    assert_eq!(asked.connector.local_addr(), Ok(asked.request.peer_addr()));
}

// DAT_EP_STATE_ACTIVE_CONNECTION_PENDING: receives may be posted, nothing else, and nobody else may connect it. QP-05,
// QP-06, CM-22
#[tokio::test]
async fn description_active_connection_pending() {
    let adapter = adapter();
    let asked = asked(&adapter, ConnectParams::default()).await;
    let _receive = asked.queue_pair.receive(adapter.buffer(8).expect("a buffer")).expect("posted");
    let error = asked.queue_pair.send(adapter.buffer(8).expect("a buffer")).expect_err("pending");
    assert_eq!(error.kind, PostErrorKind::ConnectionInvalid);
    let (_listener, address) = listening(&adapter);
    let again =
        within(adapter.connector().connect(&asked.queue_pair, address, ConnectParams::default())).await;
    returns(&again.expect_err("pending"), Outcome::QueuePairBusy, DatReturn::INVALID_STATE);
}

// CM-13. The two lowest bits are the network's, not the caller's. A remote provider cannot fail to support a class: it is
// not asked, so that event does not occur for this cause.
#[tokio::test]
async fn description_qos_that_is_not_supported_locally() {
    let adapter = adapter();
    for ip in BOTH {
        let (_listener, address) = listening_at(&adapter, ip);
        let (connector, queue_pair) = fresh(&adapter);
        let params = ConnectParams::default().traffic_class(0x03);
        let error = within(connector.connect(&queue_pair, address, params)).await.expect_err("not ours");
        // No row of the table of outcomes: DAT_MODEL_NOT_SUPPORTED is ND_NOT_SUPPORTED.
        assert!(matches!(error, ConnectError::NotSupported(_)), "{error:?}");
        assert_eq!(error.status(), Status::NOT_SUPPORTED);
        connects(&connector, &adapter, &queue_pair).await;
    }
}

// CM-15
#[tokio::test]
async fn description_non_peer_rejected_nobody_listens() {
    let adapter = adapter();
    let (connector, queue_pair) = fresh(&adapter);
    let (_socket, address) = deaf(BOTH[0]);
    let error =
        within(connector.connect(&queue_pair, address, ConnectParams::default())).await.expect_err("deaf");
    comes_as(&error, Outcome::NoListener, DatEvent::NON_PEER_REJECTED);
    // What tells it from a peer's reject, which has the same status.
    assert!(matches!(error, ConnectError::Refused { reason: Reason::Errno(_), .. }), "{error:?}");
    connects(&connector, &adapter, &queue_pair).await;
}

// LS-04. On the wire it is a reject without data, so the reason does not tell it from the application's.
#[tokio::test]
async fn description_non_peer_rejected_backlog_full() {
    let adapter = adapter();
    let listener = adapter.listener();
    listener.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("bound");
    listener.listen(1).expect("listening");
    let address = listener.local_addr().expect("listening");
    let [first, second] = [(); 2].map(|()| {
        let (connector, queue_pair) = fresh(&adapter);
        connecting(&Arc::new(connector), &queue_pair, address, ConnectParams::default())
    });
    let (Either::Left((outcome, _)) | Either::Right((outcome, _))) =
        within(futures::future::select(first, second)).await;
    let error = outcome.expect("joined").expect_err("one fills it");
    comes_as(&error, Outcome::PeerUnable, DatEvent::NON_PEER_REJECTED);
    assert!(error.private_data().is_empty());
}

// CM-08
#[tokio::test]
async fn description_established() {
    let adapter = adapter();
    let pair = connected(&adapter).await;
    assert_eq!(pair.active.connection.peer_addr(), pair.passive.connection.local_addr());
    assert_eq!(Outcome::Established.dat_event(), Some(DatEvent::ESTABLISHED));
    assert_eq!(Outcome::from_dat_event(DatEvent::ESTABLISHED), Some(Outcome::Established));
}

// CM-16
#[tokio::test]
async fn description_peer_rejected() {
    let adapter = adapter();
    let asked = asked(&adapter, ConnectParams::default()).await;
    within(asked.request.reject(b"2.0 has data")).await.expect("rejected");
    let error = within(asked.connecting).await.expect("joined").expect_err("rejected");
    comes_as(&error, Outcome::PeerRejected, DatEvent::PEER_REJECTED);
    assert!(matches!(error, ConnectError::Refused { reason: Reason::MpaReject, .. }), "{error:?}");
    assert_eq!(error.private_data(), b"2.0 has data");
    connects(&asked.connector, &adapter, &asked.queue_pair).await;
}

// CM-17
#[test]
fn description_unreachable() {
    in_own_network(async || {
        let adapter = adapter();
        let (connector, queue_pair) = fresh(&adapter);
        ip("route add unreachable 198.51.100.0/24");
        for (peer, outcome) in
            [([203, 0, 113, 1], Outcome::NetworkUnreachable), ([198, 51, 100, 1], Outcome::HostUnreachable)]
        {
            let outcome_of =
                within(connector.connect(&queue_pair, (peer, 7).into(), ConnectParams::default())).await;
            comes_as(&outcome_of.expect_err("no way"), outcome, DatEvent::UNREACHABLE);
        }
        connects(&connector, &adapter, &queue_pair).await;
    });
}

// CM-18. The page has UNREACHABLE as well as TIMED_OUT for a host that does not answer in time; ours is the latter.
#[tokio::test]
async fn description_timed_out() {
    let adapter = adapter();
    let (connector, queue_pair) = fresh(&adapter);
    let (_holder, address) = silent(BOTH[0]);
    let params = ConnectParams::default().timeout(LONG);
    let error = within(connector.connect(&queue_pair, address, params)).await.expect_err("no answer");
    comes_as(&error, Outcome::NoAnswer, DatEvent::TIMED_OUT);
    connects(&connector, &adapter, &queue_pair).await;
}

// ---- Return values. DAT_SUCCESS: the call was accepted, as in `description_active_connection_pending`.
// DAT_INVALID_HANDLE: a handle of ours refers to something for as long as it exists.
// DAT_MODEL_NOT_SUPPORTED: `description_qos_that_is_not_supported_locally`.

#[tokio::test]
async fn dat_insufficient_resources() {
    if !alone("dat_insufficient_resources") {
        return;
    }
    let adapter = adapter();
    let (connector, queue_pair) = fresh(&adapter);
    let give_back = without_descriptors();
    let peer = (Ipv4Addr::LOCALHOST, 7).into();
    let outcome = within(connector.connect(&queue_pair, peer, ConnectParams::default())).await;
    give_back();
    returns(
        &outcome.expect_err("no descriptor is left"),
        Outcome::OutOfResources,
        DatReturn::INSUFFICIENT_RESOURCES,
    );
    connects(&connector, &adapter, &queue_pair).await;
}

// PD-04
#[tokio::test]
async fn dat_invalid_parameter() {
    let adapter = adapter();
    let (connector, queue_pair) = fresh(&adapter);
    let (_listener, address) = listening(&adapter);
    let params = ConnectParams::default().private_data(vec![0; adapter.info().max_request_data + 1]);
    let error = within(connector.connect(&queue_pair, address, params)).await.expect_err("too much");
    returns(&error, Outcome::PrivateDataTooLarge, DatReturn::INVALID_PARAMETER);
    connects(&connector, &adapter, &queue_pair).await;
}

// CM-23: what can be nobody's address is known at once.
#[tokio::test]
async fn dat_invalid_address() {
    let adapter = adapter();
    for peer in ["0.0.0.0:7", "[::]:7", "224.0.0.1:7", "[ff02::1]:7", "255.255.255.255:7", "127.0.0.1:0"] {
        let (connector, queue_pair) = fresh(&adapter);
        let peer = peer.parse().expect("an address");
        let mut connecting = Box::pin(connector.connect(&queue_pair, peer, ConnectParams::default()));
        let std::task::Poll::Ready(Err(error)) = poll!(&mut connecting) else { panic!("{peer} at once") };
        returns(&error, Outcome::AddressInvalid, DatReturn::INVALID_ADDRESS);
    }
}

// CM-22, DIS-10: connected, and disconnected.
#[tokio::test]
async fn dat_invalid_state() {
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let (_listener, address) = listening(&adapter);
    for connected in [true, false] {
        if !connected {
            within(pair.active.connection.disconnect()).await.expect("disconnected");
        }
        let queue_pair = &pair.active.queue_pair;
        let outcome =
            within(adapter.connector().connect(queue_pair, address, ConnectParams::default())).await;
        returns(&outcome.expect_err("not unconnected"), Outcome::QueuePairBusy, DatReturn::INVALID_STATE);
    }
}

// ---- Usage

// NEG-01: what uDAPL leaves to the application is agreed on here; 0 and 0 for those who do not care to read.
#[tokio::test]
async fn usage_no_reads_either_way() {
    let adapter = adapter();
    let pair = connected_with(&adapter, limits(0, 0), AcceptParams::default()).await;
    for end in [&pair.active, &pair.passive] {
        assert_eq!(end.connection.read_limits(), ReadLimits::NONE);
        assert_eq!(read(&adapter, &end.queue_pair).await, Err(PostErrorKind::NoReads));
    }
}

// NEG-01, NEG-03: a default for those who say nothing, which the connection may lower.
#[tokio::test]
async fn usage_limits_that_are_not_set_have_a_default() {
    let adapter = adapter();
    let plain = connected(&adapter).await;
    assert_eq!(plain.active.connection.read_limits(), ReadLimits::new(16, 16));
    let lowered = connected_with(&adapter, ConnectParams::default(), accept_limits(2, 3)).await;
    assert_eq!(lowered.active.connection.read_limits(), ReadLimits::new(3, 2));
}
