//! Faults at a set time, and faults that are drawn from the seed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_rdma::sim::{self, Fault, Network};
use tokio_rdma::{AcceptParams, ConnectParams, DisconnectReason};

use crate::{SECOND, adapter, connected, exchange, hosts, listening, queue_pair};

// SIM-03: at its time, whatever the order of the calls, and also when the time is past.
#[test]
fn a_fault_happens_at_its_time() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let (theirs, ours) = connected(&server, &client).await;
        let happened = Arc::new(Mutex::new(Vec::new()));
        let crash = Duration::from_millis(network.random(20_000..=30_000));
        for time in [crash, 10 * SECOND, Duration::ZERO] {
            let (happened, server) = (happened.clone(), server.clone());
            network.at(time, move |network| {
                happened.lock().expect("no panic").push(network.elapsed());
                if time == crash {
                    server.crash();
                }
            });
        }
        let now = network.elapsed();
        assert_eq!(theirs.connection.disconnected().await, DisconnectReason::DeviceRemoved);
        assert_eq!(network.elapsed(), crash);
        let happened = happened.lock().expect("no panic").clone();
        assert!(happened[0] <= now + Duration::from_millis(1), "{happened:?}");
        assert_eq!(happened[1..], [10 * SECOND, crash]);
        drop(ours);
    });
}

// SIM-03: each kind alone, and what works again when it has ended.
#[test]
fn each_kind_is_drawn_and_ends() {
    for kind in Fault::OF_CONNECTIONS.into_iter().chain(Fault::OF_HOSTS) {
        sim::check(0..8, async |network: Network| {
            let (server, client) = hosts(&network);
            let before = network.trace_hash();
            let faults = network.faults([&server, &client]).kinds([kind]).count(2..=2).within(SECOND);
            let lasting = SECOND..=20 * SECOND;
            faults.lasting(lasting).run().await;
            let silent = matches!(kind, Fault::SlowLink | Fault::IdleLimit);
            assert_eq!(network.trace_hash() == before, silent, "the trace notes each fault");
            assert!(network.elapsed() <= 22 * SECOND);
            let (theirs, ours) = connected(&server, &client).await;
            let begin = network.elapsed();
            exchange(&theirs, &ours).await;
            assert!(network.elapsed() - begin <= SECOND / 10, "the link is as it was");
        });
    }
}

// SIM-03: the future that is dropped ends what it has begun.
#[test]
fn faults_end_when_they_are_dropped() {
    for kind in [Fault::Partition, Fault::Stall, Fault::SlowLink, Fault::Freeze, Fault::NoSockets] {
        sim::check(0..4, async |network: Network| {
            let (server, client) = hosts(&network);
            let faults = network.faults([&server, &client]).kinds([kind]).count(9..=9).within(SECOND);
            let running = faults.lasting(1000 * SECOND..=1000 * SECOND).run();
            timeout(10 * SECOND, running).await.expect_err("they last");
            let (theirs, ours) = connected(&server, &client).await;
            exchange(&theirs, &ours).await;
            assert!(network.elapsed() < 12 * SECOND);
        });
    }
}

/// Serves one connection after the other, a message each way, until something fails.
async fn serve_on(host: &sim::Host) -> std::io::Result<()> {
    let adapter = host.adapter()?;
    let listener = adapter.listener();
    listener.bind((host.address(), crate::PORT).into())?;
    listener.listen(0)?;
    loop {
        let (queue_pair, buffer) = (queue_pair(&adapter), adapter.buffer(8)?);
        let receive = queue_pair.receive(buffer)?;
        let connection = listener.accept_next(&queue_pair, AcceptParams::default()).await?;
        let (result, buffer) = receive.await;
        result?;
        queue_pair.send(buffer)?.await.0?;
        connection.disconnected().await;
    }
}

/// Serves again and again.
async fn serve(host: &sim::Host) {
    loop {
        let error = serve_on(host).await.expect_err("it goes on until something fails");
        drop(error);
        sleep(SECOND).await;
    }
}

/// Asks once: whether there was an answer.
async fn ask(host: &sim::Host, server: &sim::Host) -> bool {
    let Ok(adapter) = host.adapter() else { return false };
    let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
    let (Ok(question), Ok(answer)) = (adapter.buffer_from(b"question"), adapter.buffer(8)) else {
        return false;
    };
    let receive = queue_pair.receive(answer).expect("posted");
    let params = ConnectParams::default().timeout(5 * SECOND);
    let address = (server.address(), crate::PORT).into();
    let Ok(connection) = connector.connect_and_complete(&queue_pair, address, params).await else {
        return false;
    };
    let Ok(send) = queue_pair.send(question) else { return false };
    if send.await.0.is_err() {
        return false;
    }
    let (result, answer) = receive.await;
    let _ = connection.disconnect().await;
    result.is_ok() && answer[..] == *b"question"
}

// SIM-03, SEC-16: faults of all kinds, of two of three hosts. Afterwards a service that opens what it has lost works again.
#[test]
fn a_service_works_again_after_all_faults() {
    let answered = Mutex::new(BTreeSet::new());
    sim::check(0..60, async |network: Network| {
        let (server, client) = hosts(&network);
        let other = network.host("10.0.0.3");
        let kinds = Fault::OF_CONNECTIONS.into_iter().chain(Fault::OF_HOSTS);
        let faults = network.faults([&server, &client, &other]).kinds(kinds).count(1..=8);
        let mut faults = std::pin::pin!(faults.run());
        let asking = async {
            loop {
                let outcome = timeout(200 * SECOND, ask(&client, &server)).await.expect("it ends in time");
                answered.lock().expect("no panic").insert(outcome);
                sleep(SECOND).await;
            }
        };
        tokio::select! {
            biased;
            () = faults.as_mut() => {}
            () = serve(&server) => {}
            () = asking => {}
        }
        let asking = async {
            while !ask(&client, &server).await {
                sleep(SECOND).await;
            }
        };
        let ending = async {
            tokio::select! { biased; () = serve(&server) => {}, () = asking => {} }
        };
        timeout(300 * SECOND, ending).await.expect("the service works again");
    });
    assert_eq!(
        answered.into_inner().expect("no panic").len(),
        2,
        "there were faults, and there were answers"
    );
}

// SIM-03, SIM-01: what is drawn is of the seed.
#[test]
fn the_seed_repeats_its_faults() {
    let run = |seed| {
        let hash = Mutex::new(0);
        sim::check([seed], async |network: Network| {
            let (server, client) = hosts(&network);
            let (passive, active) = (adapter(&server), adapter(&client));
            let (_listener, address) = listening(&passive, &server);
            let faults = network.faults([&server, &client]).kinds(Fault::OF_HOSTS).count(2..=4);
            let queue_pair = queue_pair(&active);
            let asking = async {
                let params = ConnectParams::default().timeout(100 * SECOND);
                let _ = active.connector().connect(&queue_pair, address, params).await;
            };
            tokio::join!(faults.run(), asking);
            *hash.lock().expect("no panic") = network.trace_hash();
        });
        hash.into_inner().expect("no panic")
    };
    let hashes: BTreeSet<_> = (0..10).map(run).collect();
    assert_eq!(hashes.len(), 10, "each seed has its own");
    assert_eq!(hashes, (0..10).map(run).collect());
}
