//! The behaviour of cards that the drivers without a card do not have.
//!
//! Runs on: fake

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use common::cm::exchange;
use common::device::Device;
use common::life::{eventually, poll_once};
use common::process::alone;
use common::raw::{bytes, failure, room, success};
use common::verbs::{connected_at, fake, fake_reset, hold};
use common::*;
use tokio::time::sleep;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{
    AcceptParams, Adapter, ConnectParams, Provider, QueuePairConfig, RdmaConnector, RdmaListener, RdmaStream,
    RemoteRegion, SharedReceiveConfig, SharedReceiveQueue, Status, StreamConfig,
};

// HW-02: an adapter has two ports, and an address in a partition: each connection uses what its own address is of. A packet with
// another P_Key than that of its path is lost in the subnet.
#[tokio::test]
async fn connection_uses_port_and_partition_of_address() {
    if !alone(module_path!(), "connection_uses_port_and_partition_of_address") {
        return;
    }
    for place in ["1 1", "2 0", "2 1"] {
        let Some(_) = fake(&format!("place ::1 {place}")) else { return };
        let adapter = adapter();
        for ip in [v4(), v6(), v4()] {
            let pair = connected_at(&adapter, ip).await;
            exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
        }
    }
}

// HW-02: the subnet manager writes the P_Key table anew when a partition comes or goes. A connection has the index that its P_Key has
// then, and a queue pair can be made whatever has become of the first one.
#[tokio::test]
async fn connection_follows_its_moved_partition() {
    if !alone(module_path!(), "connection_follows_its_moved_partition") {
        return;
    }
    let Some(_) = fake("place ::1 1 1") else { return };
    let adapter = adapter();
    let use_both = async |ips: &[std::net::IpAddr]| {
        for ip in ips {
            let pair = connected_at(&adapter, *ip).await;
            exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
        }
    };
    use_both(&[v4(), v6()]).await;
    for (table, ips) in
        [("1 0", &[v4(), v6()][..]), ("none 0", &[v4()]), ("0 none", &[v4()]), ("0 1", &[v4(), v6()])]
    {
        fake(&format!("partitions {table}"));
        use_both(ips).await;
    }
    // One that has no place any more is a reason to fail, and not to talk in another partition.
    fake("partitions 0 none");
    let (listener, address) = listening_at(&adapter, v6());
    let active = queue_pair(&adapter);
    let connector = adapter.connector();
    let connect = connector.connect_and_complete(&active, address, ConnectParams::default());
    let passive = queue_pair(&adapter);
    let (ours, theirs) =
        within(async { tokio::join!(connect, listener.accept_next(&passive, AcceptParams::default())) })
            .await;
    assert!(ours.is_err() && theirs.is_err(), "{ours:?} {theirs:?}");
}

// CM-35: the ends of a connection use the options of their vendor that both have, as those of librdmacm's own queue pairs. Each end has some
// that the other has not. With an end of another vendor, or without options, there are none.
#[tokio::test]
async fn both_ends_use_common_vendor_options() {
    if !alone(module_path!(), "both_ends_use_common_vendor_options") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let (mellanox, other) = (0x15b3, 0x1425);
    let own = |vendor: u32, options: u32| format!("ece {vendor} {options}");
    for (active, passive, used, count) in [
        (own(mellanox, 0b0111), own(mellanox, 0b1110), 0b0110, 2),
        (own(mellanox, 0b0111), own(mellanox, 0b1000), 0, 2),
        (own(mellanox, 0b0111), own(other, 0b0111), 0, 2),
        (own(mellanox, 0b0111), "ece none".to_owned(), 0, 1),
        ("ece none".to_owned(), own(mellanox, 0b0111), 0, 1),
        ("ece none".to_owned(), "ece none".to_owned(), 0, 0),
    ] {
        let [one, two] = [&active, &passive].map(|line| {
            fake(line);
            queue_pair(&adapter)
        });
        let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
        let pair = connected_queue_pairs(&adapter, one, two, connect, accept).await;
        exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
        assert_eq!(fake(&format!("ece {used}")), Some(count), "{active}, {passive}");
        // CM-39: each end that has options says which of them it uses.
        for (line, end) in [(active, &pair.active), (passive, &pair.passive)] {
            let told =
                end.connection.details().ece.map(|ece| format!("ece {} {}", ece.vendor_id, ece.options));
            let vendor = line.split(' ').nth(1).filter(|word| *word != "none");
            assert_eq!(told, vendor.map(|vendor| format!("ece {vendor} {used}")));
        }
    }
}

/// The ends of a connection in the middle of a message: the passive side is in the middle of its receive.
#[derive(Clone, Copy, Debug)]
enum Cause {
    Disconnect,
    PeerDisconnects,
    Flush,
    Drop,
    Violation,
}

const CAUSES: [Cause; 5] =
    [Cause::Disconnect, Cause::PeerDisconnects, Cause::Flush, Cause::Drop, Cause::Violation];

/// A connected pair whose passive end takes its receives from `queue`.
async fn served_by(adapter: &Adapter, queue: &SharedReceiveQueue) -> Pair {
    let passive =
        adapter.queue_pair(QueuePairConfig::default().shared_receives(queue)).expect("a queue pair");
    let (connect, accept) = (ConnectParams::default(), AcceptParams::default());
    connected_queue_pairs(adapter, queue_pair(adapter), passive, connect, accept).await
}

/// Ends a connection for this reason, while a message to its passive side is cut off. A message of that side waits, or a write
/// is the reason.
async fn end_in_the_middle(adapter: &Adapter, pair: Pair, cause: Cause) {
    let Pair { active, passive } = pair;
    fake("cut 1");
    let sent = active.queue_pair.send(bytes(adapter, b"half")).expect("posted");
    let nowhere = RemoteRegion::new(0, RemoteKey(0xdead_0001), 4);
    let back = match cause {
        Cause::Violation => passive.queue_pair.write(bytes(adapter, b"back"), &nowhere),
        _ => passive.queue_pair.send(bytes(adapter, b"back")),
    };
    let back = back.expect("posted");
    match cause {
        Cause::Disconnect => within(passive.connection.disconnect()).await.expect("disconnected"),
        Cause::PeerDisconnects => within(active.connection.disconnect()).await.expect("disconnected"),
        Cause::Flush => passive.queue_pair.flush(),
        Cause::Drop => drop(passive),
        Cause::Violation => {
            let reason = within(passive.connection.disconnected()).await;
            assert_eq!(reason.status(), Status::ACCESS_VIOLATION);
        }
    }
    assert_eq!(failure(sent).await, Status::CANCELED, "{cause:?}");
    let (outcome, buffer) = within(back).await;
    assert!(outcome.is_err(), "{cause:?}");
    assert_eq!(&buffer[..], b"back", "{cause:?}");
}

// HW-03: the receive of a message that is cut off comes back when its connection ends, and its place is free.
#[tokio::test]
async fn shared_receives_return_after_every_end() {
    if !alone(module_path!(), "shared_receives_return_after_every_end") {
        return;
    }
    // The message is under way at once.
    let Some(_) = fake("pace none") else { return };
    let adapter = adapter();
    let queue = adapter.shared_receive_queue(SharedReceiveConfig::default().depth(2)).expect("a queue");
    let other = served_by(&adapter, &queue).await;
    let pairs = fake("count qp");
    for cause in CAUSES {
        let pair = served_by(&adapter, &queue).await;
        let post = || queue.receive(room(&adapter, 8)).expect("there is room");
        let (first, second) = (post(), post());
        end_in_the_middle(&adapter, pair, cause).await;
        let (outcome, buffer) = within(first).await;
        assert_eq!(outcome.map_err(|error| error.status()), Err(Status::CANCELED), "{cause:?}");
        assert_eq!((buffer.len(), queue.len()), (8, 1), "{cause:?}");
        success(other.active.queue_pair.send(bytes(&adapter, b"received")).expect("posted")).await;
        assert_eq!(&success(second).await.1[..], b"received", "{cause:?}");
        assert!(queue.is_empty(), "{cause:?}");
        eventually("the queue pairs are gone", || fake("count qp") == pairs).await;
    }
}

// HW-03: a driver that does not say when the last receive has come back is not waited for without end.
#[tokio::test]
async fn wait_for_last_receive_is_bounded() {
    if !alone(module_path!(), "wait_for_last_receive_is_bounded") {
        return;
    }
    // The message is under way at once.
    let Some(_) = fake("pace none") else { return };
    let adapter = adapter();
    let queue = adapter.shared_receive_queue(SharedReceiveConfig::default().depth(2)).expect("a queue");
    let pairs = fake("count qp");
    fake("lose last_receives");
    let pair = served_by(&adapter, &queue).await;
    let receive = queue.receive(room(&adapter, 8)).expect("posted");
    end_in_the_middle(&adapter, pair, Cause::Disconnect).await;
    assert_eq!(failure(receive).await, Status::CANCELED);
    eventually("the queue pairs are gone", || fake("count qp") == pairs).await;
}

// HW-03: a device that is slow to say so, or does not, keeps no request of the send queue waiting that it has completed.
#[tokio::test]
async fn sends_do_not_wait_for_the_last_receive() {
    if !alone(module_path!(), "sends_do_not_wait_for_the_last_receive") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let queue = adapter.shared_receive_queue(SharedReceiveConfig::default().depth(2)).expect("a queue");
    let Pair { active, passive } = served_by(&adapter, &queue).await;
    // The peer has no receive for them.
    let mut sends =
        [b"first", b"again"].map(|word| passive.queue_pair.send(bytes(&adapter, word)).expect("posted"));
    fake("lose last_receives");
    fake("keep requests");
    let _held = hold("ibv_destroy_qp");
    passive.queue_pair.flush();
    assert!(sends.iter_mut().all(|send| poll_once(send).is_pending()), "the device has them");
    fake("keep nothing");
    for (send, word) in sends.into_iter().zip([b"first", b"again"]) {
        let (ended, buffer) = within(send).await;
        assert_eq!((ended.expect_err("flushed").status(), &buffer[..]), (Status::CANCELED, &word[..]));
    }
    fake("reset");
    drop((active, passive, queue));
}

// HW-07: a thousand queue pairs with a long shared queue would otherwise need room for millions of completions.
#[tokio::test]
async fn completions_of_shared_receives_have_room_once() {
    const DEPTH: usize = 4096;
    const PAIRS: usize = 64;
    const SENDS: usize = 16;
    if !alone(module_path!(), "completions_of_shared_receives_have_room_once") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let queue = adapter.shared_receive_queue(SharedReceiveConfig::default().depth(DEPTH)).expect("a queue");
    let config = QueuePairConfig::default().send_depth(SENDS).shared_receives(&queue);
    let pairs: Vec<_> =
        (0..PAIRS).map(|_| adapter.queue_pair(config.clone()).expect("a queue pair")).collect();
    let entries = || usize::try_from(fake("count cqe").expect("a number")).expect("positive");
    assert!((DEPTH..PAIRS * DEPTH / 8).contains(&entries()), "{}", entries());
    let before = entries();
    queue.modify(Some(2 * DEPTH), None).expect("longer");
    assert_eq!(entries(), before + DEPTH);
    drop(pairs);
    // All of the longer queue, by one connection.
    let Pair { active, passive } = served_by(&adapter, &queue).await;
    let receives: Vec<_> =
        (0..2 * DEPTH).map(|_| queue.receive(room(&adapter, 1)).expect("there is room")).collect();
    for receive in receives {
        success(active.queue_pair.send(bytes(&adapter, b"r")).expect("posted")).await;
        success(receive).await;
    }
    drop(passive);
}

// HW-04: a driver that is being unbound refuses every command before it destroys the objects of the device, which writes on.
#[tokio::test]
async fn memory_of_undestroyable_queue_pair_is_withheld() {
    if !alone(module_path!(), "memory_of_undestroyable_queue_pair_is_withheld") {
        return;
    }
    let Some(_) = fake("forgive") else { return };
    let adapter = adapter();
    let queue = adapter.shared_receive_queue(SharedReceiveConfig::default().depth(2)).expect("a queue");
    let pair = connected(&adapter).await;
    let sharing = served_by(&adapter, &queue).await;
    let post = || pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    let (receive, orphan, taken) = (post(), post(), queue.receive(room(&adapter, 8)).expect("posted"));
    let parts = [adapter.buffer(8).expect("memory"), adapter.buffer(8).expect("memory")];
    let list = pair.passive.queue_pair.receive(parts).expect("posted");
    let waiting = sharing.passive.queue_pair.send(bytes(&adapter, b"waiting")).expect("posted");
    let regions = fake("count mr");
    for call in ["ibv_modify_qp", "ibv_destroy_qp"] {
        fake(&format!("refuse {call} {}", libc::EIO));
    }
    drop(orphan);
    pair.passive.queue_pair.flush();
    sharing.passive.queue_pair.flush();
    let (outcome, buffer) = within(receive).await;
    assert_eq!(outcome.expect_err("flushed").status(), Status::CANCELED);
    assert!(buffer.is_empty(), "the device may write to it");
    let (outcome, parts) = within(list).await;
    assert_eq!(outcome.expect_err("flushed").status(), Status::CANCELED);
    assert!(parts.iter().all(|part| part.is_empty()));
    let (outcome, buffer) = within(waiting).await;
    assert_eq!(outcome.expect_err("flushed").status(), Status::CANCELED);
    assert!(buffer.is_empty());
    // The queue cannot be destroyed with it.
    drop((sharing, queue));
    let (outcome, buffer) = within(taken).await;
    assert_eq!(outcome.expect_err("the queue is gone").status(), Status::CANCELED);
    assert!(buffer.is_empty());
    assert_eq!(fake("count mr"), regions, "all of it is registered, and so is not freed");
}

// HW-01, CM-34: as documented and as requested, each of the side that it was said by or said to. Without an end to the tries a receiver that is not ready for a moment does not stop its
// peer for 655 ms.
#[tokio::test]
async fn retries_and_timers_follow_the_parameters() {
    if !alone(module_path!(), "retries_and_timers_follow_the_parameters") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let (connect, accept) = (ConnectParams::default, AcceptParams::default);
    // The timers for receivers that are not ready, the retries for these, the acknowledge timeouts, and how often packets are
    // repeated: of the queue pair of the active side, and of that of the passive one.
    let cases = [
        (connect(), accept(), [12, 12], [7, 7], [18, 18], 7),
        (connect().rnr_retry_count(6), accept().rnr_retry_count(0), [0, 0], [0, 6], [18, 18], 7),
        (connect().rnr_retry_count(u8::MAX), accept(), [12, 12], [7, 7], [18, 18], 7),
        (connect().rnr_timer(20), accept().rnr_timer(1), [20, 1], [7, 7], [18, 18], 7),
        (
            connect().rnr_retry_count(3).rnr_timer(0),
            accept().rnr_timer(u8::MAX),
            [0, 31],
            [7, 3],
            [18, 18],
            7,
        ),
        (connect().retry_count(2), accept(), [12, 12], [7, 7], [18, 18], 2),
        (connect(), accept().ack_timeout(9), [12, 12], [7, 7], [18, 9], 7),
        (connect().ack_timeout(14), accept().ack_timeout(0), [12, 12], [7, 7], [14, 0], 7),
        (connect().ack_timeout(31), accept().ack_timeout(u8::MAX), [12, 12], [7, 7], [31, 31], 7),
    ];
    for (connect, accept, pauses, retries, waits, repeats) in cases {
        let what = format!("{connect:?}, {accept:?}");
        let pair = connected_with(&adapter, connect, accept).await;
        let lines = [
            ("rnr_timer", pauses),
            ("rnr_retries", retries),
            ("ack_timeout", waits),
            ("retries", [repeats; 2]),
        ];
        for (line, values) in lines {
            let found = ["active", "passive"].map(|side| fake(&format!("{line} {side}")));
            assert_eq!(found, values.map(Some), "{line}: {what}");
        }
        exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
        let Pair { active, passive } = pair;
        drop((active, passive));
        eventually("the queue pairs are gone", || fake("count qp") == Some(0)).await;
    }
}

// IO-08: each end of a stream repeats as often as its peer has asked for, pauses its peer and waits for it as its own options say.
#[tokio::test]
async fn stream_options_reach_its_queue_pairs() {
    if !alone(module_path!(), "stream_options_reach_its_queue_pairs") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let here = SocketAddr::new(v4(), 0);
    let accepting = StreamConfig::default().rnr_retry_count(1).rnr_timer(5).ack_timeout(9);
    let listener = RdmaListener::bind_on(&adapter, here, &accepting).expect("bound");
    let connecting = StreamConfig::default().retry_count(3).rnr_retry_count(2).rnr_timer(20).ack_timeout(14);
    let connect = RdmaStream::connect_on(&adapter, listener.local_addr().expect("bound"), &connecting);
    let (connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
    let _ends = (connected.expect("connected"), accepted.expect("accepted"));
    for (line, values) in
        [("retries", [3, 3]), ("rnr_retries", [1, 2]), ("rnr_timer", [20, 5]), ("ack_timeout", [14, 9])]
    {
        assert_eq!(
            ["active", "passive"].map(|side| fake(&format!("{line} {side}"))),
            values.map(Some),
            "{line}"
        );
    }
}

// IO-11: for RoCE an address is in the GID table some time after the kernel has announced it. Until then another provider
// serves it.
#[tokio::test]
async fn address_taken_late_is_served_by_device() {
    if !alone(module_path!(), "address_taken_late_is_served_by_device") {
        return;
    }
    let Some(_) = fake(&format!("displace {}", v4())) else { return };
    let listener = RdmaListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.expect("bound");
    let address = SocketAddr::new(v4(), listener.local_addr().expect("bound").port());
    fake(&format!("place {} 1 0", v4()));
    assert_served_by_the_device(&listener, address).await;
}

// IO-11: a machine without a device gets one.
#[tokio::test]
async fn device_added_late_serves_its_address() {
    if !alone(module_path!(), "device_added_late_serves_its_address") {
        return;
    }
    let Some(_) = fake(&format!("refuse rdma_create_event_channel {}", libc::ENODEV)) else { return };
    assert!(Provider::verbs().is_err(), "there is none yet");
    let listener = RdmaListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.expect("bound");
    let address = SocketAddr::new(v4(), listener.local_addr().expect("bound").port());
    fake("reset");
    assert_served_by_the_device(&listener, address).await;
}

/// Connects by the device, as soon as the listener has looked for addresses.
async fn assert_served_by_the_device(listener: &RdmaListener, address: SocketAddr) {
    let connector = RdmaConnector::new().provider(Device::under_test().provider());
    let connect = async {
        // Nothing tells when the listener has looked.
        loop {
            match connector.connect(address).await {
                Ok(stream) => break stream,
                Err(_) => sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let (connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
    assert_eq!(accepted.expect("accepted").0.connection().local_addr(), address);
    assert_eq!(connected.connection().peer_addr(), address);
}
