//! Futures own what they need: the objects that made them may be temporary.
//!
//! Runs on: soft, sim, rxe, siw

use common::*;
use tokio_rdma::mr::Region;
use tokio_rdma::types::Access;
use tokio_rdma::{AcceptParams, ConnectParams, DisconnectReason};

#[tokio::test]
async fn a_chain_of_temporary_objects_connects() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
    let connect = adapter.connector().connect(&active, address, ConnectParams::default());
    let accept = listener.accept_next(&passive, AcceptParams::default());
    let complete = async { connect.await.expect("accepted").complete().await };
    let (connection, accepted) = joined(complete, accept).await;
    drop((connection, accepted));
}

#[tokio::test]
async fn a_connect_is_spawned_as_it_is() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let (active, passive) = (queue_pair(&adapter), queue_pair(&adapter));
    let connect = adapter.connector().connect_and_complete(&active, address, ConnectParams::default());
    let connecting = tokio::spawn(connect);
    let accepted = within(listener.accept_next(&passive, AcceptParams::default())).await.expect("accepted");
    let connection = within(connecting).await.expect("no panic").expect("connected");
    // So is what waits for the end, which does not keep the connection.
    let ended = tokio::spawn(connection.disconnected());
    let peer = tokio::spawn(accepted.disconnected());
    drop(connection);
    assert_eq!(within(peer).await.expect("no panic"), DisconnectReason::Peer);
    assert_eq!(within(ended).await.expect("no panic"), DisconnectReason::Local);
    within(tokio::spawn(accepted.disconnect())).await.expect("no panic").expect("the peer has left in order");
}

#[tokio::test]
async fn a_registration_outlives_its_handle() {
    let register = adapter().register(16, Access::LOCAL_WRITE);
    let region: Region = within(tokio::spawn(register)).await.expect("no panic").expect("registered");
    assert_eq!(region.len(), 16);
}
