//! Adapters that stay open while the addresses of their interfaces change.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use common::net::*;
use common::*;
use tokio::io::AsyncReadExt;
use tokio::sync::Barrier;
use tokio::time::{pause, sleep};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{
    AcceptParams, Adapter, ConnectParams, Provider, RdmaConnector, RdmaListener, RdmaStream, Status,
    StreamConfig,
};

/// The address that takes the place of `LEFT[0]`.
const NEW: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 3));
/// The port of the right host.
const PORT: u16 = 7;

fn adapters() -> (Adapter, Adapter) {
    (soft_at(LEFT[0], SoftConfig::default()), soft_at(RIGHT[0], SoftConfig::default()))
}

fn renumber() {
    ip("address del 10.77.0.1/24 dev left");
    ip("address add 10.77.0.3/24 dev left");
}

/// An adapter that is removed when the loss of the last address is noticed.
fn witness() -> Adapter {
    soft_at(LEFT[0], SoftConfig::default().address_timeout(Duration::ZERO))
}

/// Resolves when an adapter that exists now is removed.
fn removal(adapter: &Adapter) -> impl Future<Output = ()> + use<> {
    let (listener, _) = listening_at(adapter, LEFT[0]);
    async move {
        let error = within(listener.request()).await.expect_err("no request comes");
        assert_eq!(error.status(), Status::DEVICE_REMOVED);
    }
}

// PRV-05, CM-07: the address that an interface had when it was opened may be gone, and another one there.
#[test]
fn a_renumbered_interface_connects_from_its_new_address() {
    with_two_interfaces(async || {
        let (left, right) = adapters();
        renumber();
        let pair = connected_across(&left, &right, RIGHT[0]).await;
        assert_eq!(pair.active.connection.local_addr().ip(), NEW);
        exchange((&left, &pair.active), (&right, &pair.passive)).await;
        assert_eq!(left.info().addresses, [NEW, LEFT[1]]);
    });
}

// LS-03: all addresses of an adapter are those that it has when the listener is bound.
#[test]
fn a_renumbered_interface_listens_at_its_new_address() {
    with_two_interfaces(async || {
        let (left, right) = adapters();
        renumber();
        for at in [NEW, Ipv4Addr::UNSPECIFIED.into()] {
            let (listener, address) = listening_at(&left, at);
            let (connector, ours, theirs) = (right.connector(), queue_pair(&right), queue_pair(&left));
            let to = SocketAddr::new(NEW, address.port());
            let (connected, accepted) = within(async {
                tokio::join!(
                    connector.connect_and_complete(&ours, to, ConnectParams::default()),
                    listener.accept_next(&theirs, AcceptParams::default())
                )
            })
            .await;
            assert_eq!(
                (connected.expect("connected").peer_addr(), accepted.expect("accepted").local_addr()),
                (to, to)
            );
        }
        let gone = left.listener().bind(SocketAddr::new(LEFT[0], 0)).expect_err("the address is gone");
        assert_eq!(gone.status(), Status::INVALID_ADDRESS);
    });
}

// CM-01: a connector is bound to an address that was added while its adapter was open, but not to that of another interface.
#[test]
fn a_connector_binds_to_an_added_address() {
    with_two_interfaces(async || {
        let (left, right) = adapters();
        ip("address add 10.77.0.3/24 dev left");
        let connector = left.connector();
        connector.bind(SocketAddr::new(NEW, 0)).expect("the adapter has it now");
        let foreign = right.connector().bind(SocketAddr::new(NEW, 0)).expect_err("the other one has it");
        assert_eq!(foreign.status(), Status::INVALID_ADDRESS);
    });
}

/// A connector connects streams from the left host to the right one, each after a step, and from the address that is given.
fn connects_after_each_step(
    prepare: &'static [&'static str],
    steps: &'static [(&'static [&'static str], usize, &'static str)],
) {
    let (listening, done) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (left_listening, left_done) = (listening.clone(), done.clone());
    let left = async move || {
        prepare.iter().for_each(|command| ip(command));
        let connector = RdmaConnector::new().provider(Provider::soft().expect("the soft provider"));
        within(left_listening.wait()).await;
        let mut streams = Vec::new();
        for (commands, family, from) in steps {
            let from: IpAddr = from.parse().expect("an address");
            commands.iter().for_each(|command| ip(command));
            let chosen = connector.clone().config(StreamConfig::default().source(from));
            // The first stream keeps the adapter open; the last way opens one of its own.
            for connector in [&connector, &chosen] {
                let stream = within(connector.connect((RIGHT[*family], PORT))).await.expect("connected");
                assert_eq!(stream.local_addr().expect("an address").ip(), from, "{commands:?}");
                streams.push(stream);
            }
            let stream = within(RdmaStream::connect((RIGHT[*family], PORT))).await.expect("connected");
            assert_eq!(stream.local_addr().expect("an address").ip(), from, "{commands:?}");
            streams.push(stream);
        }
        within(left_done.wait()).await;
    };
    let right = async move || {
        let listener = RdmaListener::bind(("::", PORT)).await.expect("bound");
        within(listening.wait()).await;
        let mut accepted = Vec::new();
        tokio::select! {
            biased;
            _ = within(done.wait()) => {}
            () = async { loop { accepted.push(listener.accept().await.expect("accepted")) } } => {}
        }
    };
    two_hosts(left, right);
}

// A connector that is kept follows the addresses of its interface (IO-08).
#[test]
fn streams_follow_a_renumbered_interface() {
    connects_after_each_step(
        &[],
        &[
            (&[], 0, "10.77.0.1"),
            (&["address del 10.77.0.1/24 dev left", "address add 10.77.0.3/24 dev left"], 0, "10.77.0.3"),
        ],
    );
}

// An adapter that was opened with IPv6 alone serves IPv4, too (IO-08).
#[test]
fn streams_use_the_family_that_was_added() {
    connects_after_each_step(
        &["address del 10.77.0.1/24 dev left"],
        &[(&[], 1, "fd77::1"), (&["address add 10.77.0.3/24 dev left"], 0, "10.77.0.3")],
    );
}

// IO-08: the addresses of RFC 8981, which are replaced each day.
#[test]
fn streams_follow_temporary_addresses() {
    connects_after_each_step(
        &["address change fd77::1/64 dev left preferred_lft 0", "address add fd77::a/64 dev left nodad"],
        &[
            (&[], 1, "fd77::a"),
            (&["address add fd77::b/64 dev left nodad", "address del fd77::a/64 dev left"], 1, "fd77::b"),
        ],
    );
}

// AD-05: TCP connections survive a VPN that connects again.
#[test]
fn address_that_returns_in_time_ends_nothing() {
    with_two_interfaces(async || {
        let first = removal(&witness());
        let (left, right) = adapters();
        let last = removal(&witness());
        let pair = connected_across(&left, &right, RIGHT[0]).await;
        let (listener, address) = listening_at(&left, LEFT[0]);
        ip("address flush dev left");
        // The adapters are notified in turn, so it has noticed the loss when the adapters before and after it have.
        first.await;
        last.await;
        ip("address add 10.77.0.1/24 dev left");
        // Longer than the address timeout.
        pass(WITHOUT_ADDRESS).await;
        assert!(!left.is_removed());
        exchange((&left, &pair.active), (&right, &pair.passive)).await;
        let (ours, theirs, connector) = (queue_pair(&right), queue_pair(&left), right.connector());
        let (connected, accepted) = within(async {
            tokio::join!(
                connector.connect_and_complete(&ours, address, ConnectParams::default()),
                listener.accept_next(&theirs, AcceptParams::default())
            )
        })
        .await;
        connected.expect("connected");
        accepted.expect("accepted");
    });
}

// CM-17, CM-19: the connector goes on when the address has come back.
#[test]
fn an_adapter_without_addresses_reaches_no_network() {
    with_two_interfaces(async || {
        let (left, right) = adapters();
        let (connector, ours, theirs) = (left.connector(), queue_pair(&left), queue_pair(&right));
        let (listener, address) = listening_at(&right, RIGHT[0]);
        ip("address flush dev left");
        // Before and after the adapter has noticed.
        for _ in 0..2 {
            let outcome = within(connector.connect(&ours, address, ConnectParams::default())).await;
            let error = outcome.expect_err("from nowhere");
            assert_eq!(error.status(), Status::NETWORK_UNREACHABLE, "{error}");
            assert!(error.is_connector_usable() && error.is_retryable());
        }
        ip("address add 10.77.0.1/24 dev left");
        let (connected, accepted) = within(async {
            tokio::join!(
                connector.connect_and_complete(&ours, address, ConnectParams::default()),
                listener.accept_next(&theirs, AcceptParams::default())
            )
        })
        .await;
        connected.expect("connected");
        accepted.expect("accepted");
    });
}

// An interface without an address is a device that was removed, after a time (AD-05).
#[test]
fn adapter_without_addresses_is_removed_after_timeout() {
    with_two_interfaces(async || {
        let left = soft_at(LEFT[0], SoftConfig::default().address_timeout(Duration::from_secs(60)));
        pause();
        // Twice: a timeout begins anew when an address has come back.
        for _ in 0..2 {
            ip("address flush dev left");
            sleep(Duration::from_secs(59)).await;
            assert!(!left.is_removed());
            ip("address add 10.77.0.1/24 dev left");
            sleep(Duration::from_secs(59)).await;
            assert!(!left.is_removed());
        }
        ip("address flush dev left");
        sleep(Duration::from_secs(61)).await;
        assert!(left.is_removed());
    });
}

// AD-05: without an interface there is nothing to wait for.
#[test]
fn removed_interface_removes_adapter_at_once() {
    with_two_interfaces(async || {
        let left = soft_at(LEFT[0], SoftConfig::default().address_timeout(Duration::MAX));
        let removal = removal(&left);
        ip("link del left");
        removal.await;
        assert!(left.is_removed());
    });
}

// AD-05, IO-07: a stream that is connected later opens the adapter again.
#[test]
fn streams_open_a_removed_adapter_again() {
    with_two_interfaces(async || {
        for _ in 0..2 {
            let listener = RdmaListener::bind((RIGHT[0], 0)).await.expect("bound");
            let connect = RdmaStream::connect(listener.local_addr().expect("an address"));
            let (connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
            let (mut connected, _accepted) = (connected.expect("connected"), accepted.expect("accepted"));
            ip("address flush dev right");
            pass(WITHOUT_ADDRESS).await;
            within(connected.read_u8()).await.expect_err("the adapter was removed");
            ip("address add 10.77.0.2/24 dev right");
        }
    });
}
