//! Connecting and listening on networks beyond loopback: routes that refuse, packets that are lost, several interfaces,
//! IPv6 over a cable.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use common::net::*;
use common::*;
use tokio::sync::Barrier;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Connector, Listener, Provider, QueuePair, Status};

/// Returns the status of a connect that fails and leaves its connector usable.
async fn failure(
    connector: &Connector,
    queue_pair: &QueuePair,
    peer: SocketAddr,
    params: ConnectParams,
) -> Status {
    let error = within(connector.connect(queue_pair, peer, params)).await.expect_err("not connected");
    assert!(error.is_connector_usable(), "{error}");
    error.status()
}

/// Connects the same connector and queue pair to a listener of `to`, which sends a message to the receive that was
/// posted before.
async fn succeeds(connector: &Connector, queue_pair: &QueuePair, to: &Adapter, listener: &Listener) -> Pair {
    let theirs = common::queue_pair(to);
    let address = listener.local_addr().expect("it listens");
    let active = connector.connect_and_complete(queue_pair, address, ConnectParams::default());
    let (active, passive) = within(async {
        tokio::join!(async { active.await.expect("connected") }, async {
            listener.accept_next(&theirs, AcceptParams::default()).await.expect("accepted")
        },)
    })
    .await;
    let (outcome, _) = within(theirs.send(to.buffer_from(b"hello").expect("memory")).expect("posted")).await;
    outcome.expect("sent");
    assert_eq!(active.local_addr(), passive.peer_addr());
    Pair {
        active: End { queue_pair: queue_pair.clone(), connection: active },
        passive: End { queue_pair: theirs, connection: passive },
    }
}

/// Makes a connector in the state that the test is about.
fn connector(adapter: &Adapter, bound_to: Option<IpAddr>) -> Connector {
    let connector = adapter.connector();
    if let Some(ip) = bound_to {
        connector.bind(SocketAddr::new(ip, 0)).expect("bound");
    }
    connector
}

#[test]
fn refusing_routes_are_unreachable() {
    with_two_interfaces(async || {
        for (kind, v4, v6) in [
            ("unreachable", "10.81.0.0/16", "fd81::/16"),
            ("prohibit", "10.82.0.0/16", "fd82::/16"),
            ("blackhole", "10.83.0.0/16", "fd83::/16"),
        ] {
            ip(&format!("route add {kind} {v4}"));
            ip(&format!("-6 route add {kind} {v6}"));
        }
        // Neighbours that do not answer are given up after one question.
        std::fs::write("/proc/sys/net/ipv4/neigh/left/mcast_solicit", "1").expect("sysctl");
        std::fs::write("/proc/sys/net/ipv4/neigh/left/retrans_time_ms", "50").expect("sysctl");
        std::fs::write("/proc/sys/net/ipv6/neigh/left/mcast_solicit", "1").expect("sysctl");
        std::fs::write("/proc/sys/net/ipv6/neigh/left/retrans_time_ms", "50").expect("sysctl");
        let (left, right) =
            (soft_at(LEFT[0], SoftConfig::default()), soft_at(RIGHT[0], SoftConfig::default()));
        let cases = [
            ("no route", ["10.80.0.1:7", "[fd80::1]:7"], Status::NETWORK_UNREACHABLE),
            ("unreachable", ["10.81.0.1:7", "[fd81::1]:7"], Status::HOST_UNREACHABLE),
            ("prohibit", ["10.82.0.1:7", "[fd82::1]:7"], Status::HOST_UNREACHABLE),
            ("blackhole", ["10.83.0.1:7", "[fd83::1]:7"], Status::NETWORK_UNREACHABLE),
            ("nobody there", ["10.77.0.99:7", "[fd77::99]:7"], Status::HOST_UNREACHABLE),
        ];
        for family in [0, 1] {
            for bound_to in [None, Some(LEFT[family])] {
                let connector = connector(&left, bound_to);
                let local = connector.local_addr();
                let queue_pair = queue_pair(&left);
                let receive = queue_pair.receive(left.buffer(16).expect("memory")).expect("posted");
                for (what, peers, expected) in cases {
                    let peer = peers[family].parse().expect("an address");
                    let status = failure(&connector, &queue_pair, peer, ConnectParams::default()).await;
                    // Each kind of route has its status, and the connector keeps its address (CM-17).
                    assert_eq!(status, expected, "{what}, {peer}, bound to {bound_to:?}");
                    assert_eq!(connector.local_addr(), local, "{what}: the connector is as it was");
                }
                // After all these failures the same connector and queue pair connect (CM-19).
                let (listener, _) = listening_at(&right, RIGHT[family]);
                let _pair = succeeds(&connector, &queue_pair, &right, &listener).await;
                let (outcome, buffer) = within(receive).await;
                assert_eq!(&buffer[..outcome.expect("received").bytes], b"hello");
            }
        }
    });
}

#[test]
fn a_silent_connect_times_out() {
    with_two_interfaces(async || {
        let (left, right) =
            (soft_at(LEFT[0], SoftConfig::default()), soft_at(RIGHT[0], SoftConfig::default()));
        for family in [0, 1] {
            for bound_to in [None, Some(LEFT[family])] {
                let (listener, address) = listening_at(&right, RIGHT[family]);
                let connector = connector(&left, bound_to);
                let local = connector.local_addr();
                let queue_pair = queue_pair(&left);
                let receive = queue_pair.receive(left.buffer(16).expect("memory")).expect("posted");
                filter(&format!("tcp dport {} tcp flags syn drop;", address.port()));
                for _ in 0..2 {
                    let timeout = Duration::from_millis(100);
                    let params = ConnectParams::default().timeout(timeout);
                    let begun = std::time::Instant::now();
                    // CM-18: no sooner than the caller said.
                    assert_eq!(failure(&connector, &queue_pair, address, params).await, Status::IO_TIMEOUT);
                    assert!(begun.elapsed() >= timeout, "after {:?}", begun.elapsed());
                    assert_eq!(connector.local_addr(), local);
                }
                heal();
                // After two timeouts the same connector and queue pair connect (CM-19).
                let _pair = succeeds(&connector, &queue_pair, &right, &listener).await;
                let (outcome, _) = within(receive).await;
                assert_eq!(outcome.expect("received").bytes, 5);
            }
        }
    });
}

#[test]
fn the_kernel_gives_unreachable_peers_up() {
    with_two_interfaces(async || {
        std::fs::write("/proc/sys/net/ipv4/tcp_syn_retries", "1").expect("sysctl");
        let adapter = soft_at(LEFT[0], SoftConfig::default());
        filter("tcp dport 7000 drop;");
        let attempts = LEFT.map(|local| connector(&adapter, Some(local)));
        let [v4, v6] = [0, 1].map(|family| {
            let peer = SocketAddr::new(RIGHT[family], 7000);
            let own = common::queue_pair(&adapter);
            let attempt = &attempts[family];
            async move { failure(attempt, &own, peer, ConnectParams::default()).await }
        });
        let begun = std::time::Instant::now();
        // CM-18: the first request, and one more after a second.
        assert_eq!(futures::join!(v4, v6), (Status::IO_TIMEOUT, Status::IO_TIMEOUT));
        assert!(begun.elapsed() >= Duration::from_secs(1), "after {:?}", begun.elapsed());
        // After the timeout of the kernel the same connectors connect (CM-19).
        heal();
        let right = soft_at(RIGHT[0], SoftConfig::default());
        for (family, attempt) in attempts.iter().enumerate() {
            let queue_pair = queue_pair(&adapter);
            let _receive = queue_pair.receive(adapter.buffer(16).expect("memory")).expect("posted");
            let (listener, _) = listening_at(&right, RIGHT[family]);
            let _pair = succeeds(attempt, &queue_pair, &right, &listener).await;
        }
    });
}

/// Returns the number of packets that a counter of the namespace has counted.
fn packets(counter: &str) -> u64 {
    let text = nft(&format!("list counter inet t {counter}"));
    let words: Vec<_> = text.split_whitespace().collect();
    let place = words.iter().position(|word| *word == "packets").expect("a counter");
    words[place + 1].parse().expect("a number")
}

#[test]
fn traffic_class_is_in_every_active_packet() {
    let met = Arc::new(Barrier::new(2));
    let other = met.clone();
    let meet = async |barrier: &Barrier| {
        within(barrier.wait()).await;
    };
    two_hosts(
        async move || {
            let adapter = soft_at(LEFT[0], SoftConfig::default());
            for peer in RIGHT {
                // Once as it comes, once on a socket that was bound before the class was known.
                for bound in [false, true] {
                    meet(&met).await;
                    let connector = adapter.connector();
                    if bound {
                        let local = if peer.is_ipv4() { LEFT[0] } else { LEFT[1] };
                        connector.bind(SocketAddr::new(local, 0)).expect("bound");
                    }
                    let queue_pair = queue_pair(&adapter);
                    // Expedited forwarding, 46 shifted past the two bits of congestion control.
                    let params = ConnectParams::default().traffic_class(46 << 2);
                    let connection = within(connector.connect_and_complete(
                        &queue_pair,
                        SocketAddr::new(peer, 7000),
                        params,
                    ))
                    .await
                    .expect("connected");
                    let buffer = adapter.buffer(100_000).expect("memory");
                    within(queue_pair.send(buffer).expect("posted")).await.0.expect("sent");
                    meet(&met).await;
                    drop(connection);
                }
            }
        },
        async move || {
            let adapter = soft_at(RIGHT[0], SoftConfig::default());
            for local in RIGHT {
                let listener = adapter.listener();
                listener.bind(SocketAddr::new(local, 7000)).expect("bound");
                listener.listen(0).expect("listening");
                for _ in 0..2 {
                    nft("table inet t { counter every { }; counter opened { }; counter classed { }; \
                         chain c { type filter hook input priority 0; \
                         tcp dport 7000 counter name every; tcp dport 7000 tcp flags syn counter name opened; \
                         tcp dport 7000 ip dscp 46 counter name classed; \
                         tcp dport 7000 ip6 dscp 46 counter name classed; }; }");
                    meet(&other).await;
                    let queue_pair = queue_pair(&adapter);
                    let receive =
                        queue_pair.receive(adapter.buffer(100_000).expect("memory")).expect("posted");
                    let connection = within(listener.accept_next(&queue_pair, AcceptParams::default()));
                    let connection = connection.await.expect("accepted");
                    within(receive).await.0.expect("received");
                    // CM-13: handshake and data alike.
                    let (all, classed) = (packets("every"), packets("classed"));
                    assert!(packets("opened") > 0 && all > 3, "{all} packets");
                    assert_eq!(classed, all, "to {local}");
                    heal();
                    meet(&other).await;
                    within(connection.disconnected()).await;
                }
            }
        },
    );
}

// A connector without an address of its own stays with the addresses of its adapter (CM-31), and connects again (CM-19).
#[test]
fn unspecified_bind_stays_with_its_adapter() {
    with_two_interfaces(async || {
        let loopback = adapter();
        let left = soft_at(LEFT[0], SoftConfig::default());
        let (_listener, elsewhere) = listening_at(&left, LEFT[0]);
        let connector = connector(&loopback, Some(Ipv4Addr::UNSPECIFIED.into()));
        let (queue_pair, local) = (queue_pair(&loopback), connector.local_addr());
        let status = failure(&connector, &queue_pair, elsewhere, ConnectParams::default()).await;
        assert_eq!(status, Status::NETWORK_UNREACHABLE);
        assert_eq!(connector.local_addr(), local);
        let _receive = queue_pair.receive(loopback.buffer(16).expect("memory")).expect("posted");
        let (listener, _) = listening(&loopback);
        let pair = succeeds(&connector, &queue_pair, &loopback, &listener).await;
        assert!(loopback.info().addresses.contains(&pair.active.connection.local_addr().ip()));
    });
}

#[tokio::test]
async fn congestion_bits_in_a_traffic_class_are_refused() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
    let _receive = queue_pair.receive(adapter.buffer(16).expect("memory")).expect("posted");
    for class in [1, 2, (46 << 2) | 3] {
        let params = ConnectParams::default().traffic_class(class);
        // The two low bits are those of congestion notification (RFC 3168), which belong to the kernel (CM-13).
        assert_eq!(failure(&connector, &queue_pair, address, params).await, Status::NOT_SUPPORTED, "{class}");
    }
    let _pair = succeeds(&connector, &queue_pair, &adapter, &listener).await;
}

#[test]
fn two_hosts_talk_over_ipv4_and_ipv6() {
    let (tell, mut told) = tokio::sync::mpsc::channel::<SocketAddr>(1);
    two_hosts(
        async move || {
            let adapter = soft_at(LEFT[1], SoftConfig::default());
            while let Some(address) = within(told.recv()).await {
                let queue_pair = queue_pair(&adapter);
                let params = ConnectParams::default().private_data(address.ip().to_string().into_bytes());
                let reply = within(adapter.connector().connect(&queue_pair, address, params)).await;
                let reply = reply.expect("accepted");
                // Each side sees the address of the family that the connect chose (CM-31).
                assert_eq!(reply.peer_addr(), address);
                assert_eq!(reply.local_addr().ip(), if address.is_ipv4() { LEFT[0] } else { LEFT[1] });
                assert_eq!(&reply.private_data()[..], b"welcome");
                let receive = queue_pair.receive(adapter.buffer(64).expect("memory")).expect("posted");
                let connection = within(reply.complete()).await.expect("complete");
                let (outcome, message) = within(receive).await;
                let bytes = outcome.expect("received").bytes;
                let remote = tokio_rdma::RemoteRegion::decode(&message[..bytes]).expect("a region");
                let data = adapter.buffer_from(&[7; 5000]).expect("memory");
                within(queue_pair.write(data, &remote).expect("posted")).await.0.expect("written");
                let back = adapter.buffer(5000).expect("memory");
                let (outcome, back) = within(queue_pair.read(back, &remote).expect("posted")).await;
                outcome.expect("read");
                assert_eq!(&back[..], &[7; 5000]);
                within(connection.disconnect()).await.expect("disconnected");
            }
        },
        async move || {
            use tokio_rdma::Access;
            let adapter = soft_at(RIGHT[1], SoftConfig::default());
            for local in RIGHT {
                let (listener, address) = listening_at(&adapter, local);
                within(tell.send(address)).await.expect("the other host");
                let request = within(listener.request()).await.expect("a request");
                assert_eq!(request.local_addr(), address);
                assert_eq!(&request.private_data()[..], local.to_string().as_bytes());
                let queue_pair = queue_pair(&adapter);
                let params = AcceptParams::default().private_data(&b"welcome"[..]);
                let connection = within(request.accept(&queue_pair, params)).await.expect("connected");
                let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
                let region = adapter.register(5000, rights).await.expect("registered");
                let message = adapter.buffer_from(&region.remote().to_bytes()).expect("memory");
                within(queue_pair.send(message).expect("posted")).await.0.expect("sent");
                let reason = within(connection.disconnected()).await;
                assert_eq!(reason, tokio_rdma::DisconnectReason::Peer);
            }
        },
    );
}

#[test]
fn unspecified_address_listens_on_one_adapter_only() {
    with_two_interfaces(async || {
        ip("address add 10.77.1.1/24 dev left");
        let (left, right) =
            (soft_at(LEFT[0], SoftConfig::default()), soft_at(RIGHT[0], SoftConfig::default()));
        let loopback = adapter();
        let second: IpAddr = "10.77.1.1".parse().expect("an address");
        for (any, family) in [("0.0.0.0", 0), ("::", 1)] {
            let any: IpAddr = any.parse().expect("an address");
            let (listener, at) = listening_at(&left, any);
            let try_at = async |ip: IpAddr, adapter: &Adapter| {
                let own = queue_pair(adapter);
                let to = SocketAddr::new(ip, at.port());
                within(adapter.connector().connect_and_complete(&own, to, ConnectParams::default()))
                    .await
                    .map(|connection| (connection, own))
            };
            let mine: &[IpAddr] = if family == 0 { &[LEFT[0], second] } else { &[LEFT[1]] };
            for address in mine {
                let theirs = queue_pair(&left);
                let (_active, passive) =
                    tokio::join!(async { try_at(*address, &right).await.expect("connected") }, async {
                        within(listener.accept_next(&theirs, AcceptParams::default()))
                            .await
                            .expect("accepted")
                    },);
                // The listener accepts at each address of its adapter (LS-03).
                assert_eq!(passive.local_addr(), SocketAddr::new(*address, at.port()));
            }
            // No other adapter's address leads to the listener (LS-03).
            let localhost: IpAddr = ["127.0.0.1", "::1"][family].parse().expect("an address");
            for (address, from) in [(RIGHT[family], &right), (RIGHT[family], &left), (localhost, &loopback)] {
                let error = try_at(address, from).await.expect_err("nobody listens there");
                assert_eq!(error.status(), Status::CONNECTION_REFUSED, "{address}");
            }
            // LS-03: so the same port is free on the other adapter, and leads elsewhere.
            let other = right.listener();
            other.bind(SocketAddr::new(any, at.port())).expect("bound");
            other.listen(0).expect("listening");
            let theirs = queue_pair(&right);
            tokio::join!(async { try_at(RIGHT[family], &left).await.expect("connected") }, async {
                within(other.accept_next(&theirs, AcceptParams::default())).await.expect("accepted")
            },);
        }
    });
}

#[test]
fn adapters_are_resolved_by_address_and_route() {
    with_two_interfaces(async || {
        ip("link add spare type veth peer name other");
        ip("address add 10.78.0.1/24 dev spare");
        ip("route add 10.84.0.0/16 via 10.77.0.50");
        ip("route add unreachable 10.85.0.0/16");
        let provider = Provider::soft().expect("the soft provider");
        let known = provider.addresses().expect("addresses");
        for side in [LEFT, RIGHT] {
            // Both addresses of an interface belong to one adapter (PRV-04).
            let ids = side.map(|ip| provider.resolve(ip).expect("an adapter"));
            assert_eq!(ids[0], ids[1]);
            let adapter = provider.open(ids[0]).expect("opened");
            assert!(side.iter().all(|ip| adapter.info().addresses.contains(ip)), "{:?}", adapter.info());
            // Every listed address of the two interfaces is usable (PRV-06).
            assert!(side.iter().all(|ip| provider.is_usable(*ip) && known.contains(ip)));
        }
        assert_ne!(provider.resolve(LEFT[0]).expect("left"), provider.resolve(RIGHT[0]).expect("right"));
        for stranger in ["10.77.0.99", "fd77::99", "10.84.0.1"] {
            let stranger = stranger.parse().expect("an address");
            // An address of the same network that no interface has belongs to no adapter (PRV-04).
            let error = provider.resolve(stranger).expect_err("nobody's");
            assert_eq!(error.status(), Status::INVALID_ADDRESS, "{stranger}");
            // An address that no interface has is not usable (PRV-06).
            assert!(!provider.is_usable(stranger), "{stranger}");
        }
        // PRV-06: known, but its interface is switched off.
        assert!(!provider.is_usable("10.78.0.1".parse().expect("an address")));
        for (peer, local) in [
            ("127.0.0.1", Ok("127.0.0.1")),
            ("::1", Ok("::1")),
            ("10.84.0.1", Ok("10.77.0.1")),
            ("10.77.0.2", Ok("10.77.0.2")),
            ("10.80.0.1", Err(Status::NETWORK_UNREACHABLE)),
            ("10.85.0.1", Err(Status::NETWORK_UNREACHABLE)),
            ("fd80::1", Err(Status::NETWORK_UNREACHABLE)),
            ("224.0.0.1", Err(Status::INVALID_ADDRESS)),
            ("0.0.0.0", Err(Status::INVALID_ADDRESS)),
        ] {
            let found = provider.local_for(peer.parse().expect("an address"));
            let expected = local.map(|local| local.parse::<IpAddr>().expect("an address"));
            // The route of the kernel determines the local address, also through a gateway (PRV-05).
            assert_eq!(found.map_err(|error| error.status()), expected, "{peer}");
        }
    });
}

#[test]
fn failed_attempts_and_ended_connections_free_ports() {
    with_two_interfaces(async || {
        // One port only: whatever keeps it fails the next step.
        let config = SoftConfig::default().ephemeral_ports(50_001..=50_001);
        let (left, right) = (soft_at(LEFT[0], config), soft_at(RIGHT[0], SoftConfig::default()));
        filter("tcp dport 7000 drop;");
        for (peer, expected) in [
            ("10.77.0.2:7000", Status::IO_TIMEOUT),
            ("10.77.0.2:7001", Status::CONNECTION_REFUSED),
            ("10.80.0.1:7000", Status::NETWORK_UNREACHABLE),
        ] {
            for _ in 0..3 {
                let queue_pair = queue_pair(&left);
                let params = ConnectParams::default().timeout(Duration::from_millis(50));
                let peer = peer.parse().expect("an address");
                assert_eq!(failure(&left.connector(), &queue_pair, peer, params).await, expected);
            }
        }
        let pair = connected_across(&left, &right, RIGHT[0]).await;
        assert_eq!(pair.active.connection.local_addr(), SocketAddr::new(LEFT[0], 50_001));
        let error = left.connector().bind(SocketAddr::new(LEFT[0], 0)).expect_err("none is left");
        assert_eq!(error.status(), Status::TOO_MANY_ADDRESSES);
        within(pair.passive.connection.disconnect()).await.expect("disconnected");
        assert_eq!(within(pair.active.connection.disconnected()).await, tokio_rdma::DisconnectReason::Peer);
        drop(pair);
        let pair = connected_across(&left, &right, RIGHT[0]).await;
        assert_eq!(pair.active.connection.local_addr().port(), 50_001);
        drop((pair, left, right));
        nothing_left().await;
    });
}

#[test]
fn a_bound_connector_keeps_its_address() {
    with_two_interfaces(async || {
        let (left, right) =
            (soft_at(LEFT[0], SoftConfig::default()), soft_at(RIGHT[0], SoftConfig::default()));
        for family in [0, 1] {
            let (listener, address) = listening_at(&right, RIGHT[family]);
            let silent = tokio::net::TcpListener::bind((RIGHT[family], 0)).await.expect("a listener");
            let connector = connector(&left, Some(LEFT[family]));
            let local = connector.local_addr().expect("bound");
            let queue_pair = queue_pair(&left);
            let _receive = queue_pair.receive(left.buffer(16).expect("memory")).expect("posted");
            for _ in 0..2 {
                let params = ConnectParams::default().timeout(Duration::from_millis(100));
                let to = silent.local_addr().expect("an address");
                // CM-18: it is connected to, and says nothing.
                assert_eq!(failure(&connector, &queue_pair, to, params).await, Status::IO_TIMEOUT);
                assert_eq!(connector.local_addr(), Ok(local));
                let reject = async {
                    let request = within(listener.request()).await.expect("a request");
                    assert_eq!(request.peer_addr(), local);
                    request.reject(b"no").await.expect("rejected");
                };
                let (status, ()) =
                    tokio::join!(failure(&connector, &queue_pair, address, ConnectParams::default()), reject);
                assert_eq!(status, Status::CONNECTION_REFUSED);
                assert_eq!(connector.local_addr(), Ok(local));
            }
            // The same connector connects from its bound address after timeouts and rejections (CM-19).
            let pair = succeeds(&connector, &queue_pair, &right, &listener).await;
            assert_eq!(pair.active.connection.local_addr(), local);
        }
    });
}

// A connector does not share its port, and binds it before the runtime drops the tasks of the listener (LS-08).
#[test]
fn connector_binds_port_of_dropped_listener() {
    isolated(async || {
        for address in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
            let adapter = soft_at(address, SoftConfig::default());
            let (listener, address) = listening_at(&adapter, address);
            // The task of the listener waits for a connection.
            tokio::task::yield_now().await;
            drop(listener);
            adapter.connector().bind(address).expect("free");
        }
    });
}
