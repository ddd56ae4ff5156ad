//! Cancelling, flushing and the end of a runtime, with a raw socket as peer.

use common::life::*;
use common::*;

use std::task::Poll;

use tokio::runtime::{Builder, Runtime};
use tokio_rdma::error::ConnectError;
use tokio_rdma::mr::RemoteRegion;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{AcceptParams, Access, ConnectParams, DisconnectReason, Status};

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

// The peer does not answer, so `cancel` alone completes the connect, and a second `cancel` does nothing (CAN-01).
#[tokio::test]
async fn cancelling_a_connector_ends_its_connect() {
    let adapter = adapter();
    let (listener, address) = Raw::listener().await;
    let (queue_pair, connector) = (queue_pair(&adapter), adapter.connector());
    let mut connect = Box::pin(connector.connect(&queue_pair, address, ConnectParams::default()));
    let mut peer = within(async {
        tokio::select! {
            _ = &mut connect => panic!("nobody has accepted"),
            peer = Raw::asked(&listener) => peer,
        }
    })
    .await;
    connector.cancel();
    let Poll::Ready(Err(error)) = poll_once(&mut connect) else { panic!("at once") };
    assert!(matches!(error, ConnectError::Canceled) && error.status() == Status::CANCELED);
    let _ = peer.end().await;
    connector.cancel();
}

// Arrays, slices and parts come back with the bytes and ranges with which they were posted (CAN-09).
#[tokio::test]
async fn flushed_requests_return_their_buffers_intact() {
    let adapter = adapter();
    let (end, peer) = connected_to_raw(&adapter).await;
    let content = |i: usize| vec![i as u8; 1 + i * 100];
    let region = within(adapter.register(64, Access::LOCAL_WRITE)).await.expect("registered");
    region.write(0, &[5; 64]).expect("it fits");
    let receives: Vec<_> = (0..10)
        .map(|i| end.queue_pair.receive(adapter.buffer_from(&content(i)).expect("memory")).expect("posted"))
        .collect();
    let scattered = [0, 1, 2].map(|i| adapter.buffer_from(&content(i)).expect("memory"));
    let scattered = end.queue_pair.receive(scattered).expect("posted");
    let slice = end.queue_pair.receive(region.slice(8..16).expect("within")).expect("posted");
    let nowhere = RemoteRegion::new(0, RemoteKey(1), 4096);
    let reads: Vec<_> = (0..10)
        .map(|i| {
            let buffer = adapter.buffer_from(&content(i)).expect("memory").part(0..1);
            end.queue_pair.read(buffer, &nowhere).expect("posted")
        })
        .collect();
    // The futures of two requests are dropped.
    drop(end.queue_pair.receive(adapter.buffer(9).expect("memory")).expect("posted"));
    drop(end.queue_pair.read(adapter.buffer(9).expect("memory"), &nowhere).expect("posted"));
    end.queue_pair.flush();
    for (i, receive) in receives.into_iter().enumerate() {
        let (outcome, buffer) = within(receive).await;
        assert_eq!(
            (outcome.expect_err("flushed").status(), &buffer[..]),
            (Status::CANCELED, &content(i)[..])
        );
    }
    let (_, buffers) = within(scattered).await;
    assert!(buffers.iter().enumerate().all(|(i, buffer)| buffer[..] == content(i)[..]));
    assert_eq!(within(slice).await.1.range(), 8..16);
    for (i, read) in reads.into_iter().enumerate() {
        let (outcome, part) = within(read).await;
        assert_eq!(outcome.expect_err("flushed").status(), Status::CANCELED);
        assert_eq!(part.into_buffer()[..], content(i)[..]);
    }
    drop(peer);
}

// The peer does not answer the disconnect, so the end of the runtime alone completes it (CAN-04).
#[test]
fn a_pending_disconnect_ends_with_the_runtime() {
    let (home, other) = (runtime(), runtime());
    let (end, _peer) = home.block_on(async { connected_to_raw(&adapter()).await });
    let mut disconnect = Box::pin(end.connection.disconnect());
    assert!(poll_once(&mut disconnect).is_pending());
    drop(home);
    other.block_on(async {
        within(disconnect).await.expect_err("nobody has answered");
    });
}

// The peers do not answer, so the end of the runtime alone completes the futures (CAN-03, CAN-04).
#[test]
fn both_handshake_sides_end_with_the_runtime() {
    let (home, other) = (runtime(), runtime());
    let (adapter, listener, address, raw) = home.block_on(async {
        let adapter = adapter();
        let (listener, address) = listening(&adapter);
        (adapter, listener, address, Raw::listener().await)
    });
    let (mine, theirs, unheard) = (queue_pair(&adapter), queue_pair(&adapter), queue_pair(&adapter));
    let (connector, unanswered) = (adapter.connector(), adapter.connector());
    let mut connect = Box::pin(connector.connect(&mine, address, ConnectParams::default()));
    let mut accept = Box::pin(listener.accept_next(&theirs, AcceptParams::default()));
    let mut silence = Box::pin(unanswered.connect(&unheard, raw.1, ConnectParams::default()));
    let (reply, _peer) = home.block_on(async {
        let reply = within(async {
            tokio::select! {
                _ = &mut accept => panic!("nobody has completed"),
                reply = &mut connect => reply.expect("accepted"),
            }
        })
        .await;
        let peer = within(async {
            tokio::select! {
                _ = &mut silence => panic!("nobody has answered"),
                peer = Raw::asked(&raw.0) => peer,
            }
        })
        .await;
        (reply, peer)
    });
    drop(home);
    other.block_on(async {
        within(accept).await.expect_err("nobody has completed");
        within(silence).await.expect_err("nobody has answered");
        if let Ok(connection) = within(reply.complete()).await {
            let reason = within(connection.disconnected()).await;
            assert!(matches!(reason, DisconnectReason::Peer | DisconnectReason::Lost { .. }), "{reason:?}");
        }
    });
}
