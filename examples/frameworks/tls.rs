//! Mutual TLS over RDMA.
//!
//! For networks that others use too: RDMA neither authenticates nor encrypts.
//!
//! A certificate authority in this process signs a certificate for the server and one for a client. The client with its
//! certificate is accepted, the one without is rejected.
//!
//! ```sh
//! cargo run --release -p frameworks --example tls
//! ```
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

#[path = "../report/mod.rs"]
mod report;

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::io::TlsListener;
use tokio_rdma::{RdmaListener, RdmaStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tracing_subscriber::EnvFilter;

/// The name that the server's certificate is for. It need not be the one that the client connects to.
const NAME: &str = "server.example";

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

#[tokio::main]
async fn main() -> Result<(), report::Report> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    let (roots, [server, client]) = certificates([NAME, "client.example"])?;

    let verifier = WebPkiClientVerifier::builder(roots.clone()).build()?;
    let config =
        ServerConfig::builder().with_client_cert_verifier(verifier).with_single_cert(server.0, server.1)?;
    let listener = RdmaListener::bind("127.0.0.1:0").await?;
    let mut listener = TlsListener::new(listener, Arc::new(config));
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut stream, peer)) = listener.accept().await {
            let certificates = stream.get_ref().1.peer_certificates().map_or(0, <[_]>::len);
            println!("server: {peer} has shown {certificates} certificate");
            tokio::spawn(async move {
                let mut text = String::new();
                stream.read_to_string(&mut text).await?;
                stream.write_all(text.to_uppercase().as_bytes()).await?;
                stream.shutdown().await
            });
        }
    });

    let config = ClientConfig::builder().with_root_certificates(roots.clone());
    let nobody = config.with_no_client_auth();
    match talk(address, nobody.into()).await {
        Ok(answer) => println!("client: without a certificate: {answer}"),
        Err(error) => println!("client: without a certificate: {error}"),
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    let somebody = config.with_client_auth_cert(client.0, client.1)?;
    println!("client: with a certificate: {}", talk(address, somebody.into()).await?);
    Ok(())
}

/// Says something, and returns the answer.
async fn talk(address: SocketAddr, config: Arc<ClientConfig>) -> io::Result<String> {
    let stream = RdmaStream::connect(address).await?;
    let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
    let mut stream: TlsStream<RdmaStream> = TlsConnector::from(config).connect(name, stream).await?;
    let said = async {
        stream.write_all(b"hello, over TLS").await?;
        // TLS tells the server that this is all, and so does the stream beneath.
        stream.shutdown().await
    };
    let said = said.await;
    // A client that is turned away (in TLS 1.3 after its own part of the handshake) is told why when it reads.
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    said.map(|()| answer)
}

/// A certificate for each name, and the authority that has signed them.
fn certificates<const N: usize>(
    names: [&str; N],
) -> Result<(Arc<RootCertStore>, [Identity; N]), Box<dyn Error>> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "the authority of this example");
    let authority = params.self_signed(&key)?;
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone())?;
    let mut identities = Vec::new();
    for name in names {
        let own = KeyPair::generate()?;
        let certificate = CertificateParams::new([name.to_owned()])?.signed_by(&own, &authority, &key)?;
        let key = PrivateKeyDer::Pkcs8(own.serialize_der().into());
        identities.push((vec![certificate.der().clone()], key));
    }
    let identities = identities.try_into().map_err(|_| "as many as there are names")?;
    Ok((Arc::new(roots), identities))
}
