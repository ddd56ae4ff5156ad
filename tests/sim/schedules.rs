//! Connections that nobody thought of: what both users do at which instant, the path, and its faults are drawn from the seed.

mod checks;
mod users;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use futures::FutureExt;
use tokio::time::sleep;
use tokio_rdma::sim::{self, Network};

use crate::hosts;
use crate::tools::{Call, alive, assert_nothing_left, close, ms};
use users::Users;

/// The number of times that each call had each result.
type Results = BTreeMap<(Call, String), u32>;

/// Interferes with the calls of both users: cancels, closes, drops.
async fn interfere(users: &Users) {
    let network = &users.network;
    for _ in 0..network.random(0..=2) {
        sleep(ms(network.random(0..=300))).await;
        let place = usize::try_from(network.random(0..=1)).expect("a side");
        let handles = &users.handles[place];
        match network.random(0..=4) {
            0 | 1 => {
                users.facts.canceled[place].set(true);
                handles.connector.borrow().iter().for_each(|it| it.cancel());
                handles.listener.borrow().iter().for_each(|it| it.cancel());
                handles.connection.borrow().iter().for_each(|it| it.cancel());
            }
            2 => {
                users.facts.canceled[place].set(true);
                drop(handles.queue_pair.take());
            }
            3 => {
                users.facts.canceled[1].set(true);
                close(users.handles[1].listener.take());
            }
            _ => drop(handles.connection.take()),
        }
    }
}

/// Faults of the path and of the hosts, each of which ends.
async fn break_things(users: &Users) {
    let network = &users.network;
    let [client, server] = &users.hosts;
    for _ in 0..network.random(1..=2) {
        sleep(ms(network.random(0..=300))).await;
        users.facts.faulty.set(true);
        let time = ms(network.random(1..=3000));
        let place = usize::try_from(network.random(0..=1)).expect("a side");
        let host = &users.hosts[place];
        match network.random(0..=8) {
            0 | 1 => drop(network.reset(server, client)),
            2 => network.stall(server, client, time),
            3 => network.partition(server, client, time),
            4 => network.partition_one_way(host, &users.hosts[1 - place], time),
            5 => {
                host.freeze();
                sleep(time).await;
                host.thaw();
            }
            6 => {
                users.facts.removed[place].set(true);
                host.crash();
                sleep(time).await;
                host.restart();
            }
            _ => {
                users.facts.removed[place].set(true);
                host.remove_interface();
                sleep(time).await;
                host.restore_interface();
            }
        }
    }
}

/// Plays a schedule to its end, and checks it all the way.
async fn play(network: &Network, faulty: bool) -> Results {
    let tasks = alive();
    let (server, client) = hosts(network);
    let latency = ms(network.random(0..=20));
    let segment = match network.random(0..=9) {
        0 => 1,
        1 => 7,
        2..=4 => 64,
        _ => 4096,
    };
    let latencies = latency..=latency + ms(network.random(0..=20));
    network.link(&server, &client).latency(latencies).segments(1..=segment);
    let users = Users::new(network, [client, server]);
    let faults = async {
        if faulty {
            break_things(&users).await;
        }
    };
    tokio::join!(users.active(), users.passive(), interfere(&users), faults);
    let Users { network, hosts, facts, receives, handles, .. } = users;
    drop(handles);
    assert_nothing_left(&network, &hosts, tasks).await;
    for receive in receives.take() {
        assert!(receive.now_or_never().is_some(), "DIS-06: a receive has no result");
    }
    facts.results.take()
}

/// Plays these schedules. They are worth something: they reach each of these results again and again.
fn play_all(seeds: Range<u64>, faulty: bool, often: &[(Call, &[&str])]) {
    let reached = Mutex::new(Results::new());
    sim::check(seeds, async |network: Network| {
        let results = play(&network, faulty).await;
        let mut reached = reached.lock().expect("no panic");
        for (result, times) in results {
            *reached.entry(result).or_default() += times;
        }
    });
    let reached = reached.into_inner().expect("no panic");
    // One seed does not.
    if std::env::var_os("TOKIO_RDMA_SIM_SEED").is_some() {
        return;
    }
    for (call, results) in often {
        for result in *results {
            let times = reached.get(&(*call, (*result).to_owned())).copied().unwrap_or_default();
            assert!(times >= 5, "{call:?} {result} only {times} times: {reached:#?}");
        }
    }
}

// Whatever both users do, nothing is lost, and every call that fails has a reason (CAN-01, CAN-06, CAN-07, CAN-08,
// NEG-01, NEG-02, NEG-03, NEG-04, PD-01, PD-02, CM-24, CM-28, LS-15, DIS-01, DIS-02, DIS-06, DIS-07, DIS-13).
#[test]
fn schedules_without_faults() {
    let often: [(Call, &[&str]); 6] = [
        (Call::Connect, &["Ok", "Refused", "Rejected", "TimedOut", "Canceled", "InvalidBufferSize"]),
        (Call::Complete, &["Ok", "Aborted", "Canceled"]),
        (Call::Request, &["Ok", "Canceled"]),
        (Call::Accept, &["Ok", "Refused", "Aborted", "InvalidBufferSize"]),
        (Call::Disconnected, &["Peer", "Local", "Canceled"]),
        (Call::Disconnect, &["Ok", "Invalid", "Canceled"]),
    ];
    play_all(0..1500, false, &often);
}

// CAN-01, CAN-06, CAN-07, CAN-08, NEG-01, NEG-02, NEG-03, PD-01, PD-02, CM-18, CM-28, LS-15, DIS-06, DIS-11, DIS-14: whatever happens
// to the path and to the hosts. Every call ends, and nothing is left.
#[test]
fn schedules_with_faults() {
    let often: [(Call, &[&str]); 6] = [
        (Call::Connect, &["Ok", "Refused", "TimedOut", "DeviceRemoved"]),
        (Call::Complete, &["Ok", "Aborted", "DeviceRemoved"]),
        (Call::Request, &["Ok", "Canceled", "DeviceRemoved"]),
        (Call::Accept, &["Ok", "Refused", "Aborted", "DeviceRemoved"]),
        (Call::Disconnected, &["Peer", "Local", "Lost", "DeviceRemoved"]),
        (Call::Disconnect, &["Ok", "Invalid", "Lost", "TimedOut", "DeviceRemoved"]),
    ];
    play_all(0..1500, true, &often);
}
