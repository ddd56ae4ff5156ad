//! `IND2Provider`, walked from the top of its page to the bottom. Each test is named after the method and the item.
//!
//! Of the requirements at the top: InfiniBand's concern the adapters' drivers; iWARP's (RDMA mode from the first byte,
//! no Read with Invalidate) show in that there is no call for either. Registration with the system is not needed.

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use common::seeds::*;
use common::*;
use tokio_rdma::error::OpenError;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::types::AdapterId;
use tokio_rdma::{Access, ConnectParams, Provider, QueuePairConfig, Status};

/// Documentation addresses (RFC 5737, RFC 3849): nobody's here.
const NOBODYS: [&str; 2] = ["203.0.113.77", "2001:db8::77"];

fn provider() -> Provider {
    Provider::soft().expect("the soft provider")
}

// A port of ND is a TCP port on the soft provider, which the requirements allow only when necessary: here it is.
#[tokio::test]
async fn requirements_the_port_space_is_the_hosts() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
    let listener = adapter().listener();
    let error = listener.bind(taken.local_addr().expect("its address")).expect_err("TCP has it");
    assert_eq!(error.status(), Status::SHARING_VIOLATION);
}

// ---- QueryAddressList

// PRV-03. Each of them can be resolved and opened.
#[tokio::test]
async fn query_address_list_nd_success_has_every_address_of_every_adapter() {
    let provider = provider();
    let addresses = provider.addresses().expect("listed");
    for ip in BOTH {
        assert!(addresses.contains(&ip), "{ip}");
    }
    for address in addresses {
        let id = provider.resolve(address).expect("resolved");
        let adapter = provider.open(id).expect("opened");
        assert!(adapter.info().addresses.contains(&address), "{address}");
    }
}

// PRV-03
#[test]
fn query_address_list_nd_buffer_overflow_has_the_size_and_leaves_the_buffer() {
    let provider = provider();
    let known = provider.addresses().expect("listed");
    let mark = IpAddr::V4(Ipv4Addr::BROADCAST);
    let mut buffer = vec![mark; known.len() - 1];
    let short = provider.copy_addresses(&mut buffer).expect_err("one too few");
    assert_eq!((short.needed, short.status()), (known.len(), Status::BUFFER_OVERFLOW));
    assert!(buffer.iter().all(|address| *address == mark));
}

// PRV-03: a buffer that is too large is told what was used.
#[test]
fn query_address_list_size_of_a_larger_buffer() {
    let provider = provider();
    let known = provider.addresses().expect("listed");
    let mark = IpAddr::V4(Ipv4Addr::BROADCAST);
    let mut buffer = vec![mark; known.len() + 2];
    assert_eq!(provider.copy_addresses(&mut buffer), Ok(known.len()));
    assert_eq!(buffer[..known.len()], known);
    assert_eq!(buffer[known.len()..], [mark; 2]);
}

// PRV-03: no buffer first, then one of the size that was told, for as long as that changes between the calls.
#[test]
fn query_address_list_remarks_ask_for_the_size_then_fill_in_a_loop() {
    let provider = provider();
    let mut buffer = Vec::new();
    let used = loop {
        match provider.copy_addresses(&mut buffer) {
            Ok(used) => break used,
            Err(short) => buffer = vec![IpAddr::V6(Ipv6Addr::UNSPECIFIED); short.needed],
        }
    };
    assert_eq!(buffer[..used], provider.addresses().expect("listed"));
}

// PRV-03: the size does change.
#[test]
fn query_address_list_remarks_the_size_may_change() {
    in_own_network(async || {
        let provider = provider();
        let before = provider.addresses().expect("listed").len();
        ip("address add 192.0.2.7/32 dev lo");
        let mut buffer = vec![IpAddr::V4(Ipv4Addr::UNSPECIFIED); before];
        let short = provider.copy_addresses(&mut buffer).expect_err("it has grown");
        assert_eq!(short.needed, before + 1);
    });
}

// ---- ResolveAddress. The port of `pAddress` is ignored there; here the argument has none.

// PRV-04
#[test]
fn resolve_address_nd_success_is_the_same_id_for_all_addresses_of_an_adapter() {
    let provider = provider();
    let [v4, v6] = BOTH.map(|ip| provider.resolve(ip).expect("resolved"));
    assert_eq!(v4, v6);
    // All of 127.0.0.0/8, and an IPv4 address in IPv6's clothes.
    for text in ["127.3.2.1", "::ffff:127.0.0.1"] {
        assert_eq!(provider.resolve(text.parse().expect("an address")).expect(text), v4);
    }
}

// PRV-04: unique means that another adapter has another.
#[test]
fn resolve_address_ids_of_different_adapters_differ() {
    in_own_network(async || {
        ip("link add other type veth peer name end");
        ip("address add 192.0.2.7/24 dev other");
        ip("link set other up");
        let provider = provider();
        let other = provider.resolve("192.0.2.7".parse().expect("an address")).expect("resolved");
        assert_ne!(provider.resolve(BOTH[0]).expect("resolved"), other);
        assert_eq!(provider.open(other).expect("opened").info().name, "other");
    });
}

// PRV-04
#[test]
fn resolve_address_nd_invalid_address() {
    let provider = provider();
    for text in NOBODYS.into_iter().chain(["0.0.0.0", "::", "224.0.0.1", "255.255.255.255"]) {
        let error = provider.resolve(text.parse().expect("an address")).expect_err(text);
        assert!(matches!(error, OpenError::InvalidAddress), "{text}: {error:?}");
        assert_eq!(error.status(), Status::INVALID_ADDRESS);
    }
}

// ND_NO_MEMORY, here and of OpenAdapter: an allocation that fails ends a Rust program. What the system refuses is told
// by its number, of which the status is that of a resource.
#[tokio::test]
async fn resolve_address_and_open_adapter_without_resources() {
    if !alone("resolve_address_and_open_adapter_without_resources") {
        return;
    }
    let provider = provider();
    let id = provider.resolve(BOTH[0]).expect("resolved");
    let give_back = without_descriptors();
    let resolved = provider.resolve(BOTH[0]).expect_err("no descriptor is left");
    let opened = provider.open(id).expect_err("no descriptor is left");
    give_back();
    for error in [resolved, opened] {
        assert!(matches!(error, OpenError::Os { .. }), "{error:?}");
        assert_eq!(error.status(), Status::INSUFFICIENT_RESOURCES);
    }
}

// Regions and queue pairs of one adapter serve connections on all its addresses.
#[tokio::test]
async fn resolve_address_remarks_resources_are_shared_between_addresses() {
    let adapter = adapter();
    let region = adapter.register(4, Access::REMOTE_READ).await.expect("registered");
    region.write(0, b"both").expect("written");
    for ip in BOTH {
        let asked = asked_by(adapter.connector(), &adapter, ip, ConnectParams::default()).await;
        let passive = queue_pair(&adapter);
        let accepting = accepting(asked.request, &passive, accept_limits(1, 1));
        let reply = within(asked.connecting).await.expect("joined").expect("accepted");
        let _connection = within(reply.complete()).await.expect("completed");
        let _accepted = within(accepting).await.expect("joined").expect("accepted");
        let read =
            asked.queue_pair.read(adapter.buffer(4).expect("a buffer"), &region.remote()).expect("posted");
        let (outcome, bytes) = within(read).await;
        outcome.expect("read");
        assert_eq!(&bytes[..], b"both", "{ip}");
    }
}

// ---- OpenAdapter. `iid`: the type is known when it is compiled.

// AD-01
#[tokio::test]
async fn open_adapter_nd_success() {
    let provider = provider();
    let id = provider.resolve(BOTH[0]).expect("resolved");
    let adapter = provider.open(id).expect("opened");
    assert_eq!(adapter.info().id, id);
    for ip in BOTH {
        assert!(adapter.info().addresses.contains(&ip));
    }
}

#[tokio::test]
async fn open_adapter_nd_invalid_parameter() {
    let error = provider().open(AdapterId(u64::MAX)).expect_err("no adapter has it");
    assert!(matches!(error, OpenError::InvalidAdapter), "{error:?}");
    assert_eq!(error.status(), Status::INVALID_PARAMETER);
}

// PRV-07: the provider may go, and so may the handle of the adapter, while something that it made lives.
#[tokio::test]
async fn open_adapter_notes_the_provider_may_be_released() {
    let listener = {
        let adapter = {
            let provider = Provider::soft_with(SoftConfig::default());
            let id = provider.resolve(BOTH[0]).expect("resolved");
            provider.open(id).expect("opened")
        };
        adapter.queue_pair(QueuePairConfig::default()).expect("made");
        adapter.listener()
    };
    listener.bind(SocketAddr::new(BOTH[0], 0)).expect("bound");
    listener.listen(0).expect("listening");
    let other = adapter();
    let connector = std::sync::Arc::new(other.connector());
    let address = listener.local_addr().expect("listening");
    let _connecting = connecting(&connector, &queue_pair(&other), address, ConnectParams::default());
    drop(within(listener.request()).await.expect("a request"));
}
