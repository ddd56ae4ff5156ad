//! What requests carry of their connections, over all kinds of streams.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::stream::{once, pending};
use futures::{Stream, StreamExt};
use http::{Extensions, Request, Response};
use http_body_util::Empty;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio_rdma::io::TlsListener;
use tokio_rdma::{RdmaListener, RdmaStream};
use tokio_rdma_rpc::{Channel, Config, Connected, ConnectionInfo, Incoming, divide, serve};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tonic::transport::server::UdsConnectInfo;

use super::call;

const LOCAL: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);
/// The name that the server's certificate is for.
const NAME: &str = "server.example";

/// Makes two calls over the stream of `connect` to a server of the listener. Returns the second request, as tonic has it.
async fn request<L, S, C>(
    listener: L,
    connect: impl Future<Output = io::Result<C>> + Send + 'static,
) -> tonic::Request<()>
where
    L: Stream<Item = io::Result<S>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Connected + Send + 'static,
    C: AsyncRead + AsyncWrite + Send + 'static,
{
    let (sender, mut requests) = mpsc::unbounded_channel();
    let service = tower::service_fn(move |request: Request<Incoming>| {
        let _ = sender.send(request.map(drop));
        ready(Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())))
    });
    let _server = tokio::spawn(serve(listener, service));
    let connect = Mutex::new(Some(connect));
    let channel = Channel::with_connector("server", false, Config::default(), move || {
        connect.lock().expect("no panic").take().expect("one connection")
    });
    for _ in 0..2 {
        let request = Request::get("/").body(Empty::<Bytes>::new()).expect("a request");
        call(&channel, request).await.expect("answered");
    }
    let (first, second) = (requests.recv().await.expect("seen"), requests.recv().await.expect("seen"));
    assert_eq!(first.extensions().len(), second.extensions().len());
    tonic::Request::from_http(second)
}

/// Returns a listener of one stream, which does not end behind it: its server would.
fn only<S>(stream: impl Future<Output = io::Result<S>>) -> impl Stream<Item = io::Result<S>> {
    once(stream).chain(pending())
}

fn info(request: &tonic::Request<()>) -> &ConnectionInfo {
    request.extensions().get().expect("a ConnectionInfo")
}

/// Checks the addresses of a request, also those that tonic returns. Returns the certificates of the client.
fn certificates(
    request: &tonic::Request<()>,
    server: SocketAddr,
    client: SocketAddr,
) -> Option<&[CertificateDer<'static>]> {
    let info = info(request);
    assert_eq!((info.local_addr, info.peer_addr), (Some(server), Some(client)));
    assert_eq!((request.local_addr(), request.remote_addr()), (Some(server), Some(client)));
    let certificates = info.peer_certificates.as_deref();
    let of_tonic = request.peer_certs();
    assert_eq!(of_tonic.as_ref().map(|certificates| &certificates[..]), certificates);
    certificates
}

#[tokio::test]
async fn rdma_streams_have_addresses() {
    let listener = RdmaListener::bind(LOCAL).await.expect("bound");
    let server = listener.local_addr().expect("bound");
    let stream = RdmaStream::connect(server).await.expect("connected");
    let client = stream.local_addr().expect("connected");
    assert_eq!(certificates(&request(listener, ready(Ok(stream))).await, server, client), None);
}

#[tokio::test]
async fn divided_streams_have_addresses() {
    let listener = RdmaListener::bind(LOCAL).await.expect("bound");
    let server = listener.local_addr().expect("bound");
    let (in_messages, _others) = divide(listener);
    let stream = RdmaStream::connect(server).await.expect("connected");
    let client = stream.local_addr().expect("connected");
    assert_eq!(certificates(&request(in_messages, ready(Ok(stream))).await, server, client), None);
}

#[tokio::test]
async fn tcp_streams_have_addresses() {
    let listener = TcpListener::bind(LOCAL).await.expect("bound");
    let server = listener.local_addr().expect("bound");
    let stream = TcpStream::connect(server).await.expect("connected");
    let client = stream.local_addr().expect("connected");
    let accepted = only(async move { listener.accept().await.map(|(stream, _)| stream) });
    assert_eq!(certificates(&request(accepted, ready(Ok(stream))).await, server, client), None);
}

#[tokio::test]
async fn streams_without_addresses_have_none() {
    let (server, client) = duplex(4096);
    let over_duplex = request(only(ready(Ok(server))), ready(Ok(client))).await;
    let (server, client) = UnixStream::pair().expect("a pair");
    let over_unix = request(only(ready(Ok(server))), ready(Ok(client))).await;
    for request in [&over_duplex, &over_unix] {
        assert_eq!(info(request), &ConnectionInfo::default());
        assert_eq!(request.remote_addr(), None);
    }
    assert!(over_unix.extensions().get::<UdsConnectInfo>().expect("as tonic has it").peer_cred.is_some());
}

/// The configurations of both ends.
struct Ends {
    acceptor: Arc<ServerConfig>,
    connector: TlsConnector,
    /// The certificate of the client.
    certificate: Option<CertificateDer<'static>>,
}

/// Returns the two ends of TLS, with or without a certificate of the client.
fn tls(with_client: bool) -> Ends {
    let identity = || {
        let own = rcgen::generate_simple_self_signed([NAME.to_owned()]).expect("a certificate");
        let mut roots = RootCertStore::empty();
        roots.add(own.cert.der().clone()).expect("a certificate");
        (own.cert.der().clone(), PrivateKeyDer::Pkcs8(own.key_pair.serialize_der().into()), roots)
    };
    let (server, server_key, server_roots) = identity();
    let (client, client_key, client_roots) = identity();
    let verifier = WebPkiClientVerifier::builder(client_roots.into()).allow_unauthenticated();
    let acceptor = ServerConfig::builder().with_client_cert_verifier(verifier.build().expect("a verifier"));
    let acceptor = acceptor.with_single_cert(vec![server], server_key).expect("a key of the certificate");
    let connector = ClientConfig::builder().with_root_certificates(server_roots);
    let connector = match with_client {
        true => connector.with_client_auth_cert(vec![client.clone()], client_key).expect("a key"),
        false => connector.with_no_client_auth(),
    };
    Ends {
        acceptor: Arc::new(acceptor),
        connector: Arc::new(connector).into(),
        certificate: with_client.then_some(client),
    }
}

fn name() -> ServerName<'static> {
    ServerName::try_from(NAME).expect("a name")
}

#[tokio::test]
async fn tls_streams_have_client_certificates() {
    for with_client in [true, false] {
        let Ends { acceptor, connector, certificate } = tls(with_client);
        let listener = TlsListener::new(RdmaListener::bind(LOCAL).await.expect("bound"), acceptor);
        let server = listener.local_addr().expect("bound");
        let stream = RdmaStream::connect(server).await.expect("connected");
        let client = stream.local_addr().expect("connected");
        let request = request(listener, connector.connect(name(), stream)).await;
        assert_eq!(certificates(&request, server, client), certificate.as_ref().map(std::slice::from_ref));
    }
}

// By the first byte inside TLS, also for clients that ask for a protocol by its name.
#[tokio::test]
async fn tls_streams_are_divided() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for names in [&[][..], &[b"h2".to_vec()]] {
        let Ends { acceptor, connector, certificate } = tls(true);
        let mut acceptor = Arc::unwrap_or_clone(acceptor);
        acceptor.alpn_protocols = names.to_vec();
        let mut http2 = ClientConfig::clone(connector.config());
        http2.alpn_protocols = names.to_vec();
        let http2 = TlsConnector::from(Arc::new(http2));
        let listener = TlsListener::new(RdmaListener::bind(LOCAL).await.expect("bound"), Arc::new(acceptor));
        let server = listener.local_addr().expect("bound");
        let (in_messages, mut others) = divide(listener);

        let stream = RdmaStream::connect(server).await.expect("connected");
        let mut other = common::within(http2.connect(name(), stream)).await.expect("secured");
        other.write_all(PREFACE).await.expect("written");
        other.flush().await.expect("written");
        let stream = RdmaStream::connect(server).await.expect("connected");
        let client = stream.local_addr().expect("connected");
        let request = request(in_messages, connector.connect(name(), stream)).await;
        assert_eq!(certificates(&request, server, client), certificate.as_ref().map(std::slice::from_ref));

        let mut stream = common::within(others.next()).await.expect("the other").expect("no error");
        assert_eq!(stream.get_ref().1.alpn_protocol(), names.first().map(Vec::as_slice));
        let mut first = [0; PREFACE.len()];
        common::within(stream.read_exact(&mut first)).await.expect("read");
        assert_eq!(first, PREFACE);
    }
}

// tonic can make its `TlsConnectInfo` for these, but for no stream of a program.
#[tokio::test]
async fn tls_over_other_streams_has_client_certificates() {
    let Ends { acceptor, connector, certificate } = tls(true);
    let acceptor = TlsAcceptor::from(acceptor);
    let listener = TcpListener::bind(LOCAL).await.expect("bound");
    let server = listener.local_addr().expect("bound");
    let stream = TcpStream::connect(server).await.expect("connected");
    let client = stream.local_addr().expect("connected");
    let over_tcp = acceptor.clone();
    let accepted = only(async move { over_tcp.accept(listener.accept().await?.0).await });
    let over_tcp = request(accepted, connector.connect(name(), stream)).await;
    assert_eq!(certificates(&over_tcp, server, client), certificate.as_ref().map(std::slice::from_ref));

    let (server, client) = duplex(4096);
    let accepted = only(async move { acceptor.accept(Relayed(server)).await });
    let over_own = request(accepted, connector.connect(name(), client)).await;
    assert_eq!(info(&over_own).peer_certificates.as_deref(), certificate.as_ref().map(std::slice::from_ref));
    assert_eq!(over_own.remote_addr(), Some(RELAYED));
    assert_eq!(over_own.extensions().get(), Some(&Relay(Some(RELAYED))));
}

/// The address that a stream of a program has.
const RELAYED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 7);

/// A value that a stream of a program adds, made of what is there before.
#[derive(Clone, Debug, PartialEq)]
struct Relay(Option<SocketAddr>);

/// A stream of a program.
struct Relayed(DuplexStream);

impl Connected for Relayed {
    fn connection_info(&self) -> ConnectionInfo {
        ConnectionInfo::new(None, Some(RELAYED))
    }

    fn add_extensions(&self, extensions: &mut Extensions) {
        let info: &ConnectionInfo = extensions.get().expect("it is there first");
        let relay = Relay(info.peer_addr);
        extensions.insert(relay);
    }
}

impl AsyncRead for Relayed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, room)
    }
}

impl AsyncWrite for Relayed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn streams_of_programs_describe_themselves() {
    let (server, client) = duplex(4096);
    let request = request(only(ready(Ok(Box::new(Relayed(server))))), ready(Ok(client))).await;
    assert_eq!(info(&request), &ConnectionInfo::new(None, Some(RELAYED)));
    assert_eq!(request.remote_addr(), Some(RELAYED));
    assert_eq!(request.extensions().get(), Some(&Relay(Some(RELAYED))));
}
