//! `IND2Provider`, in the order of its page. Each test is named after the method and the item.
//!
//! Of the requirements at the top, those for InfiniBand concern the adapters' drivers. Those for iWARP (RDMA mode from
//! the first byte, no Read with Invalidate) are met because there is no call for either. Registration with the system is
//! not needed.
//!
//! Runs on: soft, sim, rxe, siw

mod soft;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use common::deviation::lacks_buffer_sinks;
use common::seeds::*;
use common::*;
use tokio_rdma::error::OpenError;
use tokio_rdma::types::{AdapterId, OpKind};
use tokio_rdma::{
    AcceptParams, Access, CompletionQueueConfig, ConnectParams, Provider, QueuePairConfig, Status,
};

/// Documentation addresses (RFC 5737, RFC 3849): nobody's here.
const NOBODYS: [&str; 2] = ["203.0.113.77", "2001:db8::77"];

fn provider() -> Provider {
    Device::under_test().provider()
}

// ---- QueryAddressList

// PRV-03. Each of them can be resolved and opened.
#[tokio::test]
async fn query_address_list_nd_success_lists_every_address() {
    let provider = provider();
    let addresses = provider.addresses().expect("listed");
    for ip in both() {
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
fn query_address_list_nd_buffer_overflow_reports_size() {
    let provider = provider();
    let known = provider.addresses().expect("listed");
    let mark = IpAddr::V4(Ipv4Addr::BROADCAST);
    let mut buffer = vec![mark; known.len() - 1];
    let error = provider.copy_addresses(&mut buffer).expect_err("one too few");
    assert_eq!(error.status(), Status::BUFFER_OVERFLOW);
    assert!(matches!(error, OpenError::TooShort(short) if short.needed == known.len()), "{error:?}");
    assert!(buffer.iter().all(|address| *address == mark));
}

// PRV-03: a buffer that is too large is told what was used.
#[test]
fn query_address_list_size_of_a_larger_buffer() {
    let provider = provider();
    let known = provider.addresses().expect("listed");
    let mark = IpAddr::V4(Ipv4Addr::BROADCAST);
    let mut buffer = vec![mark; known.len() + 2];
    assert_eq!(provider.copy_addresses(&mut buffer).expect("room for more"), known.len());
    assert_eq!(buffer[..known.len()], known);
    assert_eq!(buffer[known.len()..], [mark; 2]);
}

// PRV-03: no buffer first, then one of the size that was told, for as long as that changes between the calls.
#[test]
fn query_address_list_remarks_size_then_fill() {
    let provider = provider();
    let mut buffer = Vec::new();
    let mut asked = 0;
    let used = loop {
        match provider.copy_addresses(&mut buffer) {
            Ok(used) => break used,
            Err(OpenError::TooShort(short)) => {
                asked += 1;
                assert!(asked < 10, "it never says enough");
                buffer = vec![IpAddr::V6(Ipv6Addr::UNSPECIFIED); short.needed];
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert!(asked > 0, "no buffer is too short");
    assert_eq!(buffer[..used], provider.addresses().expect("listed"));
}

// ---- ResolveAddress. The port of `pAddress` is ignored there; here the argument has none.

// PRV-04
#[test]
fn resolve_address_nd_success_one_id_per_adapter() {
    let provider = provider();
    let [v4, v6] = both().map(|ip| provider.resolve(ip).expect("resolved"));
    assert_eq!(v4, v6);
}

// PRV-04
#[test]
fn resolve_address_nd_invalid_address() {
    let provider = provider();
    for text in NOBODYS.into_iter().chain(["0.0.0.0", "::", "224.0.0.1", "255.255.255.255"]) {
        let error = provider.resolve(text.parse().expect("an address")).expect_err(text);
        assert!(matches!(error, OpenError::InvalidAddress(_)), "{text}: {error:?}");
        assert_eq!(error.status(), Status::INVALID_ADDRESS);
    }
}

// A region of one adapter serves connections on all its addresses.
#[tokio::test]
async fn resolve_address_remarks_regions_are_shared_between_addresses() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let region = adapter.register(4, Access::REMOTE_READ).await.expect("registered");
    region.write(0, b"both").expect("written");
    for ip in both() {
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

// One completion queue has the results of connections on all addresses of its adapter.
#[tokio::test]
async fn resolve_address_remarks_completion_queues_are_shared() {
    let adapter = adapter();
    let results = adapter.completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
    let mut ends = Vec::new();
    for (number, ip) in (1..).zip(both()) {
        let config = QueuePairConfig::default().receive_completions(&results).context(number);
        let passive = adapter.queue_pair(config).expect("a queue pair");
        let receive = passive.receive(adapter.buffer(8).expect("a buffer")).expect("posted");
        let asked = asked_by(adapter.connector(), &adapter, ip, ConnectParams::default()).await;
        let accepting = accepting(asked.request, &passive, AcceptParams::default());
        let reply = within(asked.connecting).await.expect("joined").expect("accepted");
        let active = within(reply.complete()).await.expect("completed");
        let accepted = within(accepting).await.expect("joined").expect("accepted");
        assert_eq!(accepted.local_addr().ip(), ip);
        let sent = asked.queue_pair.send(adapter.buffer_from(b"word").expect("a buffer")).expect("posted");
        within(sent).await.0.expect("sent");
        ends.push((receive, asked.queue_pair, passive, active, accepted));
    }
    within(results.wait(ends.len())).await.expect("one of each connection");
    let mut found = Vec::new();
    results.poll(ends.len() + 1, &mut found);
    let mut found: Vec<_> = found
        .iter()
        .map(|result| (result.queue_pair_context, result.kind, result.bytes, result.status))
        .collect();
    found.sort_by_key(|result| result.0);
    assert_eq!(found, [1, 2].map(|number| (number, OpKind::Receive, 4, Status::SUCCESS)));
}

// ---- OpenAdapter. `iid`: the type is known when it is compiled.

// AD-01
#[tokio::test]
async fn open_adapter_nd_success() {
    let provider = provider();
    let id = provider.resolve(v4()).expect("resolved");
    let adapter = provider.open(id).expect("opened");
    assert_eq!(adapter.info().id, id);
    for ip in both() {
        assert!(adapter.info().addresses.contains(&ip));
    }
}

#[tokio::test]
async fn open_adapter_nd_invalid_parameter() {
    let error = provider().open(AdapterId(u64::MAX)).expect_err("no adapter has it");
    assert!(matches!(error, OpenError::InvalidAdapter(_)), "{error:?}");
    assert_eq!(error.status(), Status::INVALID_PARAMETER);
}

// PRV-07: the provider may go, and so may the handle of the adapter, while something that it made lives.
#[tokio::test]
async fn open_adapter_notes_the_provider_may_be_released() {
    let listener = {
        let adapter = {
            let provider = provider();
            let id = provider.resolve(v4()).expect("resolved");
            provider.open(id).expect("opened")
        };
        adapter.queue_pair(QueuePairConfig::default()).expect("made");
        adapter.listener()
    };
    listener.bind(SocketAddr::new(v4(), 0)).expect("bound");
    listener.listen(0).expect("listening");
    let other = adapter();
    let connector = std::sync::Arc::new(other.connector());
    let address = listener.local_addr().expect("listening");
    let _connecting = connecting(&connector, &queue_pair(&other), address, ConnectParams::default());
    drop(within(listener.request()).await.expect("a request"));
}
