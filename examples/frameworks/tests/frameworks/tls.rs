//! Mutual TLS over streams: who may connect, and that what is said arrives.
//!
//! Runs on: rxe

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::authority::{Authority, NAME};
use common::stream::{listening, pattern};
use common::*;
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rdma::io::TlsListener;
use tokio_rdma::{RdmaConnector, RdmaStream, StreamConfig};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{CertificateError, Error, ProtocolVersion, ServerConfig, version};
use tokio_rustls::{TlsConnector, TlsStream, client, server};

const MIB: usize = 1 << 20;

type Ends = (client::TlsStream<RdmaStream>, server::TlsStream<RdmaStream>);

fn listen(config: Arc<ServerConfig>) -> TlsListener {
    is_incoming(TlsListener::new(listening(&adapter(), &StreamConfig::default()), config))
}

async fn stream(address: SocketAddr) -> RdmaStream {
    let connector = RdmaConnector::new().provider(Device::under_test().provider());
    within(connector.connect(address)).await.expect("connected")
}

async fn handshake(
    connector: &TlsConnector,
    address: SocketAddr,
    name: &'static str,
) -> io::Result<client::TlsStream<RdmaStream>> {
    let name = ServerName::try_from(name).expect("a name");
    within(connector.connect(name, stream(address).await)).await
}

/// Both ends of a stream that must come about.
async fn secured(listener: &mut TlsListener, connector: &TlsConnector) -> Ends {
    let address = listener.local_addr().expect("an address");
    let (client, server) = tokio::join!(handshake(connector, address, NAME), within(listener.accept()));
    let ((server, peer), client) = (server.expect("accepted"), client.expect("connected"));
    assert_eq!(peer, client.get_ref().0.local_addr().expect("an address"));
    (client, server)
}

/// The error of TLS in it.
fn tls(error: &io::Error) -> &Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    inner.unwrap_or_else(|| panic!("{error:?}"))
}

/// The bounds that tonic's `serve_with_incoming` asks for.
fn is_incoming<L, S>(listener: L) -> L
where
    L: futures::Stream<Item = io::Result<S>>,
    S: tonic::transport::server::Connected + AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    listener
}

/// A client that is turned away: in TLS 1.3 it learns of it when it reads.
async fn turned_away(listener: &mut TlsListener, connector: TlsConnector) {
    let address = listener.local_addr().expect("an address");
    let client = async {
        let outcome = within(async { handshake(&connector, address, NAME).await?.read_u8().await }).await;
        let error = outcome.expect_err("turned away");
        assert!(matches!(tls(&error), Error::AlertReceived(_)), "{error:?}");
    };
    tokio::select! {
        accepted = listener.accept() => panic!("{accepted:?}"),
        () = client => {}
    }
}

// HTTP/2 writes before it reads. The alert of a server that has turned the client away is read nevertheless (IO-02).
//
// hyper's connection is two tasks. On two threads the one that is awaited here may see that the other has ended before it sees the
// error, and then returns `Ok`, over any transport. On one thread it sees both at once.
#[tokio::test]
async fn a_client_of_http_2_reads_the_alert() {
    let authority = Authority::new();
    let mut listener = listen(authority.server());
    let address = listener.local_addr().expect("an address");
    let server = tokio::spawn(async move { listener.accept().await.map(drop) });
    let connector = authority.client(None, &version::TLS13);
    for round in 0..20 {
        let stream = handshake(&connector, address, NAME).await.expect("in TLS 1.3 the client is done first");
        let ended = stream.get_ref().0.connection().clone();
        if round % 2 == 0 {
            within(ended.disconnected()).await;
        }
        let (executor, io) = (TokioExecutor::new(), TokioIo::new(stream));
        let error = within(async {
            let (_requests, connection) = http2::handshake::<_, _, Empty<Bytes>>(executor, io).await?;
            connection.await
        });
        let error = error.await.expect_err("turned away");
        assert!(format!("{error:?}").contains("CertificateRequired"), "{round}: {error:?}");
    }
    server.abort();
}

// IO-14: rustls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutual_authentication_and_transfer_both_ways() {
    let authority = Authority::new();
    let mut listener = listen(authority.server());
    for version in [&version::TLS12, &version::TLS13] {
        let identity = authority.identity("client.example");
        let connector = authority.client(Some(identity.clone()), version);
        let (client, server) = secured(&mut listener, &connector).await;
        let session = server.get_ref().1;
        assert_eq!(session.peer_certificates(), Some(&[identity.certificate][..]));
        let expected =
            if version == &version::TLS12 { ProtocolVersion::TLSv1_2 } else { ProtocolVersion::TLSv1_3 };
        assert_eq!(session.protocol_version(), Some(expected));

        let talk = async |stream: TlsStream<RdmaStream>, mine: usize, theirs: usize| {
            let (mut read, mut write) = tokio::io::split(stream);
            let mut received = Vec::new();
            let sent = pattern(mine, often(4, 2) * MIB);
            let send = async {
                write.write_all(&sent).await?;
                write.shutdown().await
            };
            let (sent, heard) = tokio::join!(send, read.read_to_end(&mut received));
            sent.expect("sent");
            heard.expect("to the end");
            assert!(received == pattern(theirs, often(4, 2) * MIB), "what {theirs} sent");
        };
        within(async { tokio::join!(talk(client.into(), 1, 2), talk(server.into(), 2, 1)) }).await;
    }
}

#[tokio::test]
async fn a_client_without_a_certificate_is_turned_away() {
    let authority = Authority::new();
    let mut listener = listen(authority.server());
    for version in [&version::TLS12, &version::TLS13] {
        turned_away(&mut listener, authority.client(None, version)).await;
    }
    // And the next one, who has one, is not.
    secured(&mut listener, &authority.good()).await;
}

#[tokio::test]
async fn a_client_of_another_authority_is_turned_away() {
    let (authority, other) = (Authority::new(), Authority::named("another"));
    let mut listener = listen(authority.server());
    let stranger = authority.client(Some(other.identity("client.example")), &version::TLS13);
    turned_away(&mut listener, stranger).await;
    secured(&mut listener, &authority.good()).await;
}

#[tokio::test]
async fn client_rejects_untrusted_or_misnamed_server() {
    let (authority, other) = (Authority::new(), Authority::named("another"));
    let mut listener = listen(authority.server());
    let address = listener.local_addr().expect("an address");
    let server = tokio::spawn(async move { listener.accept().await.map(drop) });
    let error = handshake(&other.good(), address, NAME).await.expect_err("another authority");
    assert_eq!(*tls(&error), Error::InvalidCertificate(CertificateError::UnknownIssuer));
    let error = handshake(&authority.good(), address, "other.example").await.expect_err("another name");
    let named = matches!(
        tls(&error),
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
        )
    );
    assert!(named, "{error:?}");
    assert!(!server.is_finished(), "neither was accepted");
    let _client = handshake(&authority.good(), address, NAME).await.expect("this is the one");
    within(server).await.expect("no panic").expect("accepted");
}

#[tokio::test]
async fn closing_one_direction_leaves_the_other_open() {
    let authority = Authority::new();
    let mut listener = listen(authority.server());
    let (mut client, mut server) = secured(&mut listener, &authority.good()).await;
    let asking = async {
        client.write_all(b"all of it?").await.expect("written");
        client.shutdown().await.expect("closed");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.expect("to the end");
        assert!(answer == pattern(3, MIB));
    };
    let answering = async {
        let mut question = String::new();
        server.read_to_string(&mut question).await.expect("to the end");
        assert_eq!(question, "all of it?");
        server.write_all(&pattern(3, MIB)).await.expect("the other direction is open");
        server.shutdown().await.expect("closed");
    };
    within(async { tokio::join!(asking, answering) }).await;
}

#[tokio::test]
async fn end_without_close_notify_is_unexpected_eof() {
    let authority = Authority::new();
    let mut listener = listen(authority.server());
    let (mut client, mut server) = secured(&mut listener, &authority.good()).await;
    client.write_all(b"half a sen").await.expect("written");
    client.flush().await.expect("flushed");
    // The stream beneath is closed in order, and TLS has not said that this is all.
    let (mut beneath, _session) = client.into_inner();
    within(beneath.shutdown()).await.expect("closed");
    let mut heard = Vec::new();
    let error = within(server.read_to_end(&mut heard)).await.expect_err("cut off");
    assert_eq!((error.kind(), &heard[..]), (io::ErrorKind::UnexpectedEof, &b"half a sen"[..]));
}

#[tokio::test]
async fn silent_and_invalid_clients_delay_nobody() {
    let authority = Authority::new();
    let mut listener = listen(authority.server()).handshake_timeout(patience());
    let address = listener.local_addr().expect("an address");
    let _silent = stream(address).await;
    let mut noisy = stream(address).await;
    noisy.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("written");
    secured(&mut listener, &authority.good()).await;
    // It was told that this is not TLS, and dropped.
    let mut heard = Vec::new();
    let outcome = within(async {
        tokio::select! {
            accepted = listener.accept() => panic!("{accepted:?}"),
            outcome = noisy.read_to_end(&mut heard) => outcome,
        }
    })
    .await;
    outcome.expect("to the end");
    // One record of the type alert, which is fatal.
    assert!(matches!(heard[..], [21, 3, _, 0, 2, 2, _]), "{heard:?}");
}

// SEC-09
#[tokio::test]
async fn extreme_settings_of_the_listener() {
    let authority = Authority::new();
    for listener in [
        listen(authority.server()).handshakes(0),
        listen(authority.server()).handshakes(usize::MAX),
        listen(authority.server()).handshake_timeout(Duration::MAX),
    ] {
        let mut listener = listener;
        secured(&mut listener, &authority.good()).await;
    }
    let mut listener = listen(authority.server()).handshake_timeout(Duration::ZERO);
    let address = listener.local_addr().expect("an address");
    let connector = authority.good();
    // No time but what the timer has in excess: it is dropped, or was just in time.
    tokio::select! {
        accepted = listener.accept() => drop(accepted.expect("in time")),
        outcome = handshake(&connector, address, NAME) => drop(outcome),
    }
}

#[tokio::test]
async fn timed_out_handshake_frees_its_place() {
    let authority = Authority::new();
    let listener = listen(authority.server());
    let mut listener = listener.handshakes(1).handshake_timeout(patience() / 60);
    let address = listener.local_addr().expect("an address");
    let mut silent = stream(address).await;
    let connector = authority.good();
    // Again and again: it may itself be too slow for that limit.
    let next = async {
        loop {
            if let Ok(_stream) = handshake(&connector, address, NAME).await {
                std::future::pending::<()>().await;
            }
        }
    };
    // On a task of its own, which nothing but the listener wakes.
    let accepted = tokio::spawn(async move { listener.accept().await.expect("accepted") });
    let accepted = async {
        tokio::select! {
            accepted = accepted => accepted.expect("no panic"),
            () = next => unreachable!("it does not end"),
        }
    };
    let ((_stream, peer), dropped) = within(async { tokio::join!(accepted, silent.read_u8()) }).await;
    assert_ne!(peer, silent.local_addr().expect("an address"));
    dropped.expect_err("the first one was dropped");
}
