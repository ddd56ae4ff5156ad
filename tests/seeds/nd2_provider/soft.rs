//! `IND2Provider`, specific to the soft provider: TCP ports, and the addresses of the host. The module `nd2_provider`
//! follows the rest of the page.

use std::net::{IpAddr, Ipv4Addr, TcpListener};

use common::net::{ip, isolated};
use common::process::alone;
use common::seeds::*;
use common::*;
use tokio_rdma::error::OpenError;
use tokio_rdma::{Provider, Status};

fn provider() -> Provider {
    Provider::soft().expect("the soft provider")
}

// A port of ND is a TCP port on the soft provider (X25), which the requirements allow only when necessary: here it is.
#[tokio::test]
async fn requirements_the_port_space_is_the_hosts() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
    let listener = adapter().listener();
    let error = listener.bind(taken.local_addr().expect("its address")).expect_err("TCP has it");
    assert_eq!(error.status(), Status::SHARING_VIOLATION);
}

// PRV-03: the size does change.
#[test]
fn query_address_list_remarks_the_size_may_change() {
    isolated(async || {
        let provider = provider();
        let before = provider.addresses().expect("listed").len();
        ip("address add 192.0.2.7/32 dev lo");
        let mut buffer = vec![IpAddr::V4(Ipv4Addr::UNSPECIFIED); before];
        let error = provider.copy_addresses(&mut buffer).expect_err("it has grown");
        assert!(matches!(error, OpenError::TooShort(short) if short.needed == before + 1), "{error:?}");
    });
}

// PRV-04: unique means that another adapter has another.
#[test]
fn resolve_address_ids_of_different_adapters_differ() {
    isolated(async || {
        ip("link add other type veth peer name end");
        ip("address add 192.0.2.7/24 dev other");
        ip("link set other up");
        let provider = provider();
        let other = provider.resolve("192.0.2.7".parse().expect("an address")).expect("resolved");
        assert_ne!(provider.resolve(v4()).expect("resolved"), other);
        assert_eq!(provider.open(other).expect("opened").info().name, "other");
    });
}

// ND_NO_MEMORY, here and of OpenAdapter, is INSUFFICIENT_RESOURCES (X35): an allocation that fails ends a Rust program, and
// the error has the number of the system.
#[tokio::test]
async fn resolve_address_and_open_adapter_without_resources() {
    if !alone(module_path!(), "resolve_address_and_open_adapter_without_resources") {
        return;
    }
    let provider = provider();
    let id = provider.resolve(v4()).expect("resolved");
    let give_back = without_descriptors();
    let resolved = provider.resolve(v4()).expect_err("no descriptor is left");
    let opened = provider.open(id).expect_err("no descriptor is left");
    give_back();
    for error in [resolved, opened] {
        assert!(matches!(error, OpenError::Os { .. }), "{error:?}");
        assert_eq!(error.status(), Status::INSUFFICIENT_RESOURCES);
    }
}

// PRV-04: all of 127.0.0.0/8, and an IPv4 address in IPv6's clothes.
#[test]
fn resolve_address_gives_loopback_one_id() {
    let provider = provider();
    let own = provider.resolve(v4()).expect("resolved");
    for text in ["127.3.2.1", "::ffff:127.0.0.1"] {
        assert_eq!(provider.resolve(text.parse().expect("an address")).expect(text), own);
    }
}
