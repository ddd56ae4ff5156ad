//! The opened adapter: its limits, its flags, and one task that waits on many of its objects.
//!
//! Two rows have no call, by design: AD-03, interrupt moderation of completion queues, and AD-07, the vendor's control
//! channel. The feature table gives the reasons.
//!
//! Runs on: soft, sim, rxe, siw

mod soft;

use common::deviation::*;
use common::*;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio_rdma::cm::{LinkLayer, PortState};
use tokio_rdma::error::{ConnectError, OpenError, RegisterError};
use tokio_rdma::{
    AcceptParams, Access, AdapterInfo, CompletionQueueConfig, ConnectParams, DisconnectReason, ProviderKind,
    QueuePairConfig, ReadLimits, Status, StreamConfig,
};

// The ranges begin at what portable programs rely on and end at what the wire can carry (AD-01).
#[tokio::test]
async fn limits_are_plausible_and_flags_are_consistent() {
    for adapter in all_adapters() {
        let info = adapter.info();
        assert_eq!((info.version, info.provider), (1, Device::under_test().provider().kind()));
        assert!(!info.name.is_empty() && !info.addresses.is_empty(), "{info:?}");
        // From what the portable minimum is to what the wire has room for.
        for (what, value, sensible) in [
            ("inbound reads", info.max_read_limits.inbound as usize, 1..=0x3FFF),
            ("outbound reads", info.max_read_limits.outbound as usize, 1..=0x3FFF),
            ("request data", info.max_request_data, 56..=508),
            ("reply data", info.max_reply_data, 148..=508),
            ("reject data", info.max_reject_data, 147..=508),
            ("active reject data", info.max_active_reject_data, 0..=508),
            ("transfer", info.max_transfer, 1 << 20..=1 << 32),
            ("registration", info.max_registration, 1 << 30..=usize::MAX >> 1),
            ("queue depth", info.max_queue_depth, 128..=1 << 20),
            ("entries", info.max_entries, 4..=1024),
            ("entries of a read", info.max_read_entries, 1..=info.max_entries),
            // Inline requests, shared receives and immediate data are for those that have them.
            ("inline", info.max_inline, 0..=1 << 16),
            ("completions", info.max_completion_depth, info.max_queue_depth..=1 << 24),
            ("shared receives", info.max_shared_depth, 0..=1 << 20),
        ] {
            assert!(sensible.contains(&value), "{what}: {value} of {info:?}");
        }
        let limit = info.answer_timeout.map_or(1, |limit| limit.as_secs());
        assert!((1..=600).contains(&limit), "{info:?}");
        // No flag may deny another.
        assert!(info.iwarp || (info.three_phase && info.passive_sends_first), "{info:?}");
        assert!(!info.invalidates || info.memory_windows, "{info:?}");
        assert!(!info.checks_window_bounds || info.memory_windows || info.iwarp, "{info:?}");
        assert!(!info.waits_for_shared_receives || info.max_shared_depth > 0, "{info:?}");
        assert!(!info.immediate_send || info.immediate, "{info:?}");
    }
}

// AD-10: an adapter has the ports that its properties count, one of them active, with the facts of a link on a device.
#[tokio::test]
async fn ports_are_those_of_the_properties() {
    for adapter in all_adapters() {
        let (info, ports) = (adapter.info(), adapter.ports().expect("listed"));
        let is_soft = info.provider == ProviderKind::Soft;
        let numbers: Vec<_> = ports.iter().map(|port| port.number).collect();
        assert_eq!(numbers, (1..=info.ports).collect::<Vec<_>>());
        assert!(ports.iter().any(|port| port.state == PortState::Active), "{ports:?}");
        for port in &ports {
            assert_eq!([port.speed.is_none(), port.link_layer.is_none()], [is_soft; 2], "{port:?}");
            assert!(port.mtu.map_or(is_soft, |mtu| (256..=4096).contains(&mtu)), "{port:?}");
            assert!(port.speed.is_none_or(|speed| (1_000_000_000..=2_000_000_000_000).contains(&speed)));
            assert_eq!(port.lid.is_some(), port.link_layer == Some(LinkLayer::InfiniBand), "{port:?}");
        }
        // One is that of the address by which the adapter was opened.
        let gids = ports.iter().filter(|port| port.gid.is_some()).count();
        assert_eq!(gids, usize::from(!info.iwarp), "{ports:?}");
        assert_eq!(info.node_guid == 0, is_soft, "{info:?}");
        // HW-19: only streams of devices register memory.
        let locked = StreamConfig::default().locked_memory(&adapter).expect("the usual settings");
        assert_eq!(locked == 0, is_soft, "{locked}");
    }
}

// CM-39: the ends of a connection name each other's queue pairs and GIDs, as far as the transport shows them.
#[tokio::test]
async fn details_of_both_ends_match() {
    let adapter = adapter();
    let info = adapter.info();
    let pair = connected(&adapter).await;
    let details = |end: &End| {
        let details = end.connection.details();
        assert_eq!(details.adapter, info.name);
        assert_eq!(details.read_limits, end.connection.read_limits());
        details
    };
    let [near, far] = [details(&pair.active), details(&pair.passive)];
    let own = [near.queue_pair, far.queue_pair];
    match (info.provider, info.iwarp) {
        (ProviderKind::Soft, _) => assert_eq!(own, [None; 2]),
        (_, is_iwarp) => {
            assert!(own[0].is_some() && own[1].is_some() && own[0] != own[1], "{own:?}");
            assert!(near.port.is_some_and(|port| (1..=info.ports).contains(&port)), "{near:?}");
            assert_eq!([near.path_mtu.is_none(), near.gid.is_none()], [is_iwarp; 2], "{near:?}");
        }
    }
    if !info.iwarp {
        assert_eq!([far.peer_queue_pair, near.peer_queue_pair], own);
        assert_eq!((near.gid, near.peer_gid, near.path_mtu), (far.peer_gid, far.gid, far.path_mtu));
    }
    // They stay after the end.
    within(pair.active.connection.disconnect()).await.expect("disconnected");
    assert_eq!(pair.active.connection.details(), near);
}

// The default read limits and the default queue pair are within what the adapter reports (AD-01).
#[tokio::test]
async fn the_defaults_are_within_the_limits() {
    let adapter = adapter();
    let limits = adapter.info().max_read_limits;
    assert_eq!(ReadLimits::default().capped_to(limits), ReadLimits::default());
    assert!(adapter.queue_pair(QueuePairConfig::default()).is_ok());
}

// A queue pair with every maximum at once is created, or the device lacks the memory for it (AD-01).
#[tokio::test]
async fn reported_queue_pair_limits_are_enforced() {
    let adapter = adapter();
    let AdapterInfo { max_queue_depth: depth, max_entries: entries, max_inline: inline, .. } = adapter.info();
    let foreign =
        common::adapter().completion_queue(CompletionQueueConfig::default()).expect("a completion queue");
    let most = QueuePairConfig::default()
        .receive_depth(depth)
        .send_depth(depth)
        .receive_entries(entries)
        .send_entries(entries);
    match adapter.queue_pair(most.clone()) {
        Ok(_) => {}
        // QP-22: what one queue may have, the machine need not have the memory for.
        Err(error) => {
            assert!(!Device::under_test().is_soft(), "{error:?}");
            assert_eq!(error.status(), Status::INSUFFICIENT_RESOURCES, "{error:?}");
        }
    }
    for (over, number) in [
        // Each parameter out of range is reported by its number in CreateQueuePair (QP-01).
        (most.clone().receive_completions(&foreign), 2),
        (most.clone().send_completions(&foreign), 3),
        (most.clone().receive_depth(0), 5),
        (most.clone().receive_depth(depth + 1), 5),
        (most.clone().send_depth(depth + 1), 6),
        (most.clone().send_depth(0), 6),
        (most.clone().receive_entries(0), 7),
        (most.clone().receive_entries(entries + 1), 7),
        (most.clone().send_entries(0), 8),
        (most.clone().send_entries(entries + 1), 8),
        (most.clone().inline(inline + 1), 9),
    ] {
        let error = adapter.queue_pair(over).expect_err("too much");
        assert!(
            matches!(error, OpenError::InvalidParameter { argument, .. } if argument == number),
            "{error:?}"
        );
    }
}

// AD-01: what the flags promise or deny is asserted where it matters: `common::deviation`, and the modules `atomic`, `window`
// and `shared_receive_queue`.
#[tokio::test]
async fn reported_limit_of_read_entries_is_enforced() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let AdapterInfo { max_entries, max_read_entries: most, .. } = adapter.info();
    let params = (ConnectParams::default(), AcceptParams::default());
    let own = QueuePairConfig::default().send_entries(max_entries);
    let own = adapter.queue_pair(own).expect("a queue pair");
    let pair = connected_queue_pairs(&adapter, own, queue_pair(&adapter), params.0, params.1).await;
    let source = adapter.register(4 * most, Access::REMOTE_READ).await.expect("registered");
    let parts = |count: usize| (0..count).map(|_| adapter.buffer(4).expect("memory")).collect::<Vec<_>>();
    let read = pair.active.queue_pair.read(parts(most), &source.remote()).expect("as many as it says");
    assert_eq!(within(read).await.0.expect("read").bytes, 4 * most);
    let refused = pair.active.queue_pair.read(parts(most + 1), &source.remote()).expect_err("one more");
    assert_eq!((refused.status(), refused.buffer.len()), (Status::DATA_OVERRUN, most + 1));
}

// The error names the length and the limit (AD-01).
#[tokio::test]
async fn a_registration_above_the_limit_is_refused() {
    let adapter = adapter();
    let most = adapter.info().max_registration;
    let error = adapter.register(most + 1, Access::LOCAL_WRITE).await.expect_err("too long");
    assert!(
        matches!(error, RegisterError::TooLarge { length, maximum } if (length, maximum) == (most + 1, most)),
        "{error:?}"
    );
}

// Data of exactly the reported lengths arrives, and one more byte is refused (AD-01).
#[tokio::test]
async fn private_data_is_carried_up_to_reported_limits() {
    let adapter = adapter();
    let AdapterInfo { max_request_data: request, max_reply_data: reply, .. } = adapter.info();
    let pair = connected_with(
        &adapter,
        ConnectParams::default().private_data(vec![1; request]),
        AcceptParams::default().private_data(vec![2; reply]),
    )
    .await;
    assert_data(&adapter, pair.passive.connection.private_data(), &vec![1; request]);
    assert_data(&adapter, pair.active.connection.private_data(), &vec![2; reply]);

    let params = ConnectParams::default().private_data(vec![1; request + 1]);
    let address = pair.active.connection.peer_addr();
    let error =
        adapter.connector().connect(&queue_pair(&adapter), address, params).await.expect_err("too much");
    assert!(
        matches!(error, ConnectError::InvalidBufferSize { length, maximum }
            if (length, maximum) == (request + 1, request)),
        "{error:?}"
    );
}

// Offers of `u32::MAX` on both sides end at the reported maximum (AD-01).
#[tokio::test]
async fn read_limits_are_capped_at_the_reported_maximum() {
    let adapter = adapter();
    let most = adapter.info().max_read_limits;
    let all = ReadLimits::new(u32::MAX, u32::MAX);
    let connect = ConnectParams::default().read_limits(all);
    let pair = connected_with(&adapter, connect, AcceptParams::default().read_limits(all)).await;
    assert_eq!(pair.active.connection.read_limits(), most);
    assert_eq!(pair.passive.connection.read_limits(), most);
}

// With the flag a program may poll the last byte instead of waiting for a message (AD-02).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_order_dma_places_last_write_byte_last() {
    const LENGTH: usize = 256 * 1024;
    let adapter = adapter();
    if !adapter.info().in_order_dma {
        // The drivers of the kernel do not promise it, and so there is nothing to rely on.
        return assert!(!Device::under_test().is_soft(), "TCP delivers in order");
    }
    let region = adapter.register(LENGTH, Access::REMOTE_WRITE).await.expect("registered");
    let remote = region.remote();
    let pair = connected(&adapter).await;

    // As in ndrpingpong, the last byte shows that the data has arrived, and no message does. This thread polls while
    // another one receives.
    let mut seen = vec![0; LENGTH];
    for round in 1..=20 {
        let mut buffer = adapter.buffer(LENGTH).expect("a buffer");
        buffer.fill(round);
        let write = pair.active.queue_pair.write(buffer, &remote).expect("posted");
        within(async {
            let mut last = [0];
            while last != [round] {
                region.read(LENGTH - 1, &mut last).expect("in range");
                tokio::task::yield_now().await;
            }
        })
        .await;
        region.read(0, &mut seen).expect("in range");
        let late = seen.iter().position(|byte| *byte != round);
        assert_eq!(late, None, "round {round}: the last byte overtook this one");
        within(write).await.0.expect("written");
    }
}

// AD-04, CM-30: no provider has an adapter without loopback, so the flag is never clear. There is no multi-engine flag: neither
// provider has engines.
#[tokio::test]
async fn every_adapter_has_loopback_and_connects_to_itself() {
    let provider = Device::under_test().provider();
    for adapter in all_adapters() {
        let info = adapter.info();
        for ip in info.addresses.iter().copied().filter(|ip| provider.is_usable(*ip)) {
            assert!(info.loopback && loops_back(&adapter, ip).await, "{ip} of {info:?}");
        }
    }
}

/// The event that one of many futures was waiting for.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Request(usize),
    Received(usize, Vec<u8>),
    Over(usize),
}

// Two adapters, two listeners and many connections need one task, and each event resolves its own future alone (AD-06).
#[tokio::test]
async fn one_task_waits_on_many_objects_at_once() {
    let many = often(40, 10);
    let adapters = [adapter(), adapter()];
    let [even, odd] = &adapters;
    let of = |number: usize| &adapters[number % 2];
    let mut waiting: FuturesUnordered<BoxFuture<'_, Event>> = FuturesUnordered::new();

    // Two listeners of two adapters, and for each of many connections a receive and the end: all in this one task.
    let (listeners, addresses): (Vec<_>, Vec<_>) = [even, odd].map(listening).into_iter().unzip();
    let mut pairs = Vec::new();
    for number in 0..many {
        pairs.push(connected(of(number)).await);
    }
    for (number, pair) in pairs.iter().enumerate() {
        let receive =
            pair.passive.queue_pair.receive(of(number).buffer(16).expect("a buffer")).expect("posted");
        waiting.push(Box::pin(async move {
            let (outcome, buffer) = receive.await;
            Event::Received(number, buffer[..outcome.map_or(0, |done| done.bytes)].to_vec())
        }));
        let connection = pair.passive.connection.clone();
        waiting.push(Box::pin(async move {
            assert_eq!(connection.disconnected().await, DisconnectReason::Peer);
            Event::Over(number)
        }));
    }
    for (number, listener) in listeners.into_iter().enumerate() {
        waiting.push(Box::pin(async move {
            let request = listener.request().await.expect("a request");
            assert_eq!(request.private_data()[0], u8::try_from(number).expect("two"));
            request.reject(&[]).await.expect("rejected");
            Event::Request(number)
        }));
    }
    assert!(futures::poll!(waiting.next()).is_pending(), "nothing has happened yet");

    // One thing happens at a time, and just that is reported.
    for number in (0..many).rev() {
        let text = format!("to {number}");
        let buffer = of(number).buffer_from(text.as_bytes()).expect("a buffer");
        let send = pairs[number].active.queue_pair.send(buffer).expect("posted");
        assert_eq!(within(waiting.next()).await, Some(Event::Received(number, text.into_bytes())));
        within(send).await.0.expect("sent");
    }
    let active = [even, odd].map(queue_pair);
    for number in [1, 0] {
        let params = ConnectParams::default().private_data(vec![u8::try_from(number).expect("two")]);
        let connector = of(number).connector();
        let connect = connector.connect(&active[number], addresses[number], params);
        let (event, refused) = within(async { tokio::join!(waiting.next(), connect) }).await;
        assert_eq!(event, Some(Event::Request(number)));
        let error = refused.expect_err("nobody accepts");
        assert!(matches!(error, ConnectError::Refused { .. } | ConnectError::Rejected { .. }), "{error:?}");
    }
    // Several at once: none is lost.
    for pair in &pairs {
        let connection = pair.active.connection.clone();
        tokio::spawn(async move { connection.disconnect().await });
    }
    let mut over = within(waiting.by_ref().collect::<Vec<_>>()).await;
    over.sort();
    assert_eq!(over, (0..many).map(Event::Over).collect::<Vec<_>>());
}
