//! Streams over the loopback of the kernel, whose TCP connections are reset or fall silent.
//!
//! Runs on: soft

use std::time::Duration;

use super::{Service, chat, listen};
use crate::authority::{Authority, NAME};
use common::relay::{Cut, Relay};
use common::session::{Path, config, path, transfer};
use common::within;
use tokio::sync::watch;
use tokio_rdma::io::TlsListener;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{Provider, RdmaConnector, RdmaListener};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::sync::CancellationToken;

const PATH_TIMEOUT: Duration = Duration::from_secs(2);
/// The ends of the connections of a stream, but of the last.
const CUTS: [Cut; 4] = [Cut::Reset, Cut::Silence, Cut::Reset, Cut::Silence];
/// The notes before each.
const NOTES: usize = 500;

/// Binds a listener, and starts a relay to it. Returns the connector that goes with them, too.
async fn relayed() -> (RdmaListener, Relay, RdmaConnector) {
    let soft = Provider::soft_with(SoftConfig::default().path_timeout(Some(PATH_TIMEOUT)));
    let bound = RdmaListener::bind_with_provider(&soft, "127.0.0.1:0", &config()).await;
    let listener = bound.expect("bound");
    let relay = Relay::start(listener.local_addr().expect("an address")).await;
    (listener, relay, RdmaConnector::new().provider(soft).config(config()))
}

// Calls of tonic go on when the connection is lost, again and again, while both sides stream (SES-01).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_tonic_outlive_connections() {
    let (listener, relay, connector) = relayed().await;
    let mut service = Service::start(listener, connector, relay.address);
    let [mut ours, mut theirs] = service.connected().await;
    let (over, answered) = (CancellationToken::new(), watch::Sender::new(0));
    let chatting = tokio::spawn(chat(service.client.clone(), over.clone(), answered.clone()));
    let (heard, cuts) = (watch::Sender::new(0), watch::Sender::new(0));
    // In the midst of the notes none is read until the connection has failed, so that it takes some along.
    let read = listen(service.client.clone(), (NOTES * (CUTS.len() + 1)) as u32, async |number| {
        heard.send_replace(number);
        cuts.subscribe().wait_for(|cuts| *cuts >= number / NOTES).await.is_ok()
    });
    let lose = async {
        let mut answered = answered.subscribe();
        for (number, cut) in CUTS.into_iter().enumerate() {
            let is_midst = |heard: &usize| *heard == (number + 1) * NOTES;
            heard.subscribe().wait_for(is_midst).await.expect("the test goes on");
            let before = *answered.borrow_and_update();
            answered.wait_for(|answered| *answered > before).await.expect("the test goes on");
            relay.cut(cut);
            ours.until(|path| path.resumes > number as u64).await;
            cuts.send_replace(number + 1);
        }
    };
    let all = tokio::time::timeout(Duration::from_secs(90), async { tokio::join!(read, lose) });
    all.await.expect("the calls go on");
    over.cancel();
    within(chatting).await.expect("no panic");
    theirs.until(|path| path.resumes >= CUTS.len() as u64).await;
    service.ended().await;
}

// A session of TLS goes on with its stream (SES-01).
#[tokio::test]
async fn tls_outlives_connections() {
    let (listener, relay, connector) = relayed().await;
    let authority = Authority::new();
    let mut listener = TlsListener::new(listener, authority.server());
    let connecting = async {
        let stream = connector.connect(relay.address).await.expect("connected");
        let path = Path::of(&stream);
        let name = ServerName::try_from(NAME).expect("a name");
        (authority.good().connect(name, stream).await.expect("a session of TLS"), path)
    };
    let both = within(async { tokio::join!(connecting, listener.accept()) }).await;
    let ((mut ours, mut changes), (mut theirs, _)) = (both.0, both.1.expect("accepted"));
    transfer(&mut ours, &mut theirs, CUTS.len() + 1, async |stage| {
        relay.cut(CUTS[stage]);
        changes.until(|path| path.resumes > stage as u64).await;
    })
    .await;
    let (ours, theirs) = (ours.get_ref().0, theirs.get_ref().0);
    for end in [ours, theirs] {
        assert!(path(end).resumes >= CUTS.len() as u64);
    }
}
