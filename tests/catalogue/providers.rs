//! The catalogue: providers, addresses, and the adapter that serves each address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use common::life::eventually;
use common::net::{ip, isolated, nothing_left};
use common::programs::{address, example, stdout};
use common::*;
use tokio_rdma::error::OpenError;
use tokio_rdma::types::AdapterId;
use tokio_rdma::{Access, Adapter, Provider, ProviderKind, Status};

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// An address that is reserved for documentation (RFC 5737), so no host has it.
const NOBODYS: &str = "203.0.113.77";

fn soft() -> Provider {
    Provider::soft().expect("compiled in")
}

// The soft provider needs no device, so the catalogue contains it exactly once (PRV-01).
#[test]
fn the_catalogue_contains_soft_iwarp() {
    let kinds: Vec<_> = Provider::all().iter().map(Provider::kind).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == ProviderKind::Soft).count(), 1, "{kinds:?}");
}

// A missing device is an error of `Provider::verbs` alone, not of the catalogue (PRV-01).
#[test]
fn verbs_without_a_device_names_the_reason() {
    assert!(Provider::all().iter().all(Provider::is_software), "no device, so nothing but software");
    let error = Provider::verbs().expect_err("no device");
    assert!(matches!(error, OpenError::Unsupported(why) if !why.is_empty()), "{error:?}");
    assert_eq!(error.status(), Status::NOT_SUPPORTED);
}

// `Provider::is_software` is the filter (PRV-02).
#[test]
fn software_providers_can_be_left_out() {
    let hardware: Vec<_> = Provider::all().into_iter().filter(|provider| !provider.is_software()).collect();
    assert!(hardware.iter().all(|provider| provider.kind() != ProviderKind::Soft), "{hardware:?}");
    assert!(soft().is_software());
}

// Interfaces that are down and link-local addresses are left out (PRV-03).
#[test]
fn only_addresses_of_up_interfaces_are_listed() {
    isolated(async || {
        assert_eq!(soft().addresses().expect("known"), [LOCALHOST, Ipv6Addr::LOCALHOST.into()]);
        ip("link add left type veth peer name right");
        ip("address add 10.9.0.1/24 dev left");
        ip("address add fd09::1/64 dev left nodad");
        let left = [address("10.9.0.1"), address("fd09::1")];
        let all = soft().addresses().expect("known");
        assert!(left.iter().all(|one| !all.contains(one)), "the interface is down: {all:?}");
        ip("link set right up");
        ip("link set left up");
        let all = soft().addresses().expect("known");
        assert!(left.iter().all(|one| all.contains(one)), "IPv4 and IPv6: {all:?}");
        assert_eq!(all.len(), 4, "each once, and no link-local ones: {all:?}");
    });
}

// A slice that is too short stays unchanged, and the error contains the number of addresses (PRV-03).
#[test]
fn short_address_slice_reports_count_and_stays_unchanged() {
    let all = soft().addresses().expect("known");
    let nobodys = address(NOBODYS);
    for short in [0, all.len() - 1] {
        let mut place = vec![nobodys; short];
        let error = soft().copy_addresses(&mut place).expect_err("too short");
        assert_eq!(error.status(), Status::BUFFER_OVERFLOW);
        assert!(matches!(error, OpenError::TooShort(short) if short.needed == all.len()), "{error:?}");
        assert!(place.iter().all(|one| *one == nobodys), "{place:?}");
    }
    let mut place = vec![nobodys; all.len() + 1];
    assert_eq!(soft().copy_addresses(&mut place).expect("long enough"), all.len());
    assert_eq!(place, [all, vec![nobodys]].concat());
}

// An address that is added between two calls makes the size from the first one too small (PRV-03).
#[test]
fn copy_addresses_loop_finds_an_added_address() {
    isolated(async || {
        let mut place = Vec::new();
        let mut asked = 0;
        let count = loop {
            match soft().copy_addresses(&mut place) {
                Ok(count) => break count,
                Err(OpenError::TooShort(short)) => place.resize(short.needed, LOCALHOST),
                Err(error) => panic!("{error}"),
            }
            asked += 1;
            if asked == 1 {
                ip("address add 10.9.0.1/32 dev lo");
            }
        };
        assert_eq!((asked, count), (2, 3), "two sizes were too small");
        assert!(place.contains(&address("10.9.0.1")), "{place:?}");
    });
}

// `resolve` returns the same id each time, and the adapter with this id lists the address (PRV-04).
#[tokio::test]
async fn every_listed_address_resolves_to_its_adapter() {
    let provider = soft();
    for address in provider.addresses().expect("known") {
        let id = provider.resolve(address).expect("listed");
        assert_eq!(provider.resolve(address).expect("listed"), id, "the answer is stable");
        let info = provider.open(id).expect("opened").info();
        assert_eq!(info.id, id);
        assert!(info.addresses.contains(&address), "{address} of {info:?}");
    }
}

// All of 127.0.0.0/8 is local on Linux, and an IPv4-mapped address stands for its IPv4 address (PRV-04).
#[test]
fn whole_loopback_network_resolves_to_the_loopback_adapter() {
    let id = soft().resolve(LOCALHOST).expect("loopback");
    for text in ["127.3.2.1", "::ffff:127.0.0.1"] {
        assert_eq!(soft().resolve(address(text)).expect(text), id, "{text}");
    }
}

// Addresses of other hosts, unspecified, multicast and broadcast addresses have no adapter (PRV-04).
#[tokio::test]
async fn an_address_of_nobody_is_an_invalid_address() {
    for text in [NOBODYS, "2001:db8::77", "0.0.0.0", "::", "224.0.0.1", "255.255.255.255"] {
        let error = soft().resolve(address(text)).expect_err(text);
        assert!(matches!(error, OpenError::InvalidAddress(_)), "{text}: {error:?}");
        assert_eq!(error.status(), Status::INVALID_ADDRESS);
        let error = Adapter::open(address(text)).expect_err(text);
        assert_eq!(error.status(), Status::INVALID_ADDRESS, "{text}");
    }
}

// `Provider::open` takes any number as an `AdapterId`, so it has to check it (PRV-04).
#[tokio::test]
async fn unknown_adapter_id_is_an_invalid_parameter() {
    for id in [0, u64::MAX] {
        let error = soft().open(AdapterId(id)).expect_err("no such adapter");
        assert!(matches!(error, OpenError::InvalidAdapter(_)), "{error:?}");
        assert_eq!(error.status(), Status::INVALID_PARAMETER);
    }
}

// An adapter runs its tasks on the current runtime, so `open` fails without one (PRV-04).
#[test]
fn opening_needs_a_runtime_and_says_so() {
    let id = soft().resolve(LOCALHOST).expect("loopback");
    let error = soft().open(id).expect_err("no runtime here");
    assert_eq!(error.status(), Status::NOT_SUPPORTED, "{error:?}");
}

// The best local address for all of 127.0.0.0/8 is 127.0.0.1 (PRV-05).
#[test]
fn loopback_is_reached_from_loopback() {
    for text in ["127.0.0.1", "127.3.2.1", "::ffff:127.0.0.1"] {
        assert_eq!(soft().local_for(address(text)).expect(text), LOCALHOST, "{text}");
    }
}

// Of two interfaces the one with a route to the peer's network determines the local address (PRV-05).
#[test]
fn local_address_follows_the_route_to_the_peer() {
    isolated(async || {
        ip("link add left type veth peer name right");
        ip("address add 10.9.0.1/24 dev left");
        ip("address add 10.8.0.1/24 dev right");
        ip("link set left up");
        ip("link set right up");
        for (peer, local) in [("10.9.0.7", "10.9.0.1"), ("10.8.0.7", "10.8.0.1"), ("::1", "::1")] {
            let best = soft().local_for(address(peer)).expect(peer);
            assert_eq!(best, address(local));
            assert!(soft().resolve(best).is_ok(), "and an adapter has it");
        }
    });
}

// The network namespace has no route but those of `lo` (PRV-05).
#[test]
fn without_a_route_a_peer_is_unreachable() {
    isolated(async || {
        for text in ["10.9.0.7", "fd09::7"] {
            let error = soft().local_for(address(text)).expect_err(text);
            assert!(matches!(error, OpenError::Unreachable(_)), "{text}: {error:?}");
            assert_eq!(error.status(), Status::NETWORK_UNREACHABLE);
        }
    });
}

// Unspecified, multicast and broadcast addresses fail as invalid, not as unreachable (PRV-05).
#[test]
fn addresses_that_no_peer_has_are_invalid() {
    for text in ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255"] {
        let error = soft().local_for(address(text)).expect_err(text);
        assert_eq!(error.status(), Status::INVALID_ADDRESS, "{text}: {error:?}");
    }
}

// Every listed IPv4 address is usable, and so are the other addresses of 127.0.0.0/8 (PRV-06).
#[test]
fn an_address_is_usable_or_not() {
    for (text, usable) in [
        ("127.0.0.1", true),
        ("127.3.2.1", true),
        (NOBODYS, false),
        ("2001:db8::77", false),
        ("0.0.0.0", false),
        ("::", false),
        ("224.0.0.1", false),
        ("255.255.255.255", false),
    ] {
        assert_eq!(soft().is_usable(address(text)), usable, "{text}");
    }
    for address in soft().addresses().expect("known").into_iter().filter(IpAddr::is_ipv4) {
        assert!(soft().is_usable(address), "{address} is listed");
    }
}

// The answer follows the interface: down, up, and without the address (PRV-06).
#[test]
fn address_of_a_down_interface_is_not_usable() {
    isolated(async || {
        ip("link add left type veth peer name right");
        ip("address add 10.9.0.1/24 dev left");
        assert!(!soft().is_usable(address("10.9.0.1")), "down");
        ip("link set left up");
        assert!(soft().is_usable(address("10.9.0.1")), "up");
        assert!(!soft().is_usable(address("10.9.0.255")), "the broadcast address");
        ip("address del 10.9.0.1/24 dev left");
        assert!(!soft().is_usable(address("10.9.0.1")), "gone");
    });
}

// Dropping the handles ends requests, tasks and listeners, and the adapter can be opened again (PRV-07).
#[tokio::test]
async fn dropped_adapters_leave_nothing_running() {
    let mut port = 0;
    for round in 0..3 {
        let adapter = adapter();
        let listener = adapter.listener();
        // A test that starts a program at this moment has copies of all sockets until the program runs.
        eventually("the port is free", || match listener.bind(SocketAddr::new(LOCALHOST, port)) {
            Ok(()) => true,
            Err(error) => {
                assert!(round > 0 && error.status() == Status::SHARING_VIOLATION, "{error:?}");
                false
            }
        })
        .await;
        listener.listen(0).expect("listening");
        port = listener.local_addr().expect("listening").port();
        let region = adapter.register(4096, Access::REMOTE_WRITE).await.expect("registered");
        let pair = connected(&adapter).await;
        let receive = pair.passive.queue_pair.receive(adapter.buffer(16).expect("a buffer")).expect("posted");
        assert!(
            tokio::runtime::Handle::current().metrics().num_alive_tasks() > 0,
            "there is something to stop"
        );
        drop((adapter, listener, region, pair));
        let (outcome, _buffer) = within(receive).await;
        assert_eq!(outcome.expect_err("flushed").status, Status::CANCELED);
        nothing_left().await;
    }
}

// The tool prints what `Provider::addresses` returns, and a line for the verbs provider that is missing (PRV-08).
#[test]
fn the_catalogue_tool_lists_every_address() {
    let output = example("adapters", &[]);
    let text = stdout(&output);
    assert!(output.status.success(), "{output:?}");
    let line = text.lines().find_map(|line| line.strip_prefix("  addresses: ")).expect("a list");
    let listed: Vec<IpAddr> = line.split(' ').map(address).collect();
    assert_eq!(listed, soft().addresses().expect("known"));
    assert!(text.contains("provider soft, software\n") && text.contains("provider verbs: "), "{text}");
}

// `--hardware` applies the filter `Provider::is_software` (PRV-08, PRV-02).
#[test]
fn the_catalogue_tool_leaves_software_out_on_request() {
    let output = example("adapters", &["--hardware"]);
    assert!(output.status.success() && !stdout(&output).contains("provider soft"), "{output:?}");
}

// `--check` prints what `is_usable` returns, and exits with 1 for an address that is not usable (PRV-08).
#[test]
fn the_catalogue_tool_checks_an_address() {
    for (text, usable) in [("127.0.0.1", true), (NOBODYS, false)] {
        let output = example("adapters", &["--check", text]);
        assert_eq!(output.status.code(), Some(i32::from(!usable)), "{output:?}");
        let expected = if usable { "usable" } else { "not usable" };
        assert_eq!(stdout(&output), format!("{text}: {expected}\n"));
    }
}

// `--from` prints what `local_for` returns, and fails without output for an invalid address (PRV-08).
#[test]
fn the_catalogue_tool_tells_the_best_local_address() {
    let output = example("adapters", &["--from", "127.3.2.1"]);
    assert_eq!((output.status.success(), stdout(&output).as_str()), (true, "127.0.0.1\n"));
    let output = example("adapters", &["--from", "224.0.0.1"]);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
}
