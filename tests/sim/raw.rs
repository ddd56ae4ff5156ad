//! Plain streams of bytes, and peers of the provider that are made of them.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use common::raw::{REQUEST_KEY, Start};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};
use tokio_rdma::error::ConnectError;
use tokio_rdma::sim::{self, Host, Network, TcpStream};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{AcceptParams, ConnectParams, DisconnectReason, QueuePairConfig};

use crate::{PORT, SECOND, adapter, connect, hosts, queue_pair};

const SEEDS: std::ops::Range<u64> = 0..20;

/// A request for a connection of revision 1 without private data (RFC 5044 section 7.1.1).
const REQUEST: &[u8; 20] = b"MPA ID Req Frame\x00\x01\x00\x00";
/// Its reply.
const REPLY: &[u8; 20] = b"MPA ID Rep Frame\x00\x01\x00\x00";

fn address(host: &Host) -> SocketAddr {
    (host.address(), PORT).into()
}

/// A plain stream from the client to the server: the end of the server, and that of the client.
async fn plain(server: &Host, client: &Host) -> (TcpStream, TcpStream) {
    let listener = server.tcp_listener(PORT).expect("listening");
    let (accepted, connected) = tokio::join!(listener.accept(), client.tcp_connect(address(server)));
    let ((theirs, peer), ours) = (accepted.expect("accepted"), connected.expect("connected"));
    assert_eq!((theirs.local_addr(), ours.peer_addr()), (address(server), address(server)));
    assert_eq!((theirs.peer_addr(), ours.local_addr()), (peer, peer));
    (theirs, ours)
}

#[test]
fn stream_carries_bytes_with_half_close() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        network.link(&server, &client).segments(1..=1460);
        network.buffers(1000, 1000);
        let (mut theirs, mut ours) = plain(&server, &client).await;
        assert_eq!(ours.try_read(&mut [0]).expect_err("nothing yet").kind(), ErrorKind::WouldBlock);
        let bytes: Vec<u8> = (0..100_000).map(|place| (place % 251) as u8).collect();
        let asking = async {
            ours.write_all(&bytes).await.expect("written");
            ours.shutdown().await.expect("ended");
            assert_eq!(ours.write(b"more").await.expect_err("ended").kind(), ErrorKind::BrokenPipe);
            let mut answer = Vec::new();
            ours.read_to_end(&mut answer).await.expect("read");
            answer
        };
        let answering = async {
            let mut question = Vec::new();
            theirs.read_to_end(&mut question).await.expect("read");
            theirs.write_all(b"all of it").await.expect("the other direction is open");
            drop(theirs);
            question
        };
        let (answer, question) = tokio::join!(asking, answering);
        assert!(question == bytes && answer == b"all of it");
    });
}

#[test]
fn full_stream_blocks_and_reset_ends_it() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        network.buffers(100, 100);
        let (theirs, mut ours) = plain(&server, &client).await;
        timeout(SECOND, ours.write_all(&[1; 1000])).await.expect_err("nobody reads");
        assert_eq!(ours.try_write(b"more").expect_err("full").kind(), ErrorKind::WouldBlock);
        theirs.reset();
        let error = ours.read(&mut [0]).await.expect_err("reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn streams_that_do_not_come_about_say_why() {
    sim::check(0..1, async |network: Network| {
        let (server, client) = hosts(&network);
        let failure = async || client.tcp_connect(address(&server)).await.expect_err("no stream").kind();
        assert_eq!(failure().await, ErrorKind::ConnectionRefused);
        let listener = server.tcp_listener(PORT).expect("listening");
        assert_eq!(server.tcp_listener(PORT).expect_err("twice").kind(), ErrorKind::AddrInUse);
        let any = server.tcp_listener(0).expect("listening");
        client.tcp_connect(any.local_addr()).await.expect("connected");
        network.partition(&server, &client, 1000 * SECOND);
        assert_eq!(failure().await, ErrorKind::TimedOut);
        server.crash();
        assert_eq!(server.tcp_listener(0).expect_err("crashed").kind(), ErrorKind::AddrNotAvailable);
        timeout(SECOND, listener.accept()).await.expect_err("a host that has crashed");
        server.restart();
        assert_eq!(listener.accept().await.expect_err("gone").kind(), ErrorKind::InvalidInput);
        client.crash();
        assert_eq!(failure().await, ErrorKind::AddrNotAvailable);
    });
}

#[test]
fn connect_to_silent_peer_times_out() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let silent = server.tcp_listener(PORT).expect("listening");
        let active = adapter(&client);
        let params = ConnectParams::default().timeout(10 * SECOND);
        let queue_pair = queue_pair(&active);
        let connector = active.connector();
        let begin = network.elapsed();
        let (accepted, outcome) =
            tokio::join!(silent.accept(), connector.connect(&queue_pair, address(&server), params));
        assert!(matches!(outcome.expect_err("no reply"), ConnectError::TimedOut { .. }));
        assert!((10 * SECOND..11 * SECOND).contains(&(network.elapsed() - begin)));
        let (mut stream, _) = accepted.expect("accepted");
        let mut request = Vec::new();
        // The end may be a reset.
        let _ = stream.read_to_end(&mut request).await;
        assert!(request.starts_with(&REQUEST[..16]));
    });
}

// SEC-07: the time for a request is limited, however little of it has arrived.
#[test]
fn partial_request_is_closed_at_request_timeout() {
    const LIMIT: Duration = Duration::from_secs(3);
    sim::check(0..REQUEST.len() as u64, async |network: Network| {
        let (server, client) = hosts(&network);
        let config = SoftConfig::default().request_timeout(LIMIT);
        let passive = server.provider_with(config).open(server.address()).expect("opened");
        let (listener, address) = crate::listening(&passive, &server);
        let mut stream = client.tcp_connect(address).await.expect("connected");
        let begin = network.elapsed();
        stream.write_all(&REQUEST[..network.seed() as usize]).await.expect("written");
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply).await;
        assert!(reply.is_empty());
        assert!((LIMIT - SECOND..=LIMIT + SECOND).contains(&(network.elapsed() - begin)));
        timeout(SECOND, listener.request()).await.expect_err("half a request is none");
    });
}

// To close the socket with bytes unread would be a reset, and the peer might not hear why it is refused.
#[test]
fn a_refused_peer_that_talks_on_hears_why() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let passive = adapter(&server);
        let (listener, address) = crate::listening(&passive, &server);
        let mut stream = client.tcp_connect(address).await.expect("connected");
        stream.write_all(REQUEST).await.expect("written");
        let request = listener.request().await.expect("a request");
        request.reject(b"not now").await.expect("rejected");
        for _ in 0..5 {
            stream.write_all(b"and more").await.expect("nobody has hung up");
            sleep(SECOND / 10).await;
        }
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).await.expect("an end in order");
        assert!(reply.ends_with(b"not now"));
    });
}

// CM-21: a queue pair is free as soon as its accept has been taken back, whatever the peer does then.
#[test]
fn dropped_accept_frees_its_queue_pair() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (adapter(&server), adapter(&client));
        let (listener, address) = crate::listening(&passive, &server);
        let (theirs, ours) = (queue_pair(&passive), queue_pair(&active));
        let mut silent = client.tcp_connect(address).await.expect("connected");
        silent.write_all(&Start::peer_to_peer(4, 4).encode(REQUEST_KEY)).await.expect("written");
        let accept = listener.accept_next(&theirs, AcceptParams::default());
        timeout(SECOND, accept).await.map(drop).expect_err("its first frame does not come");
        connect((&listener, &theirs), (&active.connector(), &ours), ConnectParams::default()).await;
        drop(silent);
    });
}

#[test]
fn reset_after_startup_is_a_loss() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let foreign = server.tcp_listener(PORT).expect("listening");
        let active = adapter(&client);
        let queue_pair = active.queue_pair(QueuePairConfig::default()).expect("a queue pair");
        let connector = active.connector();
        let replying = async {
            let (mut stream, _) = foreign.accept().await.expect("accepted");
            let mut head = [0; 20];
            stream.read_exact(&mut head).await.expect("a request");
            let mut data = vec![0; u16::from_be_bytes([head[18], head[19]]).into()];
            stream.read_exact(&mut data).await.expect("its private data");
            stream.write_all(REPLY).await.expect("written");
            stream
        };
        let params = ConnectParams::default();
        let (stream, outcome) =
            tokio::join!(replying, connector.connect_and_complete(&queue_pair, address(&server), params));
        let connection = outcome.expect("connected");
        stream.reset();
        assert!(matches!(connection.disconnected().await, DisconnectReason::Lost { .. }));
    });
}

// NEG-07: an initiator that is not peer-to-peer may say nothing. It is sent to a while after the reply, and only when it has that:
// siw drops a connection whose first frame it finds behind the reply.
#[test]
fn nothing_is_sent_before_the_reply_has_arrived() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let passive = adapter(&server);
        let listener = passive.listener();
        listener.bind(address(&server)).expect("bound");
        listener.listen(0).expect("listening");
        let mut raw = client.tcp_connect(address(&server)).await.expect("connected");
        raw.write_all(REQUEST).await.expect("written");
        let request = listener.request().await.expect("a request");
        // The reply is lost, and sent again.
        let cut = Duration::from_millis(network.random(1..=3000));
        network.partition_one_way(&server, &client, cut);
        let queue_pair = queue_pair(&passive);
        let _connection = request.accept(&queue_pair, AcceptParams::default()).await.expect("accepted");
        let sent = queue_pair.send(passive.buffer(8).expect("memory")).expect("posted");
        let mut bytes = [0; 100];
        let length = timeout(10 * SECOND, raw.read(&mut bytes)).await.expect("in time").expect("read");
        assert_eq!(&bytes[..length], REPLY);
        let length = timeout(10 * SECOND, raw.read(&mut bytes)).await.expect("in time").expect("read");
        assert!(length > 0, "the message");
        sent.await.0.expect("sent");
    });
}
