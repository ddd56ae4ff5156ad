//! tonic's own TLS over streams, and tonic over streams that are secured already.
//!
//! Runs on: rxe

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::authority::{Authority, Identity, NAME};
use crate::echo::{Answer, Echo, EchoClient, EchoServer, Note, Total, Wish};
use crate::service::Plain;
use common::stream::listening;
use common::*;
use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rdma::io::{ConnectionInfo, TlsListener};
use tokio_rdma::{RdmaConnector, StreamConfig};
use tonic::codegen::BoxStream;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::server::{Connected, TlsConnectInfo};
use tonic::transport::{self, Certificate, ClientTlsConfig, Endpoint, Server, ServerTlsConfig};
use tonic::{Code, Request, Response, Status, Streaming};

/// Tells who is calling: the address, and the certificate.
struct Who;

impl Echo for Who {
    async fn say(&self, request: Request<Note>) -> Answer<Note> {
        let address = request.remote_addr().ok_or(Status::internal("no address"))?;
        let certificates = request.peer_certs().ok_or(Status::internal("no certificate"))?;
        Ok(Response::new(Note::new(told(address, &certificates[0]))))
    }

    async fn count(&self, request: Request<Streaming<Note>>) -> Answer<Total> {
        Plain.count(request).await
    }

    async fn repeat(&self, request: Request<Wish>) -> Answer<BoxStream<Note>> {
        Plain.repeat(request).await
    }

    async fn chat(&self, request: Request<Streaming<Note>>) -> Answer<BoxStream<Note>> {
        Plain.chat(request).await
    }
}

fn told(address: SocketAddr, certificate: &[u8]) -> Vec<u8> {
    [address.ip().to_string().as_bytes(), certificate].concat()
}

/// Serves on a task that ends with the test.
fn serve<I>(mut server: Server, incoming: impl Stream<Item = io::Result<I>> + Send + 'static)
where
    I: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let router = server.add_service(EchoServer::new(Who));
    tokio::spawn(async move { router.serve_with_incoming(incoming).await });
}

/// A client that trusts this authority, and is somebody or nobody.
fn endpoint(authority: &Authority, identity: Option<&Identity>, address: SocketAddr) -> Endpoint {
    let mut tls =
        ClientTlsConfig::new().domain_name(NAME).ca_certificate(Certificate::from_pem(authority.pem()));
    if let Some(Identity { pem: [certificate, key], .. }) = identity {
        tls = tls.identity(transport::Identity::from_pem(certificate, key));
    }
    let endpoint = Endpoint::from_shared(format!("https://{address}")).expect("a URI");
    endpoint.tls_config(tls).expect("certificates")
}

/// Those who have a certificate of the authority are known by it, others are turned away.
async fn only_who_is_known_may_call(authority: &Authority, address: SocketAddr) {
    let connector = || RdmaConnector::new().provider(Device::under_test().provider()).http();
    let call = async |endpoint: Endpoint| {
        let channel = endpoint.connect_with_connector_lazy(connector().enforce_http(false));
        within(EchoClient::new(channel).say(Note::default())).await
    };
    let identity = authority.identity("client.example");
    let known = endpoint(authority, Some(&identity), address);
    let answer = call(known.clone()).await.expect("answered").into_inner();
    assert!(answer == Note::new(told(SocketAddr::new(v4(), 0), &identity.certificate)), "{answer:?}");

    let other = Authority::named("another").identity("client.example");
    let status = call(endpoint(authority, Some(&other), address)).await.expect_err("turned away");
    assert_ne!(status.code(), Code::Internal, "it did not get in: {status:?}");
    for _ in 0..20 {
        let status = call(endpoint(authority, None, address)).await.expect_err("turned away");
        let text = format!("{status:?}");
        // tonic passes the reason of its connection on, over TCP too, unless the call was cancelled with it.
        assert!(text.contains("CertificateRequired") || text.contains("Canceled"), "{text}");
    }

    // Without a word from the caller, `https` gets no stream.
    let error = within(known.connect_with_connector(connector())).await.expect_err("not asked for");
    assert!(format!("{error:?}").contains("Destination"), "{error:?}");
}

/// The extensions of a request.
#[derive(Clone, Default)]
struct Found(Arc<std::sync::Mutex<Vec<tonic::Extensions>>>);

impl tonic::service::Interceptor for Found {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        self.0.lock().expect("no panic").push(request.extensions().clone());
        Ok(request)
    }
}

// The extensions of a request over `RdmaListener::tonic` have its connection and the certificates of its peer (IO-13).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secured_request_gives_its_connection_and_certificates() {
    let authority = Authority::new();
    let [certificate, key] = authority.identity(NAME).pem;
    let tls = ServerTlsConfig::new()
        .identity(transport::Identity::from_pem(certificate, key))
        .client_ca_root(Certificate::from_pem(authority.pem()));
    let listener = listening(&adapter(), &StreamConfig::default());
    let address = listener.local_addr().expect("an address");
    let found = Found::default();
    let service = InterceptedService::new(EchoServer::new(Plain), found.clone());
    let server = Server::builder().tls_config(tls).expect("certificates").add_service(service);
    tokio::spawn(async move { server.serve_with_incoming(listener.tonic()).await });

    let identity = authority.identity("client.example");
    let connector = RdmaConnector::new().provider(Device::under_test().provider()).tonic();
    let channel = endpoint(&authority, Some(&identity), address).connect_with_connector_lazy(connector);
    within(EchoClient::new(channel).say(Note::default())).await.expect("answered");
    let extensions = found.0.lock().expect("no panic").pop().expect("a request");
    // The expressions of the guide.
    let peer = extensions.get::<ConnectionInfo>().map(|info| info.peer_addr.ip());
    assert_eq!(peer, Some(v4()));
    let certificates = extensions.get::<TlsConnectInfo<ConnectionInfo>>().and_then(|info| info.peer_certs());
    assert_eq!(certificates.expect("certificates")[..], [identity.certificate]);
}

// IO-14: tonic with rustls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tonic_secures_streams() {
    let authority = Authority::new();
    let [certificate, key] = authority.identity(NAME).pem;
    let tls = ServerTlsConfig::new()
        .identity(transport::Identity::from_pem(certificate, key))
        .client_ca_root(Certificate::from_pem(authority.pem()));
    let listener = listening(&adapter(), &StreamConfig::default());
    let address = listener.local_addr().expect("an address");
    serve(Server::builder().tls_config(tls).expect("certificates"), listener);
    only_who_is_known_may_call(&authority, address).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tonic_knows_the_peers_of_secured_streams() {
    let authority = Authority::new();
    let mut config = Arc::unwrap_or_clone(authority.server());
    // Clients of HTTP/2 ask for it.
    config.alpn_protocols = vec![b"h2".to_vec()];
    let listener = listening(&adapter(), &StreamConfig::default());
    let listener = TlsListener::new(listener, Arc::new(config));
    let address = listener.local_addr().expect("an address");
    serve(Server::builder(), listener);
    only_who_is_known_may_call(&authority, address).await;
}
