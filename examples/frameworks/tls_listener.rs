//! TLS by the crate tls-listener, which takes any source of connections.
//!
//! `TlsListener` of this crate does the same, with a limit for half-open peers; this is for a program that has tls-listener
//! already.
//!
//! ```sh
//! cargo run --release -p frameworks --example tls_listener
//! ```
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

#[path = "../report/mod.rs"]
mod report;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tls_listener::accept_generator;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::{RdmaListener, RdmaStream};
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tracing_subscriber::EnvFilter;

/// The name that the server's certificate is for.
const NAME: &str = "server.example";

#[tokio::main]
async fn main() -> Result<(), report::Report> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    let own = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let mut roots = RootCertStore::empty();
    roots.add(own.cert.der().clone())?;
    let key = PrivateKeyDer::Pkcs8(own.key_pair.serialize_der().into());
    let config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(vec![own.cert.der().clone()], key)?;

    let listener = Arc::new(RdmaListener::bind("127.0.0.1:0").await?);
    let address = listener.local_addr()?;
    let connections = accept_generator(move || {
        let listener = listener.clone();
        async move { listener.accept().await }
    });
    let mut tls = tls_listener::builder(TlsAcceptor::from(Arc::new(config)));
    let mut secured = Box::pin(tls.handshake_timeout(Duration::from_secs(10)).listen(connections));
    let serve = async {
        let (mut stream, peer) = secured.next().await.ok_or("it does not end")??;
        println!("server: {peer} is secured");
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        stream.write_all(text.to_uppercase().as_bytes()).await?;
        Ok::<_, report::Report>(stream.shutdown().await?)
    };
    let ask = async {
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let stream = RdmaStream::connect(address).await?;
        let connector = TlsConnector::from(Arc::new(config));
        let mut stream = connector.connect(ServerName::try_from(NAME)?, stream).await?;
        stream.write_all(b"hello, over TLS").await?;
        stream.shutdown().await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        println!("client: {answer}");
        Ok::<_, report::Report>(())
    };
    let (served, asked) = tokio::join!(serve, ask);
    served?;
    asked
}
