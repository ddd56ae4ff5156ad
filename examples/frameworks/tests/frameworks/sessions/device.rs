//! A service over a device of the kernel that is removed, and comes back.
//!
//! Runs on: rxe, siw

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::{Service, chat, listen};
use common::session::{Path, config};
use common::verbs::{Link, driver};
use common::within;
use tokio::sync::watch;
use tokio_rdma::{ProviderKind, RdmaConnector, RdmaListener};
use tokio_util::sync::CancellationToken;

/// The answers to a chat over each path.
const ANSWERS: usize = 50;

/// Waits until a stream is over this provider, and calls go on over it.
async fn over(provider: ProviderKind, paths: &mut [Path], answered: &watch::Sender<usize>) {
    for path in paths {
        path.until(|path| !path.is_lost && path.connection.provider() == provider).await;
    }
    let mut answered = answered.subscribe();
    let before = *answered.borrow_and_update();
    within(answered.wait_for(|answered| *answered >= before + ANSWERS)).await.expect("the calls go on");
}

// A service streams over a device while that is removed, goes on over TCP, and is over the device again when that has come back: the
// same stream, and no call fails (SES-01, SES-07).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tonic_service_outlives_device_and_returns() {
    let Some(driver) = driver() else { return };
    let link = Arc::new(Link::new(driver));
    let listener = RdmaListener::bind_with((Ipv4Addr::UNSPECIFIED, 0), &config()).await.expect("bound");
    let address = SocketAddr::new(link.address, listener.local_addr().expect("an address").port());
    let mut service = Service::start(listener, RdmaConnector::new().config(config()), address);
    let mut paths = service.connected().await;
    let (end, answered) = (CancellationToken::new(), watch::Sender::new(0));
    let chatting = tokio::spawn(chat(service.client.clone(), end.clone(), answered.clone()));
    let stop = end.clone();
    let listening = listen(service.client.clone(), u32::MAX, async move |_| !stop.is_cancelled());
    let listening = tokio::spawn(listening);
    over(ProviderKind::Verbs, &mut paths, &answered).await;
    let removed = link.begin_to_remove();
    over(ProviderKind::Soft, &mut paths, &answered).await;
    // Nothing of the stream keeps the device.
    within(removed).await.expect("removed");
    link.add_device();
    // Over iWARP the peer of a device may be the software provider, until its listener has returned to the device.
    let returning = if driver == "siw" { &mut paths[..1] } else { &mut paths[..] };
    over(ProviderKind::Verbs, returning, &answered).await;
    end.cancel();
    for calls in [chatting, listening] {
        within(calls).await.expect("no panic");
    }
    service.ended().await;
}
