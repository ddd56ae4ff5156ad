//! What byte streams leave out: segments, tasks and probes.

use std::time::Duration;

use common::raw::{OFFERS_ANNOUNCEMENTS, REQUEST_KEY, STREAM, Start, fpdu, send};
use common::session_peer::KEEPALIVE;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;
use tokio_rdma::sim::{self, Host, Network};
use tokio_rdma::{DisconnectReason, RdmaListener, RdmaStream, StreamConfig};

use crate::tools::alive;
use crate::{PATH_TIMEOUT, PORT, SECOND, adapter, hosts};

/// Returns how many segments with data have come from a host.
fn data_segments(network: &Network, from: &Host) -> usize {
    let from = format!("{}:", from.address());
    let has_data = |line: &&str| {
        let length = line.split_once('+').and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        line.split(' ').nth(1).is_some_and(|source| source.starts_with(&from)) && length > Some(0)
    };
    network.trace().lines().filter(has_data).count()
}

/// Connects the two ends of a stream, that of the server and that of the client, and has each send a byte.
async fn used_streams(server: &Host, client: &Host) -> (RdmaStream, RdmaStream) {
    let (passive, active) = (adapter(server), adapter(client));
    let (address, config) = ((server.address(), PORT).into(), StreamConfig::default());
    let listener = RdmaListener::bind_on(&passive, address, &config).expect("bound");
    let (accepted, connected) =
        tokio::join!(listener.accept(), RdmaStream::connect_on(&active, address, &config));
    let (mut theirs, mut ours) = (accepted.expect("accepted").0, connected.expect("connected"));
    for end in [&mut ours, &mut theirs] {
        end.write_all(b"x").await.expect("written");
    }
    for end in [&mut ours, &mut theirs] {
        assert_eq!(end.read_u8().await.expect("read"), b'x');
    }
    (theirs, ours)
}

// IO-03: the peer answers the request for the confirmation in the turn in which it reads the end.
#[test]
fn end_and_request_for_confirmation_share_segment() {
    sim::check(0..5, async |network: Network| {
        let (server, client) = hosts(&network);
        let (mut theirs, mut ours) = used_streams(&server, &client).await;
        sleep(SECOND).await;
        let before = data_segments(&network, &client);
        ours.shutdown().await.expect("confirmed");
        assert_eq!(theirs.read(&mut [0]).await.expect("read"), 0, "the end has come");
        sleep(SECOND).await;
        assert_eq!(data_segments(&network, &client) - before, 1);
    });
}

// IO-03: nothing is left to wait for, so that the drop itself disconnects.
#[test]
fn ended_stream_disconnects_without_task() {
    sim::check(0..5, async |network: Network| {
        let (server, client) = hosts(&network);
        let (mut theirs, mut ours) = used_streams(&server, &client).await;
        let (first, second) = tokio::join!(ours.shutdown(), theirs.shutdown());
        first.and(second).expect("both directions have ended");
        for end in [&mut ours, &mut theirs] {
            assert_eq!(end.read(&mut [0]).await.expect("read"), 0);
        }
        let connections = [ours.connection().clone(), theirs.connection().clone()];
        let before = alive();
        drop(ours);
        assert!(alive() <= before, "the drop has spawned a task");
        drop(theirs);
        assert!(alive() <= before, "the drop has spawned a task");
        for connection in connections {
            let reason = connection.disconnected().await;
            assert!(matches!(reason, DisconnectReason::Local | DisconnectReason::Peer), "{reason:?}");
        }
    });
}

// IO-18: a peer whose first frame is not awaited has perhaps not completed the connection, and cannot answer before. It has all
// its time for that, and is asked for signs of life once it has sent a frame.
#[test]
fn peer_is_not_probed_before_its_first_frame() {
    sim::check(0..5, async |network: Network| {
        let (server, client) = hosts(&network);
        let passive = adapter(&server);
        let address = (server.address(), PORT).into();
        let listener = RdmaListener::bind_on(&passive, address, &StreamConfig::default()).expect("bound");
        let mut raw = client.tcp_connect(address).await.expect("connected");
        let request = Start::peer_to_peer(16, 16).flag(OFFERS_ANNOUNCEMENTS).data(&STREAM);
        raw.write_all(&request.encode(REQUEST_KEY)).await.expect("written");
        let (stream, _) = listener.accept().await.expect("accepted with the reply");
        sleep(SECOND).await;
        let before = data_segments(&network, &server);
        assert!(before > 0, "the reply");
        sleep(Duration::from_millis(network.random(0..=1000)) + 10 * PATH_TIMEOUT).await;
        assert_eq!(data_segments(&network, &server), before);
        assert!(stream.connection().is_connected(), "the host of the peer lives");
        raw.write_all(&fpdu(&send(1, &KEEPALIVE.to_le_bytes()), false)).await.expect("written");
        sleep(PATH_TIMEOUT * 3 / 4).await;
        assert!(data_segments(&network, &server) > before, "now it is asked");
    });
}
