//! Networks for tests that change the network: separate namespaces, which end with the threads that created them.
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use tokio::runtime::Handle;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams};

use super::{End, Pair, listening_at, queue_pair, within};

/// Longer than the soft provider keeps an adapter without an address by default.
pub const WITHOUT_ADDRESS: Duration = Duration::from_secs(11);

/// The addresses of the interface `left`, or of the left host.
pub const LEFT: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1))];
/// The addresses of the interface `right`, or of the right host.
pub const RIGHT: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)), IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2))];

/// Runs a test on a thread, a runtime and a network of its own, in which only the loopback interface is up.
///
/// Says so and returns when this process may not make one.
pub fn isolated(test: impl AsyncFnOnce() + Send + 'static) {
    let run = move || {
        if enter_namespace() {
            block_on(test());
        }
    };
    join([thread::spawn(run)]);
}

/// The same with two interfaces, `left` and `right`.
pub fn with_two_interfaces(test: impl AsyncFnOnce() + Send + 'static) {
    isolated(async || {
        ip("link add left type veth peer name right");
        configure("left", LEFT);
        configure("right", RIGHT);
        wait_until_usable(LEFT);
        wait_until_usable(RIGHT);
        test().await;
    });
}

/// Runs two hosts, each on a thread, a runtime and a network of its own. Their interfaces `left` and `right` are the
/// two ends of one cable.
pub fn two_hosts(left: impl AsyncFnOnce() + Send + 'static, right: impl AsyncFnOnce() + Send + 'static) {
    let (host, hosts) = mpsc::channel();
    let (plugged_in, plugged) = mpsc::channel();
    let left = move || {
        if !enter_namespace() {
            return;
        }
        let other: i32 = hosts.recv().expect("the other host");
        ip(&format!("link add left type veth peer name right netns {other}"));
        configure("left", LEFT);
        plugged_in.send(()).expect("the other host");
        wait_until_usable(LEFT);
        block_on(left());
    };
    let right = move || {
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            return;
        }
        host.send(nix::unistd::gettid().as_raw()).expect("the other host");
        if plugged.recv().is_ok() {
            ip("link set lo up");
            configure("right", RIGHT);
            wait_until_usable(RIGHT);
            block_on(right());
        }
    };
    join([thread::spawn(left), thread::spawn(right)]);
}

fn enter_namespace() -> bool {
    match unshare(CloneFlags::CLONE_NEWNET) {
        Ok(()) => {}
        Err(Errno::EPERM) => {
            eprintln!("skipped: needs CAP_NET_ADMIN");
            return false;
        }
        Err(error) => panic!("unshare: {error}"),
    }
    ip("link set lo up");
    true
}

/// A runtime that stays on this thread, and so in its namespace.
fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

/// Waits for all of them; panics with the first.
fn join<const N: usize>(threads: [thread::JoinHandle<()>; N]) {
    let outcomes = threads.map(thread::JoinHandle::join);
    for outcome in outcomes {
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    }
}

fn configure(interface: &str, addresses: [IpAddr; 2]) {
    ip(&format!("address add {}/24 dev {interface}", addresses[0]));
    ip(&format!("address add {}/64 dev {interface} nodad", addresses[1]));
    ip(&format!("link set {interface} up"));
}

/// Waits until sockets can be bound to these addresses: those of IPv6 are tentative until the kernel has seen the carrier of
/// their interface, which is up a moment after both ends of the cable are.
fn wait_until_usable(addresses: [IpAddr; 2]) {
    let begun = Instant::now();
    for address in addresses {
        while let Err(error) = UdpSocket::bind((address, 0)) {
            assert!(begun.elapsed() < Duration::from_secs(30), "{address}: {error}");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Runs `ip` with these arguments, in the namespace of the calling thread.
pub fn ip(arguments: &str) {
    command("ip", &arguments.split(' ').collect::<Vec<_>>());
}

/// Loads nftables rules, in the namespace of the calling thread.
pub fn nft(rules: &str) -> String {
    command("nft", &[rules])
}

/// Rules for the packets that arrive, in the namespace of the calling thread.
pub fn filter(rules: &str) {
    nft(&format!("table inet t {{ chain c {{ type filter hook input priority 0; {rules} }}; }}"));
}

/// Drops every packet from and to a TCP port.
pub fn cut(port: u16) {
    filter(&format!("tcp dport {port} drop; tcp sport {port} drop;"));
}

/// Lets everything pass again.
pub fn heal() {
    nft("flush ruleset");
}

fn command(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect(program);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A connected pair across two adapters; `passive` listens on `ip`.
pub async fn connected_across(active: &Adapter, passive: &Adapter, ip: IpAddr) -> Pair {
    let (listener, address) = listening_at(passive, ip);
    let (connector, mine, theirs) = (active.connector(), queue_pair(active), queue_pair(passive));
    let (active_end, passive_end) = within(async {
        tokio::join!(
            connector.connect_and_complete(&mine, address, ConnectParams::default()),
            listener.accept_next(&theirs, AcceptParams::default()),
        )
    })
    .await;
    Pair {
        active: End { queue_pair: mine, connection: active_end.expect("connected") },
        passive: End { queue_pair: theirs, connection: passive_end.expect("accepted") },
    }
}

/// Sends a message each way, and a write and a read.
pub async fn exchange(here: (&Adapter, &End), there: (&Adapter, &End)) {
    for ((from, sender), (to, receiver)) in [(here, there), (there, here)] {
        let receive = receiver.queue_pair.receive(to.buffer(16).expect("memory")).expect("posted");
        let send = sender.queue_pair.send(from.buffer_from(b"a message").expect("memory")).expect("posted");
        let ((sent, _), (received, buffer)) = within(async { tokio::join!(send, receive) }).await;
        sent.expect("sent");
        assert_eq!(&buffer[..received.expect("received").bytes], b"a message");
    }
}

/// Waits until no task of this runtime is left: what was dropped holds nothing any more.
pub async fn nothing_left() {
    within(async {
        while Handle::current().metrics().num_alive_tasks() > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}
