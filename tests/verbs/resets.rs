//! Streams that are reset while a peer that is no stream still writes, as programs with librdmacm do.
//!
//! Runs on: fake

use common::life::eventually;
use common::process::alone;
use common::raw::{bytes, failure, room};
use common::verbs::fake;
use common::*;
use tokio::io::AsyncReadExt;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{
    Access, ConnectParams, QueuePairConfig, RdmaListener, RemoteRegion, Status, StreamConfig, WorkOptions,
};

/// `RS_OP_CTRL` with `RS_CTRL_KEEPALIVE`.
const KEEPALIVE: u32 = 7 << 29 | 1;

/// The number of receives of the peer.
const RECEIVES: usize = 16;

/// Returns `struct rs_conn_data` of an end whose list of targets is this memory, and which never gets any data.
fn hello(targets: RemoteRegion) -> Vec<u8> {
    let mut hello = vec![1, 0, 0, RECEIVES as u8, 0, 0, 0, 0];
    hello.extend(targets.address().to_be_bytes());
    hello.extend(targets.key().0.to_be_bytes());
    hello.extend(2_u32.to_be_bytes());
    hello.extend(targets.to_bytes());
    hello
}

// IO-05: while the end of a connection does not arrive, the device of a stream that was reset answers the writes of a program with
// rsocket, whose close waits for that, with a refusal. Then its queue pair is destroyed, although the peer has not answered.
#[tokio::test]
async fn reset_stream_refuses_writes_of_rsocket() {
    if !alone(module_path!(), "reset_stream_refuses_writes_of_rsocket") {
        return;
    }
    // As rxe, which reports nothing to the side that refuses.
    if fake("lose errors").is_none() {
        return;
    }
    let adapter = adapter();
    let listener =
        RdmaListener::bind_on(&adapter, (v4(), 0).into(), &StreamConfig::default()).expect("bound");
    let address = listener.local_addr().expect("an address");
    let (theirs, connector) =
        (adapter.queue_pair(QueuePairConfig::default()).expect("a queue pair"), adapter.connector());
    let receives: Vec<_> =
        (0..RECEIVES).map(|_| theirs.receive(room(&adapter, 4)).expect("posted")).collect();
    let targets = adapter.register(32, Access::REMOTE_WRITE).await.expect("registered");
    let hello = hello(targets.remote());
    let connect = async {
        let reply = connector
            .connect(&theirs, address, ConnectParams::default().private_data(hello))
            .await
            .expect("a reply");
        let data = RemoteRegion::decode(&reply.private_data()[24..40]).expect("16 bytes");
        (reply.complete().await.expect("connected"), data)
    };
    let ((connection, data), accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
    let (mut stream, _) = accepted.expect("accepted");
    let first = data.part(0..1).expect("in bounds");
    let written = theirs.write_with(bytes(&adapter, b"a"), &first, WorkOptions::default().immediate(1));
    within(written.expect("posted")).await.0.expect("written");
    assert_eq!(within(stream.read_u8()).await.expect("read"), b'a');

    fake("lose messages");
    stream.set_zero_linger().expect("set");
    drop(stream);
    // Of no bytes, as the message that rclose waits for.
    let nowhere = RemoteRegion::new(0, RemoteKey(0), 0);
    let message = theirs.write_with(room(&adapter, 0), &nowhere, WorkOptions::default().immediate(KEEPALIVE));
    assert_eq!(within(failure(message.expect("posted"))).await, Status::REMOTE_ERROR);
    drop((receives, connection, theirs, connector, listener));
    eventually("every queue pair is destroyed", || fake("count qp") == Some(0)).await;
    fake("lose nothing");
}
