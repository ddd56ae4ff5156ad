//! Calls that devices and the kernel reject, and peers and paths that disappear without a message.
//!
//! Runs on: rxe, siw
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::collections::VecDeque;
use std::fs::Permissions;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use common::cm::{connect_on, exchange};
use common::life::poll_once;
use common::verbs::{
    FOREVER, Link, Process, connected_at_with, driver, is_rxe, one_at_a_time, role, run, say,
};
use common::*;
use futures::FutureExt;
use nix::sys::resource::{Resource, setrlimit};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio_rdma::error::{DisconnectError, OpenError, RegisterError};
use tokio_rdma::verbs::VerbsConfig;
use tokio_rdma::{
    AcceptParams, Access, Adapter, Buffer, ConnectParams, DisconnectReason, Op, Provider, QueuePair,
    QueuePairConfig, Status,
};

/// No user in particular, with no right in particular.
const NOBODY: u32 = 65_534;

async fn status(op: Op<Buffer>) -> Status {
    within(op).await.0.map_or_else(|error| error.status(), |_| Status::SUCCESS)
}

fn is_lost(reason: &DisconnectReason) -> bool {
    matches!(reason, DisconnectReason::Lost { .. } | DisconnectReason::Peer)
}

/// Runs the role of this program as the peer process of a test.
#[test]
fn child_role() {
    let Some((role, argument)) = role() else { return };
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        match role.as_str() {
            "accept" => accept_and_stay().await,
            "open" => open_what_may_not_be_opened(&argument),
            "lock" => lock_more_than_allowed().await,
            other => panic!("{other}"),
        }
    });
}

/// Accepts, sends what it is asked for, and stays until it is killed.
async fn accept_and_stay() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    say(&address.to_string());
    let own = queue_pair(&adapter);
    let receive = own.receive(adapter.buffer(16).expect("memory")).expect("posted");
    let _connection = within(listener.accept_next(&own, AcceptParams::default())).await.expect("accepted");
    within(receive).await.0.expect("received");
    say("received");
    tokio::time::sleep(FOREVER).await;
}

// The kernel cleans up after the killed process, and this end reports a loss or the end of the peer (DIS-11).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_is_killed_is_seen() {
    if driver().is_none() {
        return;
    }
    let adapter = adapter();
    let mut peer = Process::start(module_path!(), "accept", "-", None);
    let address: SocketAddr = peer.hear().parse().expect("an address");
    let own = queue_pair(&adapter);
    let receives = [(); 2].map(|()| own.receive(adapter.buffer(8).expect("memory")).expect("posted"));
    let connector = adapter.connector();
    // Few and short repeats: a request without an acknowledgement fails soon.
    let params = ConnectParams::default().retry_count(2).ack_timeout(14);
    let connection = within(connector.connect_and_complete(&own, address, params)).await.expect("connected");
    let sent = own.send(adapter.buffer_from(b"hello").expect("memory")).expect("posted");
    assert_eq!(status(sent).await, Status::SUCCESS);
    assert_eq!(peer.hear(), "received");
    let disconnected = tokio::spawn({
        let connection = connection.clone();
        async move { connection.disconnected().await }
    });
    peer.kill();
    let reason = within(disconnected).await.expect("no panic");
    assert!(is_lost(&reason), "{reason:?}");
    for receive in receives {
        assert_eq!(status(receive).await, Status::CANCELED);
    }
    let late = own.send(adapter.buffer(8).expect("memory")).map(drop).expect_err("it is over");
    assert_eq!(late.status(), Status::CONNECTION_INVALID);
    within(connection.disconnect()).await.expect("disconnected");
    exchange_anew(&adapter).await;
}

// The process is stopped: its kernel goes on, and no program answers (HW-13, DIS-14).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnect_from_frozen_peer_ends_in_time() {
    if driver().is_none() {
        return;
    }
    let limit = Duration::from_secs(2);
    let provider = Provider::verbs_with(VerbsConfig::default().disconnect_timeout(limit)).expect("a device");
    let adapter = provider.open(provider.resolve(v4()).expect("its address")).expect("opened");
    let mut peer = Process::start(module_path!(), "accept", "-", None);
    let address: SocketAddr = peer.hear().parse().expect("an address");
    let own = queue_pair(&adapter);
    let receives = [(); 2].map(|()| own.receive(adapter.buffer(8).expect("memory")).expect("posted"));
    let connect = adapter.connector();
    let connection = connect.connect_and_complete(&own, address, ConnectParams::default());
    let connection = within(connection).await.expect("connected");
    let sent = own.send(adapter.buffer_from(b"hello").expect("memory")).expect("posted");
    assert_eq!(status(sent).await, Status::SUCCESS);
    assert_eq!(peer.hear(), "received");
    peer.freeze();
    let begun = Instant::now();
    let outcome = within(connection.disconnect()).await;
    match outcome {
        // InfiniBand's disconnect is answered by the peer's program, iWARP's by its kernel.
        Err(error) => {
            assert_eq!(error.status(), Status::IO_TIMEOUT);
            assert!(begun.elapsed() >= limit, "after {:?}", begun.elapsed());
        }
        Ok(()) => assert_eq!(driver(), Some("siw")),
    }
    for receive in receives {
        assert_eq!(status(receive).await, Status::CANCELED);
    }
    assert_eq!(within(connection.disconnected()).await, DisconnectReason::Local);
    peer.kill();
    exchange_anew(&adapter).await;
}

// HW-13, CM-17, CM-19: routes that refuse, a network without a route, and an address that no host has. The connector goes on. All of
// them are hosts that cannot be reached: rdma_cm names the interface, and the kernel then takes what no route leads to for a
// neighbour.
#[tokio::test]
async fn peers_that_no_route_leads_to_are_unreachable() {
    if driver().is_none() {
        return;
    }
    let adapter = adapter();
    run("ip", "route add unreachable 198.51.100.0/24");
    let (connector, own) = (adapter.connector(), queue_pair(&adapter));
    let mut found = Vec::new();
    for peer in ["198.51.100.1:7", "203.0.113.1:7"] {
        let peer = peer.parse().expect("an address");
        let error =
            within(connector.connect(&own, peer, ConnectParams::default())).await.expect_err("no way");
        assert!(error.is_connector_usable(), "{peer}: {error:?}");
        found.push(error.status());
    }
    let absent = device::absent().expect("the device has a network");
    let error = within(connector.connect(&own, absent, ConnectParams::default())).await.expect_err("nobody");
    assert!(error.is_connector_usable(), "{error:?}");
    found.push(error.status());
    run("ip", "route del unreachable 198.51.100.0/24");
    assert_eq!(found, [Status::HOST_UNREACHABLE; 3]);
    let link = connect_on(&adapter, &own, &connector).await;
    exchange(&adapter, &own, &link.passive).await;
}

// LS-03: listening on any address means those of one device.
#[tokio::test]
async fn unspecified_address_listens_on_one_device_only() {
    let Some(driver) = driver() else { return };
    let link = {
        let _turn = one_at_a_time();
        Link::new(driver)
    };
    let (here, there) = (adapter(), link.open());
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let listener = here.listener();
    listener.bind(any).expect("bound");
    listener.listen(0).expect("listening");
    let port = listener.local_addr().expect("it listens").port();
    // A device reaches itself by its own address; at the other address there is no listener.
    let (own, passive) = (queue_pair(&here), queue_pair(&here));
    let connector = here.connector();
    let (_ours, theirs) = joined(
        connector.connect_and_complete(&own, (v4(), port).into(), ConnectParams::default()),
        listener.accept_next(&passive, AcceptParams::default()),
    )
    .await;
    assert_eq!(theirs.local_addr(), (v4(), port).into());
    let own = queue_pair(&there);
    let peer = SocketAddr::new(link.address, port);
    let error = within(there.connector().connect(&own, peer, ConnectParams::default())).await;
    assert_eq!(error.expect_err("nobody listens there").status(), Status::CONNECTION_REFUSED);
    assert_eq!(listener.request().now_or_never().map(|request| request.is_ok()), None);
}

/// Exchanges messages over a new connection of the adapter.
async fn exchange_anew(adapter: &Adapter) {
    let pair = connected(adapter).await;
    exchange(adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
}

/// Receives that are posted ahead: a peer may be a message further.
fn posted_ahead(adapter: &Adapter, own: &QueuePair) -> VecDeque<Op<Buffer>> {
    let receive = || own.receive(adapter.buffer(8).expect("memory")).expect("posted");
    (0..3).map(|_| receive()).collect()
}

/// Sends and receives for as long as that goes well, and signals the first success.
async fn talk(
    adapter: Adapter,
    own: QueuePair,
    mut receives: VecDeque<Op<Buffer>>,
    begun: oneshot::Sender<()>,
) -> Status {
    let mut begun = Some(begun);
    while let Some(receive) = receives.pop_front() {
        let outcome = match own.send(adapter.buffer(8).expect("memory")) {
            Ok(send) => status(send).await,
            Err(refused) => refused.status(),
        };
        if outcome != Status::SUCCESS {
            return outcome;
        }
        match status(receive).await {
            Status::SUCCESS => receives.extend(own.receive(adapter.buffer(8).expect("memory"))),
            failed => return failed,
        }
        if let Some(begun) = begun.take() {
            let _ = begun.send(());
        }
    }
    Status::CONNECTION_INVALID
}

// Each end notices the loss by what it cannot send. An end that sends nothing does not without a path timeout, except
// on `siw`, which notices the state of its interface (DIS-11, HW-16).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_path_is_noticed_by_its_users() {
    let Some(driver) = driver() else { return };
    let link = {
        let _turn = one_at_a_time();
        Link::new(driver)
    };
    // No keepalive probes are sent, see `keepalive`.
    let provider = Provider::verbs_with(VerbsConfig::default().path_timeout(None)).expect("devices");
    let id = provider.resolve(link.address).expect("a device has the address");
    let adapter = provider.open(id).expect("opened");
    let connected = async || {
        // Few and short repeats.
        let connect = ConnectParams::default().retry_count(2).ack_timeout(14);
        let accept = AcceptParams::default().ack_timeout(14);
        connected_at_with(&adapter, link.address, connect, accept).await
    };
    let (busy, idle) = (connected().await, connected().await);
    exchange(&adapter, &idle.active.queue_pair, &idle.passive.queue_pair).await;
    let receive = idle.active.queue_pair.receive(adapter.buffer(8).expect("memory")).expect("posted");
    let mut talks = Vec::new();
    let ends = [&busy.active, &busy.passive].map(|end| (end, posted_ahead(&adapter, &end.queue_pair)));
    for (end, receives) in ends {
        let (tell, begun) = oneshot::channel();
        let talk = tokio::spawn(talk(adapter.clone(), end.queue_pair.clone(), receives, tell));
        talks.push((begun, talk, end.connection.clone()));
    }
    for (begun, _, _) in &mut talks {
        within(begun).await.expect("they talk");
    }
    run("ip", &format!("link set {} down", link.name));
    // One of the two may be about to wait for what the other could not send, and would never hear of it.
    let last = [&busy.active, &busy.passive]
        .map(|end| end.queue_pair.send(adapter.buffer(8).expect("memory")).map(status));
    for (_, talk, connection) in talks {
        assert_ne!(within(talk).await.expect("no panic"), Status::SUCCESS);
        let reason = within(connection.disconnected()).await;
        assert!(is_lost(&reason), "{reason:?}");
        assert!(driver == "siw" || matches!(reason, DisconnectReason::Lost { .. }), "{reason:?}");
        // A loss fails the `disconnect` that follows it (ERR-08).
        let outcome = within(connection.disconnect()).await;
        match reason {
            DisconnectReason::Lost { .. } => {
                assert!(matches!(outcome, Err(DisconnectError::Lost { .. })), "{outcome:?}");
            }
            _ => outcome.expect("the peer has disconnected"),
        }
    }
    for last in last.into_iter().flatten() {
        assert_ne!(last.await, Status::SUCCESS);
    }
    let ends = [&idle.active, &idle.passive];
    if driver == "siw" {
        for end in ends {
            let reason = within(end.connection.disconnected()).await;
            assert!(is_lost(&reason), "{reason:?}");
        }
        assert_eq!(status(receive).await, Status::CANCELED);
        return;
    }
    for end in ends {
        assert_eq!(end.connection.disconnected().now_or_never(), None, "nobody has told");
    }
    // And when the path is back before anything is sent, nothing has happened.
    run("ip", &format!("link set {} up", link.name));
    let send = idle.passive.queue_pair.send(adapter.buffer(8).expect("memory")).expect("posted");
    assert_eq!(status(send).await, Status::SUCCESS);
    assert_eq!(status(receive).await, Status::SUCCESS);
}

// CM-34, HW-01: whose sends are repeated how often, is said by who would have to receive them.
#[tokio::test]
async fn retry_counts_reach_the_device() {
    if !is_rxe("iWARP has TCP repeat what is lost") {
        return;
    }
    let adapter = adapter();
    for patient in [false, true] {
        let count = if patient { 7 } else { 0 };
        let accept = AcceptParams::default().rnr_retry_count(count);
        let connect = ConnectParams::default().rnr_retry_count(count);
        let pair = connected_with(&adapter, connect, accept).await;
        for (from, to) in [(&pair.active, &pair.passive), (&pair.passive, &pair.active)] {
            let sent = from.queue_pair.send(adapter.buffer(8).expect("memory")).expect("posted");
            if !patient {
                // No receive is posted, and the send is not repeated.
                assert_eq!(status(sent).await, Status::IO_TIMEOUT);
                break;
            }
            tokio::task::yield_now().await;
            let receive = to.queue_pair.receive(adapter.buffer(8).expect("memory")).expect("posted");
            assert_eq!(status(sent).await, Status::SUCCESS);
            assert_eq!(status(receive).await, Status::SUCCESS);
        }
    }
}

// CM-34: TCP repeats what is lost below iWARP, so the options are accepted and change nothing.
#[tokio::test]
async fn iwarp_accepts_retry_counts() {
    match driver() {
        None => return,
        Some("rxe") => return skipped("rxe obeys the options"),
        Some(_) => {}
    }
    let connect = ConnectParams::default().retry_count(1).rnr_retry_count(1).ack_timeout(14);
    let accept = AcceptParams::default().rnr_retry_count(1).ack_timeout(14);
    let adapter = adapter();
    let pair = connected_with(&adapter, connect, accept).await;
    exchange(&adapter, &pair.active.queue_pair, &pair.passive.queue_pair).await;
}

// One side asks for no repeats at all, the other for endless ones; the test shows to which side each count applies
// (CM-34, HW-01).
#[tokio::test]
async fn rnr_retry_count_applies_to_peer_sends() {
    if !is_rxe("iWARP has TCP repeat what is lost") {
        return;
    }
    let adapter = adapter();
    let connected = async || {
        let connect = ConnectParams::default().rnr_retry_count(0);
        connected_with(&adapter, connect, AcceptParams::default().rnr_retry_count(7)).await
    };
    let (patient, impatient) = (connected().await, connected().await);
    let send = |end: &End| end.queue_pair.send(adapter.buffer(8).expect("memory")).expect("posted");
    let mut waits = send(&patient.active);
    assert_eq!(status(send(&impatient.passive)).await, Status::IO_TIMEOUT, "the active side said: none");
    // The first of the two has found no receive either.
    assert!(poll_once(&mut waits).is_pending(), "the passive side said: without end");
    let receive = patient.passive.queue_pair.receive(adapter.buffer(8).expect("memory")).expect("posted");
    assert_eq!(status(waits).await, Status::SUCCESS);
    assert_eq!(status(receive).await, Status::SUCCESS);
}

// HW-01: the pause before a repeat is that of the side that has no receive, whichever that is.
#[tokio::test]
async fn rnr_timer_applies_to_peer_sends() {
    /// The codes of 0.01 ms and of 491.52 ms, and a time that only one pause of the latter takes. The kernel counts in ticks.
    const SHORT: u8 = 1;
    const LONG: u8 = 31;
    const PAUSE: Duration = Duration::from_millis(480);
    if !is_rxe("iWARP has TCP repeat what is lost") {
        return;
    }
    let adapter = adapter();
    for (connect, accept) in [(SHORT, LONG), (LONG, SHORT)] {
        let connect_params = ConnectParams::default().rnr_retry_count(1).rnr_timer(connect);
        let accept_params = AcceptParams::default().rnr_retry_count(1).rnr_timer(accept);
        let pair = connected_with(&adapter, connect_params, accept_params).await;
        let from = if accept == LONG { &pair.active } else { &pair.passive };
        let begun = Instant::now();
        let sent = from.queue_pair.send(adapter.buffer(8).expect("memory")).expect("posted");
        assert_eq!(status(sent).await, Status::IO_TIMEOUT, "it is repeated once");
        assert!(begun.elapsed() >= PAUSE, "connect {connect}, accept {accept}: after {:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn more_than_the_device_has_is_refused() {
    if driver().is_none() {
        return;
    }
    let adapter = adapter();
    let info = adapter.info();
    let depth = info.max_queue_depth;
    let entries = info.max_entries;
    let config = QueuePairConfig::default;
    for (config, case) in [
        (config().receive_depth(depth + 1), "receives"),
        (config().send_depth(depth + 1), "sends"),
        (config().receive_depth(usize::MAX), "receives beyond all"),
        (config().receive_entries(entries + 1), "receive entries"),
        (config().send_entries(entries + 1), "send entries"),
        (config().send_entries(usize::MAX), "send entries beyond all"),
    ] {
        let error = adapter.queue_pair(config).expect_err(case);
        assert!(matches!(error, OpenError::InvalidParameter { .. }), "{case}: {error:?}");
    }
    // The adapter has everything that it says it has.
    for (config, case) in [
        (config().receive_depth(depth).send_depth(depth), "depths"),
        (config().receive_depth(1).send_depth(1), "one of each"),
        (config().receive_entries(entries).send_entries(entries), "entries"),
    ] {
        adapter.queue_pair(config).expect(case);
    }
    let own = adapter.queue_pair(config().receive_entries(1).send_entries(1)).expect("a queue pair");
    let two = || vec![adapter.buffer(8).expect("memory"), adapter.buffer(8).expect("memory")];
    let refused = own.receive(two()).map(drop).expect_err("more entries than the queue pair has");
    assert_eq!(refused.status(), Status::DATA_OVERRUN);
    let error = adapter.register(usize::MAX / 2, Access::LOCAL_WRITE).await.expect_err("more than there is");
    assert!(matches!(error, RegisterError::OutOfMemory { .. } | RegisterError::TooLarge { .. }), "{error:?}");
    exchange_anew(&adapter).await;
}

/// Says what comes of it.
fn open_what_may_not_be_opened(address: &str) {
    let address = address.parse().expect("an address");
    let verbs = match Provider::verbs() {
        Err(error) => format!("provider {:?}: {error}", error.status()),
        Ok(provider) => match provider.resolve(address) {
            Err(error) => format!("resolve {:?}: {error}", error.status()),
            Ok(id) => match provider.open(id) {
                Err(error) => format!("open {:?}: {error}", error.status()),
                Ok(_) => "opened".to_owned(),
            },
        },
    };
    let any = match Adapter::open(address) {
        Ok(adapter) => format!("{:?}", adapter.info().provider),
        Err(error) => format!("{:?}: {error}", error.status()),
    };
    say(&format!("{verbs}; Adapter::open: {any}"));
}

struct Closed(Vec<String>);

impl Closed {
    fn new(which: &str) -> Self {
        let names = std::fs::read_dir("/dev/infiniband").expect("there are devices");
        let names = names.map(|entry| entry.expect("an entry").path().display().to_string());
        let names: Vec<_> = names.filter(|name| name.contains(which)).collect();
        assert!(!names.is_empty());
        let closed = Self(names);
        closed.allow(0o600);
        closed
    }

    /// Sets the mode of the files. A file that an earlier test has made may go at any moment.
    fn allow(&self, mode: u32) {
        for name in &self.0 {
            match std::fs::set_permissions(name, Permissions::from_mode(mode)) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                outcome => outcome.expect(name),
            }
        }
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.allow(0o666);
    }
}

#[tokio::test]
async fn no_permission_is_said_to_be_that() {
    if driver().is_none() {
        return;
    }
    // No device may appear during the test.
    let _turn = one_at_a_time();
    for which in ["rdma_cm", "uverbs"] {
        let _closed = Closed::new(which);
        let mut process = Process::start(module_path!(), "open", &v4().to_string(), Some(NOBODY));
        let said = process.hear();
        assert!(said.contains("ACCESS_VIOLATION"), "{which}: {said}");
    }
    let mut process = Process::start(module_path!(), "open", &v4().to_string(), Some(NOBODY));
    assert!(process.hear().starts_with("opened; Adapter::open: Verbs"));
}

/// Says what comes of it.
async fn lock_more_than_allowed() {
    let limit = 1 << 20;
    setrlimit(Resource::RLIMIT_MEMLOCK, limit, limit).expect("lowered");
    let adapter = adapter();
    let small = adapter.buffer(4096).expect("within the limit");
    let buffer = adapter.buffer(4 << 20).expect_err("beyond the limit");
    let region = adapter.register(4 << 20, Access::REMOTE_READ).await.expect_err("beyond the limit");
    for error in [buffer, region] {
        assert!(
            matches!(error, RegisterError::MemoryLockLimit { length, limit: found } if length == 4 << 20 && found == limit),
            "{error:?}"
        );
        assert_eq!(error.status(), Status::INSUFFICIENT_RESOURCES);
        assert!(error.to_string().contains("ulimit -l"), "{error}");
    }
    // Memory that is given back may be locked again.
    drop(small);
    for _ in 0..1000 {
        adapter.buffer(64 << 10).expect("within the limit");
    }
    say("as it should be");
}

#[tokio::test]
async fn locked_memory_limit_is_reported() {
    if driver().is_none() {
        return;
    }
    // No other test may take the permission away during this one.
    let _turn = one_at_a_time();
    let mut process = Process::start(module_path!(), "lock", "-", Some(NOBODY));
    assert_eq!(process.hear(), "as it should be");
}
