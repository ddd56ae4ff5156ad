//! The same seed is the same run.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::process::alone;
use tokio_rdma::error::PostErrorKind;
use tokio_rdma::sim::{self, CheckConfig, Network};
use tokio_rdma::{Access, DisconnectReason};

use crate::{PATH_TIMEOUT, SECOND, connected, exchange, hosts};

/// Connects, exchanges messages, writes, reads, suffers a cut and a stall, and disconnects. Returns the hash and the length of the trace.
async fn workload(network: &Network) -> (u64, Duration) {
    let (server, client) = hosts(network);
    let latency = Duration::from_micros(50)..=Duration::from_millis(40);
    network.link(&server, &client).latency(latency).bandwidth(1_000_000).segments(1..=1460);
    let (theirs, ours) = connected(&server, &client).await;
    let region = theirs.adapter.register(16 * 1024, Access::REMOTE_WRITE | Access::REMOTE_READ).await;
    let region = region.expect("registered");
    for round in 0..3 {
        exchange(&theirs, &ours).await;
        if round == 1 {
            network.partition(&server, &client, SECOND * 5);
        }
        let bytes: Vec<u8> = (0..16 * 1024).map(|place| (place % 251) as u8 ^ round).collect();
        let buffer = ours.adapter.buffer_from(&bytes).expect("memory");
        ours.queue_pair.write(buffer, &region.remote()).expect("posted").await.0.expect("written");
        network.stall(&client, &server, Duration::from_millis(network.random(0..=500)));
        let buffer = ours.adapter.buffer(bytes.len()).expect("memory");
        let (result, buffer) = ours.queue_pair.read(buffer, &region.remote()).expect("posted").await;
        result.expect("read");
        assert!(buffer[..] == bytes[..], "round {round}");
    }
    let (disconnected, reason) = tokio::join!(ours.connection.disconnect(), theirs.connection.disconnected());
    disconnected.expect("disconnected");
    assert_eq!(reason, DisconnectReason::Peer);
    (network.trace_hash(), network.elapsed())
}

// SIM-01: the hash is over every segment with its bytes and its time. The numbers that the process counts on, and the
// threads of other tests, do not reach it.
#[test]
fn equal_seeds_repeat_and_different_seeds_differ() {
    let runs = |seed| {
        let found = std::sync::Mutex::new(Vec::new());
        sim::check([seed, seed], async |network: Network| {
            let run = workload(&network).await;
            found.lock().expect("not poisoned").push(run);
        });
        found.into_inner().expect("not poisoned")
    };
    let mut hashes = Vec::new();
    for seed in 0..20 {
        let [first, second] = runs(seed)[..] else { panic!("two runs") };
        assert_eq!(first, second, "seed {seed}");
        hashes.push(first.0);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 20, "every seed has its own run");
}

// SIM-02: an hour in which nobody says anything, but for the questions of the path timeout.
#[test]
fn an_hour_of_silence_passes() {
    sim::check([1], async |network: Network| {
        let (server, client) = hosts(&network);
        let (theirs, ours) = connected(&server, &client).await;
        let before = network.elapsed();
        tokio::time::sleep(3600 * SECOND).await;
        assert_eq!(network.elapsed() - before, 3600 * SECOND);
        assert!(ours.connection.is_connected() && theirs.connection.is_connected());
        exchange(&theirs, &ours).await;
        assert!(network.elapsed() > 100 * PATH_TIMEOUT);
    });
}

#[test]
fn a_seed_that_fails_is_named() {
    let outcome = std::panic::catch_unwind(|| {
        sim::check(
            0..10,
            async |network: Network| if network.seed() < 7 { Ok(()) } else { Err("the planted error") },
        );
    });
    let panic = outcome.expect_err("seed 7 fails");
    let text = panic.downcast_ref::<String>().expect("a text");
    assert!(text.contains("seed 7") && text.contains("the planted error"), "{text}");
    let repeat = "TOKIO_RDMA_SIM_SEED=7 cargo test determinism::a_seed_that_fails_is_named";
    assert!(text.contains(repeat), "{text}");
}

#[test]
fn a_test_that_waits_for_nothing_fails() {
    let outcome = std::panic::catch_unwind(|| {
        sim::check([0], async |network: Network| {
            let (server, client) = hosts(&network);
            let (_theirs, ours) = connected(&server, &client).await;
            ours.receive().await;
        });
    });
    let panic = outcome.expect_err("no message comes");
    let text = panic.downcast_ref::<String>().expect("a text");
    assert!(text.contains("has not ended after 86400s of virtual time"), "{text}");
}

#[test]
fn a_test_may_have_a_shorter_limit() {
    let config = CheckConfig::default().limit(60 * SECOND);
    let outcome = std::panic::catch_unwind(|| {
        sim::check_with(&config, 3..9, async |network: Network| {
            tokio::time::sleep(10 * SECOND * u32::try_from(network.seed()).expect("a small number")).await;
        });
    });
    let panic = outcome.expect_err("seed 7 takes longer");
    let text = panic.downcast_ref::<String>().expect("a text");
    assert!(text.starts_with("seed 7 fails: the test has not ended after 60s of virtual time\n"), "{text}");
}

/// An error whose cause is not in its text.
#[derive(Debug, thiserror::Error)]
#[error("the planted error")]
struct Planted(#[source] std::io::Error);

#[test]
fn error_report_has_text_cause_and_location() {
    if !alone(module_path!(), "error_report_has_text_cause_and_location") {
        return;
    }
    // The hook is for the whole process.
    let place = Arc::new(Mutex::new(None));
    let told = place.clone();
    std::panic::set_hook(Box::new(move |panic| {
        *told.lock().expect("no panic") =
            panic.location().map(|place| (place.file().to_owned(), place.line()));
    }));
    let line = line!() + 2;
    let outcome = std::panic::catch_unwind(|| {
        sim::check([5], async |_| Err(Planted(std::io::Error::other("the cause"))));
    });
    drop(std::panic::take_hook());
    assert_eq!(*place.lock().expect("no panic"), Some((file!().to_owned(), line)));
    let panic = outcome.expect_err("it fails");
    let text = panic.downcast_ref::<String>().expect("a text");
    assert!(text.starts_with("seed 5 fails: the planted error\n") && text.contains("the cause"), "{text}");

    let outcome = std::panic::catch_unwind(|| {
        sim::check([5], async |_| Err(std::io::Error::from(PostErrorKind::ConnectionInvalid)));
    });
    let panic = outcome.expect_err("it fails");
    let text = panic.downcast_ref::<String>().expect("a text");
    assert!(text.starts_with("seed 5 fails: the queue pair is not connected\n"), "{text}");
}
