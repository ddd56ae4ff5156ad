//! The active side without failures: binding, the three phases, addresses, options, loopback, many connections.
//!
//! Runs on: soft, sim, rxe, siw
#![allow(clippy::print_stdout, reason = "a measurement shows its figures")]

mod at_once;
mod bound;
mod shared;
mod soft;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::cm::*;
use common::deviation::*;
use common::verbs::connected_at;
use common::*;
use futures::StreamExt;
use tokio_rdma::error::{BindError, ConnectError, StateError};
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Listener, ReadLimits, Status};

#[tokio::test]
async fn the_peer_sees_the_address_that_was_bound() {
    for ip in both() {
        let adapter = adapter();
        let (listener, address) = listening_at(&adapter, ip);
        let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
        let connector = adapter.connector();
        let bound = bind_somewhere(ip, |address| connector.bind(address));
        assert_eq!(connector.local_addr(), Ok(bound));
        let (ours, theirs) = within(async {
            tokio::join!(connector.connect_and_complete(&active, address, ConnectParams::default()), async {
                let request = listener.request().await?;
                // The request comes from the address and port of the bind (CM-01).
                assert_eq!(request.peer_addr(), bound);
                Ok(request.accept(&passive, AcceptParams::default()).await?)
            })
        })
        .await;
        let theirs: Result<_, tokio_rdma::error::AcceptError> = theirs;
        assert_eq!(ours.expect("connected").local_addr(), bound);
        assert_eq!(theirs.expect("accepted").peer_addr(), bound);
    }
}

#[tokio::test]
async fn port_zero_binds_an_ephemeral_port() {
    let adapter = adapter();
    for ip in [v4(), Ipv4Addr::UNSPECIFIED.into(), v6(), Ipv6Addr::UNSPECIFIED.into()] {
        let asked = SocketAddr::new(ip, 0);
        let connector = adapter.connector();
        connector.bind(asked).expect("bound");
        let bound = connector.local_addr().expect("bound");
        // The port is one of the ephemeral range, and the address stays the one that was given (CM-02).
        assert!(EPHEMERAL.contains(&bound.port()), "{bound}");
        assert_eq!(bound.ip(), asked.ip());
    }
    let connector = adapter.connector();
    connector.bind((Ipv4Addr::UNSPECIFIED, 0).into()).expect("bound");
    let port = connector.local_addr().expect("bound").port();
    let link = connect_on(&adapter, &queue_pair(&adapter), &connector).await;
    // CM-02: connecting settles the address and keeps the port.
    assert_eq!(link.ours.local_addr(), SocketAddr::new(v4(), port));
}

#[tokio::test]
async fn a_port_is_bound_once() {
    let adapter = adapter();
    for ip in both() {
        let (first, second) = (adapter.connector(), adapter.connector());
        let taken = bind_somewhere(ip, |address| first.bind(address));
        // Neither a connector nor a listener can bind a port that a connector holds (CM-04).
        let error = second.bind(taken).expect_err("taken");
        assert!(
            matches!(error, BindError::SharingViolation(_)) && error.status() == Status::SHARING_VIOLATION
        );
        let listener = adapter.listener();
        assert!(matches!(listener.bind(taken), Err(BindError::SharingViolation(_))));
        // X2: the failure leaves the connector as it was.
        second.bind((ip, 0).into()).expect("bound");
    }
}

#[tokio::test]
async fn an_address_of_nobody_here_is_not_bound() {
    let adapter = adapter();
    for text in ["203.0.113.9:0", "224.0.0.1:0", "[2001:db8::9]:0"] {
        let connector = adapter.connector();
        let error = connector.bind(text.parse().expect("an address")).expect_err(text);
        assert_eq!(error.status(), Status::INVALID_ADDRESS, "{text}");
        connector.bind((v4(), 0).into()).expect("it is as it was");
    }
}

// CM-06: NdDualConnection and NdDualListen, in as far as they are about binding.
#[tokio::test]
async fn nd_dual_listen_second_bind_is_already_associated() {
    let adapter = adapter();
    let (connector, listener) = (adapter.connector(), adapter.listener());
    connector.bind((v4(), 0).into()).expect("bound");
    listener.bind((v4(), 0).into()).expect("bound");
    let bound = connector.local_addr();
    for ip in both() {
        for error in [connector.bind((ip, 0).into()), listener.bind((ip, 0).into())] {
            let error = error.expect_err("bound already");
            assert!(matches!(error, BindError::AlreadyBound(_)));
            assert_eq!(error.status().code(), 0xC000_0238);
        }
    }
    assert_eq!(connector.local_addr(), bound, "the first one holds");
    listener.listen(0).expect("listening");
    let address = listener.local_addr().expect("listening");
    assert!(matches!(listener.bind((v4(), 0).into()), Err(BindError::AlreadyBound(_))));
    // Another listener does not get the address either.
    assert!(matches!(adapter.listener().bind(address), Err(BindError::SharingViolation(_))));
    // A connector that is connected is bound too.
    let _link = connect_on(&adapter, &queue_pair(&adapter), &connector).await;
    let again = connector.bind((v4(), 0).into());
    assert!(matches!(again, Err(BindError::AlreadyBound(_))), "{again:?}");
}

#[tokio::test]
async fn connect_without_bind_takes_an_ephemeral_port() {
    for ip in both() {
        let adapter = adapter();
        let open = half_open(&adapter, ip).await;
        // The implicit bind takes an ephemeral port at the local address, for IPv4 and IPv6 (CM-07, CM-31).
        assert_eq!(open.reply.local_addr().ip(), ip);
        assert!(EPHEMERAL.contains(&open.reply.local_addr().port()));
        let connection = within(open.reply.complete()).await.expect("complete");
        let accepted = outcome(open.accepting).await.expect("accepted");
        assert_eq!(accepted.peer_addr(), connection.local_addr());
    }
}

#[tokio::test]
async fn private_data_and_read_limits_cross_both_ways() {
    for ip in both() {
        let adapter = adapter();
        let (listener, address) = listening_at(&adapter, ip);
        let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
        let connector = adapter.connector();
        let connect = ConnectParams::default().private_data(&b"ask"[..]).read_limits(ReadLimits::new(3, 5));
        let accept = AcceptParams::default().private_data(&b"answer"[..]).read_limits(ReadLimits::new(4, 2));
        let passive_side = async {
            let request = listener.request().await.expect("a request");
            // Each side receives the data and the limits of the other, for IPv4 and IPv6 (CM-08, CM-31).
            assert_data(&adapter, request.private_data(), b"ask");
            assert_eq!(request.read_limits(), ReadLimits::new(5, 3));
            request.accept(&passive, accept).await.expect("accepted")
        };
        let active_side = async {
            let reply = connector.connect(&active, address, connect).await.expect("accepted");
            assert_data(&adapter, reply.private_data(), b"answer");
            let outbound = if accept_limits_reads(&adapter) { 4 } else { 5 };
            assert_eq!(reply.read_limits(), ReadLimits::new(2, outbound));
            reply.complete().await.expect("complete")
        };
        let (theirs, ours) = within(async { tokio::join!(passive_side, active_side) }).await;
        assert_eq!(ours.read_limits(), theirs.read_limits().swapped());
        exchange(&adapter, &active, &passive).await;
    }
}

// CM-09, ERR-06: where there are three phases. Where there are two, the adapter says so, and there is no waiting.
#[tokio::test]
async fn the_peer_s_accept_is_pending_until_complete() {
    for ip in both() {
        let adapter = adapter();
        let (listener, address) = listening_at(&adapter, ip);
        let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
        let mut accepting = Box::pin(listener.accept_next(&passive, AcceptParams::default()));
        let connector = adapter.connector();
        let mut connecting = Box::pin(connector.connect(&active, address, ConnectParams::default()));
        let three_phase = three_phase(&adapter);
        let (reply, accepted) = if three_phase {
            let reply = within(async {
                tokio::select! {
                    biased;
                    reply = &mut connecting => reply,
                    early = &mut accepting => panic!("accepted before complete: {early:?}"),
                }
            });
            (reply.await, None)
        } else {
            let (reply, accepted) = within(async { tokio::join!(connecting, &mut accepting) }).await;
            (reply, Some(accepted))
        };
        let reply = reply.expect("the peer accepts");
        if three_phase {
            // Everything that the peer can learn without a complete has reached it when another connection has come and gone.
            assert_usable(&adapter, &queue_pair(&adapter)).await;
            assert!(futures::poll!(&mut accepting).is_pending());
        }
        // The queue pair cannot send yet.
        let refused = active.send(adapter.buffer(1).expect("memory")).expect_err("not connected");
        assert_eq!(refused.status(), Status::CONNECTION_INVALID);
        let _ours = within(reply.complete()).await.expect("complete");
        let accepted = match accepted {
            Some(accepted) => accepted,
            None => within(accepting).await,
        };
        let _theirs = accepted.expect("accepted");
        exchange(&adapter, &active, &passive).await;
    }
}

// CM-05, CM-10, CM-11: as in NetworkDirect, a local address and port carry one connection. Sharing is NDK's alone.
#[tokio::test]
async fn a_local_port_carries_one_connection() {
    for ip in both() {
        let adapter = adapter();
        let (connector, second) = (adapter.connector(), adapter.connector());
        let bound = bind_somewhere(ip, |address| connector.bind(address));
        let link = connect_on_at(&adapter, &queue_pair(&adapter), &connector, ip).await;
        assert_eq!(link.ours.local_addr(), bound);
        let error = second.bind(bound).expect_err("the connection has the port");
        assert_eq!(error.status(), Status::SHARING_VIOLATION);
        // An accepted connection does not take the port of its listener, and several share it.
        let (listener, address) = listening_at(&adapter, ip);
        let mut accepted = Vec::new();
        for _ in 0..3 {
            let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
            let connector = adapter.connector();
            let (ours, theirs) = within(async {
                tokio::join!(
                    connector.connect_and_complete(&active, address, ConnectParams::default()),
                    listener.accept_next(&passive, AcceptParams::default())
                )
            })
            .await;
            accepted.push((active, passive, ours.expect("connected"), theirs.expect("accepted")));
        }
        assert!(accepted.iter().all(|(_, _, _, theirs)| theirs.local_addr() == address));
    }
}

#[tokio::test]
async fn only_a_traffic_class_without_ecn_bits_connects() {
    for ip in both() {
        let adapter = adapter();
        let (_listener, address) = listening_at(&adapter, ip);
        let (connector, active) = (adapter.connector(), queue_pair(&adapter));
        // CM-13: the low bits belong to congestion control, nothing may use them.
        let params = ConnectParams::default().traffic_class(0xB9);
        let error = within(connector.connect(&active, address, params)).await.expect_err("not supported");
        assert_eq!(error.status(), Status::NOT_SUPPORTED);
        assert!(matches!(error, ConnectError::NotSupported(_)) && error.is_connector_usable());
        // CM-13, CM-21: a good one connects, with the same connector and queue pair.
        let passive = queue_pair(&adapter);
        let (ours, theirs) = within(async {
            tokio::join!(
                connector.connect_and_complete(
                    &active,
                    address,
                    ConnectParams::default().traffic_class(0xB8)
                ),
                _listener.accept_next(&passive, AcceptParams::default())
            )
        })
        .await;
        let _connections = (ours.expect("connected"), theirs.expect("accepted"));
        exchange(&adapter, &active, &passive).await;
    }
}

// The kernel has MPTCP, or the connect fails at once and leaves connector and queue pair usable (CM-37).
#[tokio::test]
async fn multipath_connects_or_is_refused_at_once() {
    for ip in both() {
        let adapter = adapter();
        let (listener, address) = listening_at(&adapter, ip);
        let (connector, active, passive) = (adapter.connector(), queue_pair(&adapter), queue_pair(&adapter));
        let accepting = tokio::spawn({
            let passive = passive.clone();
            async move { listener.accept_next(&passive, AcceptParams::default()).await }
        });
        let params = ConnectParams::default().multipath(true);
        // The option is never ignored: it is had, or NOT_SUPPORTED.
        match within(connector.connect_and_complete(&active, address, params)).await {
            Ok(_connection) => {
                let _theirs = outcome(accepting).await.expect("accepted");
                exchange(&adapter, &active, &passive).await;
            }
            Err(error) => {
                assert_eq!(error.status(), Status::NOT_SUPPORTED);
                assert!(error.is_connector_usable());
                accepting.abort();
                assert_usable(&adapter, &active).await;
            }
        }
    }
}

// CM-14: what dat_ep_dup_connect does is one line here: the peer's address of the first connection, and its terms.
#[tokio::test]
async fn second_connection_to_the_same_peer_succeeds() {
    for ip in both() {
        let adapter = adapter();
        let (listener, address) = listening_at(&adapter, ip);
        let queue_pairs: Vec<_> = (0..4).map(|_| queue_pair(&adapter)).collect();
        let [first, second, first_peer, second_peer] = &queue_pairs[..] else { panic!("four") };
        let (connector, another) = (adapter.connector(), adapter.connector());
        let active = async {
            let one = connector.connect_and_complete(first, address, ConnectParams::default()).await?;
            let two = another.connect_and_complete(second, one.peer_addr(), ConnectParams::default()).await?;
            Ok::<_, ConnectError>((one, two))
        };
        let passive = async {
            let one = listener.accept_next(first_peer, AcceptParams::default()).await.expect("accepted");
            let two = listener.accept_next(second_peer, AcceptParams::default()).await.expect("accepted");
            (one, two)
        };
        let (ours, _theirs) = within(async { tokio::join!(active, passive) }).await;
        let (one, two) = ours.expect("connected");
        assert_eq!(one.peer_addr(), two.peer_addr());
        assert_ne!(one.local_addr(), two.local_addr());
        exchange(&adapter, first, first_peer).await;
        exchange(&adapter, second, second_peer).await;
    }
}

#[tokio::test]
async fn addresses_are_known_at_their_moments() {
    for ip in both() {
        let adapter = adapter();
        let invalid = Err(StateError::ConnectionInvalid);
        let (listener, address) = listening_at(&adapter, ip);
        let (connector, active) = (Arc::new(adapter.connector()), queue_pair(&adapter));
        // CM-25: before, there is none.
        assert_eq!(connector.local_addr(), invalid);
        assert_eq!(connector.peer_addr(), invalid);
        let connecting = connecting(&connector, &active, address, ConnectParams::default());
        let request = within(listener.request()).await.expect("a request");
        // CM-25: while connecting there is.
        assert_eq!(connector.local_addr(), Ok(request.peer_addr()));
        // CM-26: the peer has not answered yet.
        assert_eq!(connector.peer_addr(), invalid);
        let passive = queue_pair(&adapter);
        let accepting = tokio::spawn(async move {
            request.accept(&passive, AcceptParams::default()).await.map(|accepted| (accepted, passive))
        });
        let reply = outcome(connecting).await.expect("the peer accepts");
        // The address of the peer is known once the peer has accepted (CM-26).
        assert_eq!((reply.peer_addr(), connector.peer_addr()), (address, Ok(address)));
        let connection = within(reply.complete()).await.expect("complete");
        let (accepted, passive) = outcome(accepting).await.expect("accepted");
        // CM-25, CM-26: when connected, both ends agree.
        assert_eq!(connector.local_addr(), Ok(connection.local_addr()));
        assert_eq!(connector.peer_addr(), Ok(address));
        assert_eq!(connection.peer_addr(), address);
        assert_eq!(
            (accepted.local_addr(), accepted.peer_addr()),
            (connection.peer_addr(), connection.local_addr())
        );
        drop((accepted, passive));
        let _ = within(connection.disconnect()).await;
        // CM-26: not after the end.
        assert_eq!(connector.peer_addr(), invalid);
    }
}

// CM-29: two connects that cross are two connections.
#[tokio::test]
async fn connects_that_cross_are_two_connections() {
    for ip in both() {
        let (left, right) = (adapter(), adapter());
        let ((left_listener, left_address), (right_listener, right_address)) =
            (listening_at(&left, ip), listening_at(&right, ip));
        let queue_pairs = [&left, &right, &left, &right].map(queue_pair);
        let [left_out, right_out, left_in, right_in] = &queue_pairs;
        let (left_connector, right_connector) = (left.connector(), right.connector());
        let (a, b, c, d) = within(async {
            tokio::join!(
                left_connector.connect_and_complete(left_out, right_address, ConnectParams::default()),
                right_connector.connect_and_complete(right_out, left_address, ConnectParams::default()),
                left_listener.accept_next(left_in, AcceptParams::default()),
                right_listener.accept_next(right_in, AcceptParams::default()),
            )
        })
        .await;
        let (a, b) = (a.expect("connected"), b.expect("connected"));
        let (c, d) = (c.expect("accepted"), d.expect("accepted"));
        assert_eq!((a.local_addr(), b.local_addr()), (d.peer_addr(), c.peer_addr()));
    }
}

// CM-29: with one queue pair each, the lower rank wins and the other one takes its request, as in ndmpic.
#[tokio::test]
async fn connects_that_cross_are_settled_by_a_reject() {
    for ip in both() {
        let adapter = adapter();
        let ((low_listener, low_address), (high_listener, high_address)) =
            (listening_at(&adapter, ip), listening_at(&adapter, ip));
        let (low, high) = (queue_pair(&adapter), queue_pair(&adapter));
        let (low_connector, high_connector) = (adapter.connector(), adapter.connector());
        let low_side = async {
            let reject = async {
                let request = low_listener.request().await.expect("a request");
                // The queue pair is busy with the connect of this side.
                let params = AcceptParams::default();
                let busy = request.accept(&low, params).await.expect_err("the queue pair connects already");
                assert_eq!(busy.status(), Status::CONNECTION_ACTIVE);
                busy.handle.expect("the request is as it was").reject(b"mine first").await.expect("rejected");
            };
            let connect = low_connector.connect_and_complete(&low, high_address, ConnectParams::default());
            tokio::join!(connect, reject).0.expect("connected")
        };
        let high_side = async {
            let error = high_connector.connect(&high, low_address, ConnectParams::default()).await;
            assert_bytes(&adapter, error.expect_err("rejected").private_data(), b"mine first");
            high_listener.accept_next(&high, AcceptParams::default()).await.expect("accepted")
        };
        let (_ours, _theirs) = within(async { tokio::join!(low_side, high_side) }).await;
        exchange(&adapter, &low, &high).await;
    }
}

// An adapter with the loopback flag connects to its own address (CM-30).
#[tokio::test]
async fn an_adapter_connects_to_itself() {
    for ip in both() {
        let adapter = adapter();
        assert!(adapter.info().loopback);
        let pair = connected_at(&adapter, ip).await;
        exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
        // But a connector does not connect to itself, where TCP would.
        let (connector, active) = (adapter.connector(), queue_pair(&adapter));
        connector.bind((ip, 0).into()).expect("bound");
        let own = connector.local_addr().expect("bound");
        let error = within(connector.connect(&active, own, ConnectParams::default())).await;
        assert_eq!(error.expect_err("nobody listens there").status(), Status::CONNECTION_REFUSED);
        assert_usable(&adapter, &active).await;
    }
}

/// How long each of many connects took, and how many failed.
#[derive(Debug)]
struct Rate {
    times: Vec<Duration>,
    failures: usize,
    total: Duration,
}

impl Rate {
    /// Connects and disconnects so often, `at_once` at a time, to a server that accepts everybody.
    async fn measure(adapter: &Adapter, ip: IpAddr, connects: usize, at_once: usize) -> Self {
        let (listener, address) = listening_at(adapter, ip);
        let serving = tokio::spawn(serve(adapter.clone(), listener, at_once));
        let begun = Instant::now();
        let outcomes = futures::stream::iter(0..connects)
            .map(|_| tokio::spawn(within(connect_once(adapter.clone(), address))))
            .buffer_unordered(at_once)
            .map(|outcome| outcome.expect("no panic"));
        let outcomes: Vec<_> = outcomes.collect().await;
        let total = begun.elapsed();
        serving.abort();
        let failures = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        let mut times: Vec<_> = outcomes.into_iter().flatten().collect();
        times.sort_unstable();
        Self { times, failures, total }
    }

    /// Returns the time in which this share of the connects was done, in percent.
    fn percentile(&self, percent: usize) -> Duration {
        self.times[(self.times.len() - 1) * percent / 100]
    }
}

/// Accepts everybody, and keeps so many handshakes under way.
async fn serve(adapter: Adapter, listener: Listener, at_once: usize) {
    let listener = &listener;
    let served = (0..at_once).map(|_| async {
        loop {
            let queue_pair = queue_pair(&adapter);
            let accepted = listener.accept_next(&queue_pair, AcceptParams::default()).await;
            if let Ok(connection) = accepted {
                connection.disconnected().await;
            }
        }
    });
    futures::future::join_all(served).await;
}

/// Connects, disconnects, and returns how long the connect took.
async fn connect_once(adapter: Adapter, address: SocketAddr) -> Result<Duration, ConnectError> {
    let (queue_pair, connector) = (queue_pair(&adapter), adapter.connector());
    let begun = Instant::now();
    let connection = connector.connect_and_complete(&queue_pair, address, ConnectParams::default()).await?;
    let time = begun.elapsed();
    connection.disconnect().await.expect("disconnected");
    Ok(time)
}

// CM-32, CM-36: as ndconn and cmtime do, one after the other and many at once; none fails. How long an answer may
// take at most, `flood` measures.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequential_and_concurrent_connects_all_succeed() {
    let connects = often(1000, 50);
    let adapter = adapter();
    for (ip, at_once) in [(v4(), 1), (v4(), 32), (v6(), 32)] {
        // A device of the guest has few queue pairs for one process.
        let at_once = if device::is_emulated() { at_once.min(8) } else { at_once };
        let rate = Rate::measure(&adapter, ip, connects, at_once).await;
        assert_eq!((rate.failures, rate.times.len()), (0, connects), "{at_once} at once to {ip}");
        let [half, most, nearly_all, longest] = [50, 90, 99, 100].map(|percent| rate.percentile(percent));
        println!(
            "{connects} connects to {ip}, {at_once} at once, in {:?}: p50 {half:?}, p90 {most:?}, p99 {nearly_all:?}, \
             longest {longest:?}",
            rate.total
        );
        // No connect took longer than all of them, and each percentile is what its name says.
        assert!(longest <= rate.total);
        for (percent, time) in [(50, half), (90, most), (99, nearly_all), (100, longest)] {
            let done = rate.times.iter().filter(|own| **own <= time).count();
            assert!(done * 100 >= (connects - 1) * percent, "{done} of {connects} in p{percent}");
        }
    }
}
