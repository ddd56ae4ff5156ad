//! What a device's system may refuse, and what a process leaves in it: no permission, no memory to lock, a peer that is
//! killed, connections that are dropped at any moment.
//!
//! Runs on: rxe, siw

mod common;

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use common::deviation::*;
use common::life::{eventually, polled};
use common::resources::{held, held_by};
use common::seeds::alone;
use common::*;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, setgid, setuid};
use tokio_rdma::error::{OpenError, RegisterError};
use tokio_rdma::{AcceptParams, Access, Adapter, ConnectParams, Provider, ProviderKind, Status};

/// The doors to the devices, for all of this machine.
const DOOR: &str = "/dev/infiniband/rdma_cm";

/// A door with other rights, until this is dropped by one who may.
struct Door(Permissions);

impl Door {
    fn with(mode: u32) -> Self {
        let before = fs::metadata(DOOR).expect("there is a door").permissions();
        fs::set_permissions(DOOR, Permissions::from_mode(mode)).expect("root may");
        Self(before)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::set_permissions(DOOR, self.0.clone());
    }
}

/// This process becomes nobody, who may do nothing that is not everybody's right.
fn become_nobody() {
    setgid(Gid::from_raw(65534)).expect("root may");
    setuid(Uid::from_raw(65534)).expect("root may");
}

// PRV-01: without permission there are devices, and an error that says what is missing; soft is as good as ever.
#[tokio::test]
async fn without_permission_there_is_an_error_and_soft_works() {
    let _door = Door::with(0o600);
    if !alone("without_permission_there_is_an_error_and_soft_works") {
        return;
    }
    become_nobody();
    let outcome = Provider::verbs().and_then(|provider| provider.resolve(v4()));
    let error = outcome.expect_err("it is forbidden");
    assert!(matches!(error, OpenError::Os { .. }), "{error:?}");
    assert_eq!(error.status(), Status::ACCESS_VIOLATION, "{error:?}");
    let adapter = Adapter::open(v4()).expect("soft needs no permission");
    assert_eq!(adapter.info().provider, ProviderKind::Soft);
}

// MR-02: a limit of locked memory that is too low is named in the error, and what fits is registered.
#[tokio::test]
async fn a_limit_of_locked_memory_is_named() {
    if !alone("a_limit_of_locked_memory_is_named") {
        return;
    }
    const LIMIT: u64 = 1 << 20;
    setrlimit(Resource::RLIMIT_MEMLOCK, LIMIT, LIMIT).expect("lowered");
    // Root may lock as much as it likes, so the adapter is opened first, by one who may.
    let adapter = adapter();
    become_nobody();
    let error = within(adapter.register(4 << 20, Access::REMOTE_READ)).await.expect_err("too much");
    assert!(matches!(error, RegisterError::MemoryLockLimit { limit: LIMIT, .. }), "{error:?}");
    assert_eq!(error.status(), Status::INSUFFICIENT_RESOURCES);
    assert!(error.to_string().contains("ulimit -l"), "{error}");
    within(adapter.register(4096, Access::REMOTE_READ)).await.expect("within the limit");
}

/// In the environment of a child: the address that it connects to, to stay connected until it is killed.
const VICTIM: &str = "TOKIO_RDMA_TEST_VICTIM";

// Not a test: what the child of the next one runs.
#[tokio::test]
async fn a_process_that_connects_and_stays() {
    let Ok(address) = std::env::var(VICTIM) else { return };
    let address: SocketAddr = address.parse().expect("an address");
    let adapter = adapter();
    let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
    let connect = connector.connect_and_complete(&queue_pair, address, ConnectParams::default());
    let _connection = within(connect).await.expect("connected");
    let mut out = std::io::stdout();
    out.write_all(b"\nconnected\n").and_then(|()| out.flush()).expect("somebody listens");
    std::future::pending::<()>().await;
}

// DIS-11: the kernel cleans up after a process that is killed, and tells its peer.
#[tokio::test]
async fn a_killed_peer_is_noticed_and_leaves_nothing_behind() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .args(["a_process_that_connects_and_stays", "--exact", "--nocapture"])
        .env(VICTIM, address.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let passive = queue_pair(&adapter);
    let connection = within(listener.accept_next(&passive, AcceptParams::default())).await.expect("accepted");
    let receive = passive.receive(adapter.buffer(16).expect("memory")).expect("posted");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let connected =
        tokio::task::spawn_blocking(move || lines.map_while(Result::ok).any(|line| line == "connected"));
    assert!(within(connected).await.expect("no panic"), "the child is connected");
    assert!(held_by(child.id())["qp"] >= 1);
    child.kill().expect("alive until now");
    child.wait().expect("a child");
    assert_ended(&connection).await;
    assert_eq!(within(receive).await.0.expect_err("flushed").status(), Status::CANCELED);
    let objects = |held: std::collections::BTreeMap<String, usize>| {
        held.into_iter().filter(|(kind, _)| kind != "descriptors").map(|(_, count)| count).sum::<usize>()
    };
    eventually("the kernel has cleaned up", || objects(held_by(child.id())) == 0).await;
}

// CAN-03, CAN-04, CAN-10: dropped after any number of polls, in any of their phases, and nothing is left in the device.
#[tokio::test]
async fn connections_that_are_dropped_at_random_points_leave_nothing_behind() {
    if !alone("connections_that_are_dropped_at_random_points_leave_nothing_behind") {
        return;
    }
    let adapter = adapter();
    let baseline = held();
    // A sequence that looks random and is the same each time.
    let mut state = 1_u32;
    let mut random = move |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % below
    };
    for _ in 0..often(2000, 100) {
        let (listener, address) = listening(&adapter);
        let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
        let connector = adapter.connector();
        let (mine, theirs) = (random(5) as usize, random(5) as usize);
        let connect = connector.connect_and_complete(&active, address, ConnectParams::default());
        let accept = listener.accept_next(&passive, AcceptParams::default());
        // Whoever is left alone by the other is cancelled, too.
        let both = async { tokio::join!(polled(connect, mine), polled(accept, theirs)) };
        let ends = tokio::time::timeout(std::time::Duration::from_millis(u64::from(random(200))), both).await;
        let Ok((Some(Ok(ours)), Some(Ok(theirs)))) = ends else { continue };
        let receive = passive.receive(adapter.buffer(8).expect("memory")).expect("posted");
        let send = active.send(adapter.buffer(8).expect("memory")).expect("posted");
        match random(4) {
            0 => drop((ours, theirs, receive, send)),
            1 => drop((active, passive)),
            2 => drop(polled(ours.disconnect(), 1).await),
            _ => drop((listener, connector, send)),
        }
    }
    eventually("everything is given back", || held() == baseline).await;
    drop(adapter);
    let objects = || held().into_iter().filter(|(kind, _)| kind != "descriptors").map(|(_, count)| count);
    eventually("the device has no object of ours", || objects().sum::<usize>() == 0).await;
}
