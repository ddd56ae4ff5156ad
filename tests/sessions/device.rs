//! Streams over a card that fails, and over a port of it that goes down.
//!
//! Runs on: fake, fake-iwarp

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use common::life::{eventually, poll_once};
use common::net::with_two_interfaces;
use common::process::alone;
use common::session::{config, connected, path, resumed, transfer};
use common::stream::listening;
use common::verbs::{fake, fake_reset};
use common::*;
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;
use tokio_rdma::io::{PathChanges, SessionPath};
use tokio_rdma::verbs::VerbsConfig;
use tokio_rdma::{Provider, ProviderKind, RdmaConnector, RdmaListener, RdmaStream, SessionConfig};

const PATH_TIMEOUT: Duration = Duration::from_secs(4);
/// An address of the second port.
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

fn provider_of(path: &SessionPath) -> ProviderKind {
    path.connection.provider()
}

/// Resolves when a stream has lost its connection. `changes` are those from before on.
async fn lost(changes: &mut PathChanges) {
    within(async { while !changes.next().await.expect("the session goes on").is_lost {} }).await;
}

/// Sends bytes both ways over a stream that goes on behind the fault.
async fn outlives(
    ours: &mut RdmaStream,
    theirs: &mut RdmaStream,
    mut fault: impl AsyncFnMut(&mut PathChanges),
) {
    let mut changes = ours.path_changes();
    transfer(ours, theirs, 2, async |_| {
        fault(&mut changes).await;
        resumed(&mut changes, 1).await;
    })
    .await;
    for end in [ours, theirs] {
        assert!(path(end).resumes >= 1);
    }
}

// The card fails for good. A listener of the software provider in the same process takes the stream over: sessions belong to the
// process.
#[tokio::test]
async fn stream_outlives_its_device() {
    if !alone(module_path!(), "stream_outlives_its_device") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let bind = |provider: Provider| async move {
        RdmaListener::bind_with_provider(&provider, SocketAddr::new(v4(), 0), &config()).await.expect("bound")
    };
    let listener = bind(Provider::verbs().expect("a device")).await;
    let spare = bind(Provider::soft().expect("compiled in")).await;
    let addresses = [&listener, &spare].map(|listener| listener.local_addr().expect("an address"));
    let connector = RdmaConnector::new().config(config());
    let (mut ours, mut theirs) = connected(&listener, connector.connect(&addresses[..])).await;
    assert_eq!(provider_of(&path(&ours)), ProviderKind::Verbs);
    outlives(&mut ours, &mut theirs, async |_| _ = fake("fatal")).await;
    for end in [&ours, &theirs] {
        let path = path(end);
        assert_eq!((provider_of(&path), path.resumes), (ProviderKind::Soft, 1), "{path:?}");
    }
}

// The listener of every address goes on at the address of the card, over the software provider: at once, however long it has been
// listening. On a network of its own nobody else has its port there.
#[test]
fn listener_of_every_address_outlives_a_device() {
    if !alone(module_path!(), "listener_of_every_address_outlives_a_device") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    // Without another address it would end with the card.
    with_two_interfaces(async || {
        // Shorter than the pauses between two looks at the addresses of a machine whose addresses stay the same.
        let config = config().session(SessionConfig::default().give_up_after(Duration::from_secs(10)));
        let listener = RdmaListener::bind_with("0.0.0.0:0", &config).await.expect("bound");
        tokio::time::pause();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        tokio::time::resume();
        let address = SocketAddr::new(v4(), listener.local_addr().expect("an address").port());
        let connector = RdmaConnector::new().config(config);
        let (mut ours, mut theirs) = connected(&listener, connector.connect(address)).await;
        assert_eq!(provider_of(&path(&ours)), ProviderKind::Verbs);
        outlives(&mut ours, &mut theirs, async |_| _ = fake("fatal")).await;
        for end in [&ours, &theirs] {
            let path = path(end);
            assert_eq!((provider_of(&path), path.resumes), (ProviderKind::Soft, 1), "{path:?}");
        }
    });
}

// A device is removed, and its connections end a moment later. What is written in between waits for the next connection.
#[test]
fn write_waits_while_its_device_is_removed() {
    const TEXT: &[u8] = b"in between";
    if !alone(module_path!(), "write_waits_while_its_device_is_removed") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let test = async {
        let adapter = adapter();
        let listener = listening(&adapter, &config());
        let soft = Provider::soft().expect("compiled in");
        let spare = RdmaListener::bind_with_provider(&soft, SocketAddr::new(v4(), 0), &config()).await;
        let spare = spare.expect("bound");
        let addresses = [&listener, &spare].map(|listener| listener.local_addr().expect("an address"));
        let connector = RdmaConnector::new().config(config());
        let (mut ours, mut theirs) = connected(&listener, connector.connect(&addresses[..])).await;
        // Of the only thread that could end them.
        let (release, released) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || released.recv().is_err());
        fake("remove");
        eventually("the adapter is removed", || adapter.is_removed()).await;
        let mut writing = pin!(theirs.write_all(TEXT));
        let early = poll_once(&mut writing);
        assert!(early.is_pending(), "{early:?}");
        drop(release);
        assert!(busy.await.expect("no panic"));
        within(writing).await.expect("written");
        let mut received = [0; TEXT.len()];
        within(ours.read_exact(&mut received)).await.expect("read");
        assert_eq!(received, TEXT);
        assert_eq!(provider_of(&path(&ours)), ProviderKind::Soft);
    };
    let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
    runtime.expect("a runtime").block_on(test);
}

// A port goes down, and comes up again after the loss: the stream goes on over it.
#[tokio::test]
async fn stream_goes_on_when_its_port_is_up_again() {
    if !alone(module_path!(), "stream_goes_on_when_its_port_is_up_again") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let verbs = Provider::verbs_with(VerbsConfig::default().path_timeout(Some(PATH_TIMEOUT)));
    let verbs = verbs.expect("a device");
    let listener = RdmaListener::bind_with_provider(&verbs, SocketAddr::new(v4(), 0), &config()).await;
    let listener = listener.expect("bound");
    let connector = RdmaConnector::new().provider(verbs).config(config());
    let connecting = connector.connect(listener.local_addr().expect("an address"));
    let (mut ours, mut theirs) = connected(&listener, connecting).await;
    outlives(&mut ours, &mut theirs, async |changes| {
        fake("port 1 down");
        lost(changes).await;
        fake("port 1 up");
    })
    .await;
}

// A port stays down: the stream goes on over the other one.
#[tokio::test]
async fn stream_goes_on_over_the_other_port() {
    if !alone(module_path!(), "stream_goes_on_over_the_other_port") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    for ip in [FAR, v6()] {
        fake(&format!("place {ip} 2 0"));
    }
    let verbs = Provider::verbs_with(VerbsConfig::default().path_timeout(Some(PATH_TIMEOUT)));
    let verbs = verbs.expect("a device");
    let bind = async |ip| {
        let bound = RdmaListener::bind_with_provider(&verbs, SocketAddr::new(ip, 0), &config()).await;
        bound.expect("bound")
    };
    let (second, first) = (bind(v6()).await, bind(v4()).await);
    let addresses = [&second, &first].map(|listener| listener.local_addr().expect("an address"));
    let connector = RdmaConnector::new().provider(verbs.clone()).config(config());
    let (mut ours, mut theirs) = connected(&second, connector.connect(&addresses[..])).await;
    assert_eq!(path(&ours).connection.peer_addr(), addresses[0]);
    outlives(&mut ours, &mut theirs, async |_| _ = fake("port 2 down")).await;
    assert_eq!(path(&ours).connection.peer_addr(), addresses[1]);
}
