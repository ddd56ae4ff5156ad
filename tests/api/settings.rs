//! Every setting with extreme values: it is refused with a status, or what it is a setting of works.
//!
//! Runs on: soft, sim, rxe, siw
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

mod listed;
mod soft;

use std::time::Duration;

use common::cm::{exchange, requested};
use common::stream::{listening as listening_for_streams, streams_with};
use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::error::PostErrorKind;
use tokio_rdma::mr::Pages;
use tokio_rdma::qp::{Done, LaneConfig};
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{
    AcceptParams, AcceptorConfig, Access, Adapter, CompletionQueueConfig, ConnectParams, Connection,
    NotifyKind, PoolConfig, QueuePairConfig, RdmaStream, ReadLimits, SessionConfig, SharedReceiveConfig,
    Status, StreamConfig, WorkOptions,
};

/// The extremes of a time limit.
const TIMES: [Duration; 2] = [Duration::ZERO, Duration::MAX];
const NUMBERS: [usize; 2] = [0, usize::MAX];

/// Connects, exchanges a message each way and disconnects.
async fn assert_works(adapter: &Adapter, connect: ConnectParams, accept: AcceptParams) {
    let pair = connected_with(adapter, connect, accept).await;
    exchange(adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
    let [active, passive] = [pair.active.connection, pair.passive.connection];
    // With no time for it, the disconnect may be cut short.
    let _ = within(active.disconnect()).await;
    within(passive.disconnected()).await;
}

async fn assert_connects(adapter: &Adapter) {
    assert_works(adapter, ConnectParams::default(), AcceptParams::default()).await;
}

/// Asserts that connections work, and drops both ends of another one: the end of a connection has settings, too.
async fn assert_connects_and_drops(adapter: &Adapter) {
    assert_connects(adapter).await;
    let pair = connected(adapter).await;
    drop(pair.active);
    within(pair.passive.connection.disconnected()).await;
}

// A setting leaves those alone that were made before it (SEC-09 tries each by itself).
#[test]
fn settings_are_kept_together() {
    let second = Duration::from_secs(1);
    #[cfg(feature = "verbs")]
    {
        let config = tokio_rdma::verbs::VerbsConfig::default();
        let config = config.devices("rxe0").path_timeout(Some(3 * second));
        let config =
            config.max_connects(Some(11)).max_reads(Some(13)).disconnect_timeout(5 * second).spin(7 * second);
        let shown = format!("{config:?}");
        for part in [
            "rxe0",
            "max_connects: Some(11)",
            "max_reads: Some(13)",
            "path_timeout: Some(3s)",
            "disconnect_timeout: 5s",
            "spin: 7s",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
    let config = StreamConfig::default().connect_timeout(Some(3 * second)).close_timeout(5 * second);
    let config = config.spin(7 * second).send_depth(11).receive_depth(13).inline(17);
    let config = config.send_buffer(19).receive_buffer(23);
    let shown = format!("{config:?}");
    for part in ["Some(3s)", ": 5s", "Some(7s)", ": 11", "Some(13)", ": 17", "Some(19)", "Some(23)"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    #[cfg(feature = "hyper")]
    {
        let http = format!("{:?}", tokio_rdma::RdmaConnector::new().config(config).http());
        assert!(http.contains(&shown), "{http}");
    }
}

// Each time of `VerbsConfig` may be zero and `Duration::MAX`, and each number zero and `usize::MAX` (SEC-09).
#[cfg(feature = "verbs")]
#[tokio::test]
async fn times_and_numbers_of_the_verbs_provider() {
    use tokio_rdma::Provider;
    use tokio_rdma::verbs::VerbsConfig;

    if Device::under_test().is_soft() {
        eprintln!("skipped: needs a device");
        return;
    }
    for time in TIMES {
        let config = VerbsConfig::default;
        let paths = config().path_timeout(Some(time.max(patience())));
        for config in [config().spin(time), config().disconnect_timeout(time), paths] {
            let provider = Provider::verbs_with(config).expect("there are devices");
            let id = provider.resolve(v4()).expect("a device has the address");
            assert_connects_and_drops(&provider.open(id).expect("opened")).await;
        }
    }
    for number in NUMBERS {
        let config = VerbsConfig::default().max_connects(Some(number)).max_reads(Some(number));
        let provider = Provider::verbs_with(config);
        let provider = provider.expect("there are devices");
        let id = provider.resolve(v4()).expect("a device has the address");
        assert_connects_and_drops(&provider.open(id).expect("opened")).await;
    }
    // The shortest is shorter than an emulated machine may need to answer.
    let shortest = VerbsConfig::default().path_timeout(Some(Duration::ZERO));
    let provider = Provider::verbs_with(shortest).expect("there are devices");
    provider.open(provider.resolve(v4()).expect("a device has the address")).expect("opened");
}

// Zero and `usize::MAX` are refused with the number of the parameter, and inline room may be zero (SEC-09).
#[tokio::test]
async fn sizes_of_queue_pairs() {
    let (adapter, config) = (adapter(), QueuePairConfig::default);
    for number in NUMBERS {
        for (status, config) in [
            (Status::INVALID_PARAMETER_5, config().receive_depth(number)),
            (Status::INVALID_PARAMETER_6, config().send_depth(number)),
            (Status::INVALID_PARAMETER_7, config().receive_entries(number)),
            (Status::INVALID_PARAMETER_8, config().send_entries(number)),
        ] {
            let error = adapter.queue_pair(config).expect_err("out of range");
            assert_eq!(error.status(), status, "{number}");
        }
    }
    let error = adapter.queue_pair(config().inline(usize::MAX)).expect_err("out of range");
    assert_eq!(error.status(), Status::INVALID_PARAMETER_9);
    let none = adapter.queue_pair(config().inline(0).context(u64::MAX)).expect("no inline");
    let error = none.send_inline(&[b"x"], WorkOptions::default()).expect_err("there is no room");
    assert_eq!(error, PostErrorKind::InlineTooLong { length: 1, maximum: 0 });
}

// Numbers out of range are refused, and the others work together (SEC-09).
#[tokio::test]
async fn sizes_of_lanes() {
    let (adapter, config) = (adapter(), || LaneConfig::new(4, 64));
    for number in NUMBERS {
        for (status, config) in [
            (Status::INVALID_PARAMETER_1, LaneConfig::new(number, 64)),
            (Status::INVALID_PARAMETER_1, LaneConfig::new(4, number)),
            (Status::INVALID_PARAMETER_1, config().queue_pairs(number)),
            (Status::INVALID_PARAMETER_5, config().receive_depth(number)),
            (Status::INVALID_PARAMETER_5, config().receive_depth(number).shared_receives(true)),
            (Status::INVALID_PARAMETER_6, config().send_depth(number)),
            (Status::INVALID_PARAMETER_8, config().send_entries(number)),
        ] {
            assert_eq!(adapter.lane(&config).expect_err("out of range").status(), status, "{number}");
        }
    }
    let error = adapter.lane(&config().inline(usize::MAX)).expect_err("out of range");
    assert_eq!(error.status(), Status::INVALID_PARAMETER_9);
    // No byte of any memory that there is.
    adapter.lane(&LaneConfig::new(1 << 30, 1 << 30)).expect_err("too much memory");
    for pages in [Pages::Base, Pages::Transparent] {
        let config = config().send_depth(1).receive_depth(1).send_entries(1).inline(0).pages(pages);
        let mut lane = adapter.lane(&config.affinity(usize::MAX)).expect("a lane");
        let (id, _end) = lane.queue_pair().expect("a queue pair");
        let slot = lane.take().expect("a slot");
        assert_eq!((lane.slot_length(), lane.bytes(slot)), (64, &[0; 64][..]), "{pages:?}");
        lane.receive(id, slot).expect("posted");
        lane.close(id);
        let mut room = [Done::EMPTY];
        let done = within(lane.ready(&mut room)).await.expect("the lane lives");
        assert_eq!((done[0].slot(), done[0].status()), (slot, Status::CANCELED), "{pages:?}");
    }
}

// Depths and affinities out of range are refused, and `spin` may be zero and `Duration::MAX` (SEC-09).
#[tokio::test]
async fn sizes_of_completion_queues() {
    let (adapter, config) = (adapter(), CompletionQueueConfig::default);
    for config in [config().depth(0), config().depth(usize::MAX), config().affinity(usize::MAX)] {
        adapter.completion_queue(config).expect_err("out of range");
    }
    for time in TIMES {
        let queue = adapter.completion_queue(config().spin(time).affinity(0)).expect("a completion queue");
        let queue_pair =
            adapter.queue_pair(QueuePairConfig::default().receive_completions(&queue)).expect("a queue pair");
        let receive = queue_pair.receive(()).expect("posted");
        queue_pair.flush();
        within(queue.notify(NotifyKind::Any)).await.expect("there is one");
        for number in NUMBERS {
            queue.resize(number).expect_err("out of range");
        }
        within(queue.wait(0)).await.expect("there is none to wait for");
        let mut results = Vec::new();
        assert_eq!((queue.poll(0, &mut results), queue.poll(usize::MAX, &mut results)), (0, 1));
        let (outcome, ()) = within(receive).await;
        assert_eq!(outcome.map_err(|error| error.status()), Err(Status::CANCELED));
    }
}

// Depths, entries and thresholds out of range are refused, on creation and by `modify` (SEC-09).
#[tokio::test]
async fn sizes_of_shared_receive_queues() {
    let (adapter, config) = (adapter(), SharedReceiveConfig::default);
    if adapter.info().max_shared_depth == 0 {
        eprintln!("skipped: the device has no shared receive queues");
        return;
    }
    for number in NUMBERS {
        for config in [config().depth(number), config().entries(number)] {
            adapter.shared_receive_queue(config).expect_err("out of range");
        }
    }
    adapter.shared_receive_queue(config().threshold(usize::MAX)).expect_err("out of range");
    let queue = adapter.shared_receive_queue(config()).expect("a queue");
    for (depth, threshold) in [(Some(0), None), (Some(usize::MAX), None), (None, Some(usize::MAX))] {
        queue.modify(depth, threshold).expect_err("out of range");
    }
    queue.modify(None, Some(0)).expect("as it was");
}

// Lengths that no machine has are refused, and offsets of `usize::MAX` do not overflow (SEC-09).
#[tokio::test]
async fn sizes_of_memory() {
    let adapter = adapter();
    for length in NUMBERS {
        adapter.register(length, Access::LOCAL_WRITE).await.expect_err("out of range");
        adapter.pool(PoolConfig::new(length, 1)).expect_err("out of range");
    }
    adapter.pool(PoolConfig::new(1, 0)).expect_err("out of range");
    let pool = adapter.pool(PoolConfig::new(1, usize::MAX)).expect("as many as one likes");
    within(pool.get()).await.expect("a buffer");
    assert!(adapter.buffer(0).expect("nothing is always there").is_empty());
    for length in [usize::MAX, isize::MAX as usize, isize::MAX as usize - 4096] {
        adapter.buffer(length).expect_err("there is not so much");
    }
    let region = adapter.register(8, Access::LOCAL_WRITE).await.expect("registered");
    region.write(usize::MAX, &[0]).expect_err("out of bounds");
    region.read(usize::MAX, &mut [0]).expect_err("out of bounds");
    region.read_to(0, usize::MAX, &mut Vec::new()).expect_err("out of bounds");
    region.remote_part(0..usize::MAX).expect_err("out of bounds");
    region.slice(usize::MAX..usize::MAX).expect_err("out of bounds");
}

// Read limits and backlogs are capped, and a timeout of zero and too much data fail (SEC-09).
#[tokio::test]
async fn parameters_of_connect_and_accept() {
    let adapter = adapter();
    let (connect, accept) = (ConnectParams::default, AcceptParams::default);
    for limit in [0, u32::MAX] {
        let limits = ReadLimits::new(limit, limit);
        assert_works(&adapter, connect().read_limits(limits), accept().read_limits(limits)).await;
    }
    for params in [
        connect().timeout(Duration::MAX),
        connect().traffic_class(0),
        connect().traffic_class(u8::MAX - 3),
        connect().private_data([]),
    ] {
        assert_works(&adapter, params, accept().private_data([])).await;
    }
    let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
    let (_listener, address) = listening(&adapter);
    let none = connector.connect(&queue_pair, address, connect().timeout(Duration::ZERO));
    assert_eq!(within(none).await.expect_err("no time").status(), Status::IO_TIMEOUT);
    for params in [connect().private_data(vec![0; 1 << 20]), connect().traffic_class(u8::MAX)] {
        let outcome = within(adapter.connector().connect(&queue_pair, address, params)).await;
        outcome.expect_err("out of range");
    }
    let request = requested(&adapter, v4(), connect()).await.request;
    let refused = request.accept(&queue_pair, accept().private_data(vec![0; 1 << 20])).await;
    assert!(refused.expect_err("too long").handle.is_some());
    for backlog in NUMBERS {
        let listener = adapter.listener();
        listener.bind((v4(), 0).into()).expect("bound");
        listener.listen(backlog).expect("listening");
    }
}

// SEC-09: options that only devices have. See `device_options` for soft, which refuses them whatever their value is.
#[tokio::test]
async fn options_of_devices() {
    let adapter = adapter();
    if Device::under_test().is_soft() {
        eprintln!("skipped: needs a device");
        return;
    }
    let (connect, accept) = (ConnectParams::default, AcceptParams::default);
    for number in [0, u8::MAX] {
        assert_works(&adapter, connect().retry_count(number), accept()).await;
        let accepts = accept().rnr_retry_count(number);
        assert_works(&adapter, connect().rnr_retry_count(number), accepts).await;
        assert_works(&adapter, connect().rnr_timer(number), accept().rnr_timer(number)).await;
    }
    // 0 waits without end (`ibv_modify_qp`), 31 waits for hours, and there is none beyond that. No packet is lost here.
    for exponent in [0, 31, u8::MAX] {
        assert_works(&adapter, connect().ack_timeout(exponent), accept().ack_timeout(exponent)).await;
    }
}

// Sizes of buffers and queues out of range are refused, and any time and any number of handshakes works (SEC-09).
#[tokio::test]
async fn settings_of_streams() {
    let (adapter, config) = (adapter(), StreamConfig::default);
    for number in NUMBERS {
        for config in [
            config().send_buffer(number),
            config().receive_buffer(number),
            config().send_depth(number),
            config().receive_depth(number),
        ] {
            let outcome = within(RdmaStream::connect_on(&adapter, (v4(), 9).into(), &config)).await;
            assert_eq!(outcome.expect_err("out of range").status(), Status::INVALID_PARAMETER, "{config:?}");
        }
    }
    let mut works: Vec<_> = NUMBERS.map(|number| config().inline(number)).into();
    works.extend(TIMES.map(|time| config().spin(time)));
    works.extend(TIMES.map(|time| config().close_timeout(time)));
    works.push(config().handshake_timeout(Duration::MAX));
    works.extend(NUMBERS.map(|number| config().handshakes(number)));
    works.extend([None, Some(Duration::MAX)].map(|time| config().connect_timeout(time)));
    for config in works {
        let (mut active, mut passive) = streams_with(&adapter, &config, &config).await;
        within(active.write_all(b"there")).await.expect("written");
        let mut found = [0; 5];
        within(passive.read_exact(&mut found)).await.expect("read");
        assert_eq!(&found, b"there", "{config:?}");
        drop(active);
        // The end, in order or not: there may have been no time for it.
        let _ = within(passive.read(&mut found)).await;
    }
    let listener = listening_for_streams(&adapter, &config());
    let none = config().connect_timeout(Some(Duration::ZERO));
    let connect = RdmaStream::connect_on(&adapter, listener.local_addr().expect("bound"), &none);
    // No time but what the timer has in excess.
    if let Err(error) = within(connect).await {
        assert_eq!(error.status(), Status::IO_TIMEOUT);
    }
    let listener = listening_for_streams(&adapter, &config().handshake_timeout(Duration::ZERO));
    let config = config();
    let connect = RdmaStream::connect_on(&adapter, listener.local_addr().expect("bound"), &config);
    // No time but what the loopback interface needs: it is dropped, or was just in time.
    if let Ok(mut stream) = within(connect).await {
        let mut nothing = [0];
        tokio::select! {
            read = within(stream.read(&mut nothing)) => assert!(matches!(read, Ok(0) | Err(_)), "{read:?}"),
            accepted = listener.accept() => drop(accepted.expect("in time")),
        }
    }
}

// SEC-09: the options of the connection that a stream passes on.
#[tokio::test]
async fn options_of_streams() {
    let (adapter, config) = (adapter(), StreamConfig::default);
    let mut works: Vec<_> = [0, u8::MAX - 3].map(|class| config().traffic_class(class)).into();
    works.extend([0, u32::MAX].map(|limit| config().read_limits(ReadLimits::new(limit, limit))));
    let session = SessionConfig::default;
    works.extend([0, 1, usize::MAX].map(|bytes| config().session(session().window(bytes))));
    works.extend(TIMES.map(|time| config().session(session().give_up_after(time))));
    works.extend([0, usize::MAX].map(|most| config().session(session().lost_sessions(most))));
    if !Device::under_test().is_soft() {
        for number in [0, u8::MAX] {
            works.extend([
                config().retry_count(number),
                config().rnr_retry_count(number),
                config().rnr_timer(number),
                config().ack_timeout(number),
            ]);
        }
    }
    for config in works {
        let (mut active, mut passive) = streams_with(&adapter, &config, &config).await;
        within(active.write_all(b"there")).await.expect("written");
        let mut found = [0; 5];
        within(passive.read_exact(&mut found)).await.expect("read");
        assert_eq!(&found, b"there", "{config:?}");
    }
    let listener = listening_for_streams(&adapter, &config());
    let connect =
        async |config| RdmaStream::connect_on(&adapter, listener.local_addr().expect("bound"), &config).await;
    // Its two low bits belong to congestion control.
    within(connect(config().traffic_class(u8::MAX))).await.expect_err("out of range");
}

/// Connects to an acceptor with these settings, if it has time for that.
async fn accepted(adapter: &Adapter, config: AcceptorConfig) -> Option<(Connection, Connection)> {
    let (listener, address) = listening(adapter);
    let passive = queue_pair(adapter);
    let acceptor = listener.acceptor(config, move |request| {
        let passive = passive.clone();
        async move { Ok(request.accept(&passive, AcceptParams::default()).await?) }
    });
    let (acceptor, active, connector) =
        (acceptor.expect("it listens"), queue_pair(adapter), adapter.connector());
    let connect = connector.connect_and_complete(&active, address, ConnectParams::default());
    let ours = within(connect).await.ok()?;
    tokio::select! {
        theirs = within(acceptor.accept()) => Some((ours, theirs.expect("it listens"))),
        // Its handshake was dropped after its answer.
        _ = ours.disconnected() => None,
    }
}

// Numbers of handshakes and waiting results may be zero and `usize::MAX` (SEC-09).
#[tokio::test]
async fn settings_of_acceptors() {
    let (adapter, config) = (adapter(), AcceptorConfig::default);
    let mut works: Vec<_> = NUMBERS.map(|number| config().handshakes(number)).into();
    works.extend(NUMBERS.map(|number| config().waiting(number)));
    works.push(config().handshake_timeout(Duration::MAX));
    for config in works {
        accepted(&adapter, config).await.unwrap_or_else(|| panic!("{config:?}"));
    }
    // No time but what the answer needs that is there at once.
    drop(accepted(&adapter, config().handshake_timeout(Duration::ZERO)).await);
}

// SEC-09: values that are sent or returned, of which none is too large.
#[tokio::test]
async fn options_of_requests() {
    let adapter = adapter();
    let pair = connected(&adapter).await;
    let buffer = || adapter.buffer(8).expect("memory");
    let mut options: Vec<_> = [0, u64::MAX].map(|context| WorkOptions::default().context(context)).into();
    if adapter.info().immediate_send {
        options.extend([0, u32::MAX].map(|value| WorkOptions::default().immediate(value)));
    }
    for options in options {
        let receive = pair.passive.queue_pair.receive(buffer()).expect("posted");
        let send = pair.active.queue_pair.send_with(buffer(), options).expect("posted");
        let ((sent, _), (received, _)) = within(async { tokio::join!(send, receive) }).await;
        assert_eq!(sent.expect("sent").bytes, received.expect("received").bytes);
    }
    for key in [0, u32::MAX] {
        // Keys of no window: refused here or by the peer, which ends the connection.
        let pair = connected(&adapter).await;
        let _receive = pair.passive.queue_pair.receive(buffer()).expect("posted");
        let options = WorkOptions::default().invalidate(RemoteKey(key));
        if let Ok(send) = pair.active.queue_pair.send_with(buffer(), options) {
            drop(within(send).await);
            within(pair.passive.connection.disconnected()).await;
        }
    }
    assert_connects(&adapter).await;
}
