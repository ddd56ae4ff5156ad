//! `dat_ep_connect`: the items that need a raw socket or a separate network. The module `udapl_ep_connect` has the rest of what
//! is particular to the page.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use common::net::isolated;
use common::seeds::*;
use common::*;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio_rdma::ConnectParams;
use tokio_rdma::error::ConnectError;

use super::fresh;

/// A peer whose kernel answers and which says nothing itself; it can be asked who came.
fn heard(ip: IpAddr) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((ip, 0)).expect("bound");
    let address = listener.local_addr().expect("its address");
    (listener, address)
}

// The value must be positive. Zero fails before anything is sent to the peer (CM-12, X30).
#[tokio::test]
async fn timeout_of_zero() {
    let adapter = adapter();
    let (connector, queue_pair) = fresh(&adapter);
    let (holder, address) = heard(v4());
    let params = ConnectParams::default().timeout(Duration::ZERO);
    let error = within(connector.connect(&queue_pair, address, params)).await.expect_err("no patience");
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
    settled().await;
    holder.set_nonblocking(true).expect("an option");
    assert!(holder.accept().is_err(), "nobody came");
    connects(&connector, &adapter, &queue_pair).await;
}

// The least value of the page is a limit, too (CM-12), however long the clock needs to notice it (X30).
#[tokio::test]
async fn timeout_of_one_microsecond() {
    let adapter = adapter();
    let (connector, queue_pair) = fresh(&adapter);
    let (_holder, address) = heard(v4());
    let least = Duration::from_micros(1);
    let params = ConnectParams::default().timeout(least);
    let error = within(connector.connect(&queue_pair, address, params)).await.expect_err("no answer");
    assert!(
        matches!(error, ConnectError::TimedOut { limit: Some(limit), .. } if limit == least),
        "{error:?}"
    );
    connects(&connector, &adapter, &queue_pair).await;
}

// CM-13: seen by a peer whose kernel answers in the class that it is asked in.
#[test]
fn qos_is_in_the_packets() {
    isolated(async || {
        std::fs::write("/proc/sys/net/ipv4/tcp_reflect_tos", "1").expect("a setting");
        for ip in both() {
            let adapter = adapter_at(ip);
            let (holder, address) = heard(ip);
            // Also on a socket that was bound before the class was known.
            let cases =
                [None, Some(0x68), Some(0xb8)].into_iter().flat_map(|class| [(class, false), (class, true)]);
            for (class, bound) in cases {
                let params = ConnectParams::default();
                let params = class.map_or(params.clone(), |class| params.traffic_class(class));
                let (connector, queue_pair) = fresh(&adapter);
                if bound {
                    connector.bind((ip, 0).into()).expect("bound");
                }
                let _connecting = connecting(&Arc::new(connector), &queue_pair, address, params);
                settled().await;
                let (stream, _) = holder.accept().expect("a connection");
                let socket = SockRef::from(&stream);
                let seen = if ip.is_ipv4() { socket.tos_v4() } else { socket.tclass_v6() };
                assert_eq!(seen.expect("an option"), u32::from(class.unwrap_or(0)), "{ip}, bound: {bound}");
            }
        }
    });
}

// CM-37: `connect_flags`, default 0; with the flag: multipath, where the kernel has it, and otherwise not at all.
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
