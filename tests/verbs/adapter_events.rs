//! The events of an adapter: those of its ports, of its addresses, and of its end.
//!
//! Runs on: fake, fake-iwarp

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::net::{ip, isolated};
use common::process::{alone, apart};
use common::verbs::{fake, fake_reset, nothing_is_left};
use common::*;
use futures::StreamExt;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio_rdma::{AdapterEvent, AdapterEvents, ConnectParams};
use tracing::subscriber::set_default;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// The number of events that a stream keeps for a program that does not read.
const KEPT: usize = 32;

/// The next events of a stream, as many as there are expected.
async fn follow(events: &mut AdapterEvents, expected: &[AdapterEvent]) {
    for event in expected {
        assert_eq!(within(events.recv()).await, Some(*event));
    }
}

// AD-09: each event of a port names it, and every stream has each.
#[tokio::test]
async fn port_changes_are_events() {
    use AdapterEvent::*;
    if !alone(module_path!(), "port_changes_are_events") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let (mut events, mut others) = (adapter.events(), adapter.events());
    for (line, expected) in [
        ("port 1 down", vec![PortDown { port: 1 }]),
        ("port 1 up", vec![PortUp { port: 1 }]),
        ("port 2 down", vec![PortDown { port: 2 }]),
        ("partitions 0 1", vec![PkeyChanged { port: 1 }, PkeyChanged { port: 2 }]),
        ("event 11 2", vec![LidChanged { port: 2 }]),
        ("event 13 1", vec![SubnetManagerChanged { port: 1 }]),
        // The same addresses as before.
        ("event 18 2", vec![GidChanged { port: 2 }]),
        // A demand of the subnet manager, which the connection manager of the kernel answers, and an unknown number.
        ("event 17 1;event 99 1;event 18 1", vec![GidChanged { port: 1 }]),
    ] {
        for line in line.split(';') {
            fake(line);
        }
        follow(&mut events, &expected).await;
        let read: Vec<_> = within(others.by_ref().take(expected.len()).collect()).await;
        assert_eq!(read, expected, "{line}");
    }
    // A stream begins with the first event after it was made.
    let mut later = adapter.events();
    fake("port 2 up");
    follow(&mut later, &[PortUp { port: 2 }]).await;
}

// AD-09: a program that does not read misses the first events, and is told how many.
#[tokio::test]
async fn slow_reader_misses_the_first_events() {
    if !alone(module_path!(), "slow_reader_misses_the_first_events") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let (mut slow, mut fast) = (adapter.events(), adapter.events());
    let all: Vec<_> = (0..KEPT + 5)
        .map(|number| match number % 2 {
            0 => AdapterEvent::PortDown { port: 1 },
            _ => AdapterEvent::PortUp { port: 1 },
        })
        .collect();
    for event in &all {
        fake(if matches!(event, AdapterEvent::PortUp { .. }) { "port 1 up" } else { "port 1 down" });
        follow(&mut fast, &[*event]).await;
    }
    follow(&mut slow, &[AdapterEvent::Missed { count: 5 }]).await;
    follow(&mut slow, &all[5..]).await;
    // It is up to date.
    fake("port 1 up");
    follow(&mut slow, &[AdapterEvent::PortUp { port: 1 }]).await;
}

// AD-09: addresses are compared when the device says that its GIDs have changed.
#[tokio::test]
async fn address_changes_are_events() {
    use AdapterEvent::*;
    if !alone(module_path!(), "address_changes_are_events") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let mut events = adapter.events();
    fake(&format!("displace {}", v6()));
    fake("event 18 1");
    follow(&mut events, &[GidChanged { port: 1 }, AddressesChanged]).await;
    assert_eq!(adapter.info().addresses, [v4()]);
    fake(&format!("place {} 1 0", v6()));
    // Another call that finds the change first does not hide it.
    assert_eq!(adapter.info().addresses, both());
    fake("event 18 1");
    follow(&mut events, &[GidChanged { port: 1 }, AddressesChanged]).await;
    // A change before the first of the streams is none.
    drop(events);
    fake(&format!("displace {}", v6()));
    assert_eq!(adapter.info().addresses, [v4()]);
    let mut events = adapter.events();
    fake("event 18 1");
    fake("event 18 2");
    follow(&mut events, &[GidChanged { port: 1 }, GidChanged { port: 2 }]).await;
}

// AD-09: the removal is the last event, also of a stream that was full, and the only one of a stream that comes later.
#[tokio::test]
async fn removal_is_the_last_event() {
    if !alone(module_path!(), "removal_is_the_last_event") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let (mut events, mut full) = (adapter.events(), adapter.events());
    for _ in 0..KEPT {
        fake("event 13 1");
        follow(&mut events, &[AdapterEvent::SubnetManagerChanged { port: 1 }]).await;
    }
    fake("remove");
    follow(&mut events, &[AdapterEvent::Removed]).await;
    assert!(adapter.is_removed());
    assert_eq!(within(events.recv()).await, None);
    assert_eq!(within(events.next()).await, None);
    follow(&mut full, &[AdapterEvent::Missed { count: 1 }]).await;
    assert_eq!(within(full.by_ref().skip(KEPT - 1).collect::<Vec<_>>()).await, [AdapterEvent::Removed]);
    let later: Vec<_> = within(adapter.events().collect()).await;
    assert_eq!(later, [AdapterEvent::Removed]);
    drop(adapter);
    nothing_is_left().await;
}

// AD-09: a stream does not keep the device open, and ends when it is closed.
#[tokio::test]
async fn events_end_with_the_adapter() {
    if !alone(module_path!(), "events_end_with_the_adapter") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let mut events = adapter.events();
    let reading = tokio::spawn(async move { events.recv().await });
    tokio::task::yield_now().await;
    assert!(!reading.is_finished());
    drop(adapter);
    assert_eq!(within(reading).await.expect("no panic"), None);
    nothing_is_left().await;
}

// AD-09: a stream of an adapter whose runtime shuts down ends for a task of another runtime.
#[tokio::test]
async fn events_end_with_the_runtime() {
    if !alone(module_path!(), "events_end_with_the_runtime") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let adapter = runtime.spawn(async { adapter() }).await.expect("opened");
    let mut events = adapter.events();
    runtime.shutdown_background();
    assert_eq!(within(events.recv()).await, None);
}

// AD-09: announcements of the kernel by which no address of this machine changes do not have the device asked for its addresses.
#[test]
fn link_changes_do_not_list_addresses() {
    if !alone(module_path!(), "link_changes_do_not_list_addresses") {
        return;
    }
    isolated(async || {
        let Some(_reset) = fake_reset() else { return };
        let adapter = adapter();
        let mut events = adapter.events();
        fake("place 10.9.0.1 1 0");
        let asked = || fake("calls rdma_bind_addr").expect("the fake device");
        let before = asked();
        for number in 0..5 {
            ip(&format!("link add left{number} type veth peer name right{number}"));
            // Each is an announcement of its own, if the task of the adapter runs in between.
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        ip("address add 10.9.0.1/32 dev lo");
        follow(&mut events, &[AdapterEvent::AddressesChanged]).await;
        // 127.0.0.1, ::1 and this one.
        assert_eq!(asked() - before, 3);
    });
}

// AD-09: addresses are watched again when the process has descriptors.
#[test]
fn address_changes_are_events_after_a_lack_of_descriptors() {
    if !alone(module_path!(), "address_changes_are_events_after_a_lack_of_descriptors") {
        return;
    }
    isolated(async || {
        let Some(_reset) = fake_reset() else { return };
        let adapter = adapter();
        fake("place 10.9.0.1 1 0");
        let (limit, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        setrlimit(Resource::RLIMIT_NOFILE, 0, most).expect("lowered");
        let mut events = adapter.events();
        setrlimit(Resource::RLIMIT_NOFILE, limit, most).expect("raised");
        ip("address add 10.9.0.1/32 dev lo");
        follow(&mut events, &[AdapterEvent::AddressesChanged]).await;
        // What the device announces goes on.
        fake("event 13 1");
        follow(&mut events, &[AdapterEvent::SubnetManagerChanged { port: 1 }]).await;
    });
}

/// Calls a function at each event for `tracing` that the addresses of the adapter have changed.
struct AtChange<F>(F);

impl<S: tracing::Subscriber, F: Fn() + 'static> Layer<S> for AtChange<F> {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut is_change = false;
        event.record(&mut |_: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            is_change |= format!("{value:?}") == "addresses changed";
        });
        if is_change {
            (self.0)();
        }
    }
}

// OBS-01: no event about addresses is emitted under a lock of the adapter, of a listener or of a connector.
#[test]
fn subscriber_may_call_while_addresses_change() {
    use AdapterEvent::*;
    if !alone(module_path!(), "subscriber_may_call_while_addresses_change") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    apart(async || {
        let adapter = adapter();
        let (listener, connector) = (adapter.listener(), Arc::new(adapter.connector()));
        let calls = Arc::new(AtomicUsize::new(0));
        let taken = || calls.swap(0, Ordering::Relaxed);
        let layer = {
            let (calls, adapter) = (calls.clone(), adapter.clone());
            let (listener, connector) = (listener.clone(), connector.clone());
            AtChange(move || {
                drop((adapter.events(), listener.local_addr(), connector.local_addr()));
                calls.fetch_add(1, Ordering::Relaxed);
            })
        };
        let _guard = set_default(tracing_subscriber::registry().with(layer));

        adapter.info();
        taken();
        fake(&format!("displace {}", v6()));
        let mut events = adapter.events();
        assert_eq!(taken(), 1, "the first stream lists the addresses");
        fake(&format!("place {} 1 0", v6()));
        fake("event 18 1");
        follow(&mut events, &[GidChanged { port: 1 }, AddressesChanged]).await;
        assert_eq!(taken(), 1, "the device says that they may have changed");
        fake(&format!("displace {}", v6()));
        listener.bind((Ipv4Addr::UNSPECIFIED, 0).into()).expect("bound");
        assert_eq!(taken(), 1, "a listener at every address lists them");
        fake(&format!("displace {}", v4()));
        let queue_pair = adapter.queue_pair(Default::default()).expect("a queue pair");
        let connect = connector.connect(&queue_pair, (v4(), 7).into(), ConnectParams::default());
        within(connect).await.map(drop).expect_err("the device has no address");
        assert_eq!(taken(), 1, "a connect whose address is gone lists them");
    });
}
