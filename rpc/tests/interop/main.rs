//! gRPC's interop cases, in messages over streams of every device, through TLS, too; and over tonic's own transport on TCP,
//! which shows that the cases are right.

mod cases;
mod client;
mod messages;
mod service;

use std::time::Duration;

use service::TestService;
use tonic::Code;
use tonic::service::Routes;

/// Far more than any case takes: only a case that hangs reaches it.
const LIMIT: Duration = Duration::from_secs(200);

/// Makes a test of each of these cases over the transport that a function returns.
macro_rules! tests {
    ($transport:path: $($case:ident $(($argument:expr))?),+ $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let case = async { $crate::cases::$case($transport().await $(, $argument)?).await };
                tokio::time::timeout($crate::LIMIT, case).await.expect("the case ends");
            }
        )+
    };
}

/// Makes a test of each case over the transport that a function returns. The codes are those of a deadline.
macro_rules! all_cases {
    ($transport:path, $deadline:expr) => {
        tests!(
            $transport: empty_unary,
            large_unary,
            client_compressed_unary,
            server_compressed_unary,
            client_streaming,
            server_streaming,
            ping_pong,
            empty_stream,
            custom_metadata,
            status_code_and_message,
            special_status_message,
            unimplemented_method,
            unimplemented_service,
            cancel_after_begin,
            cancel_after_first_response(&[Code::Cancelled]),
            timeout_on_sleeping_server($deadline),
            dropped_call,
            dropped_stream,
            status_details,
            binary_metadata,
            early_error,
            early_error_while_sending,
            half_close,
            slow_reader,
            thousand_calls,
            client_message_limit,
            server_message_limit,
        );
    };
}

mod plain;

fn routes() -> Routes {
    Routes::new(TestService::default())
}

mod http2 {
    use tokio::net::TcpListener;
    use tonic::transport::server::TcpIncoming;
    use tonic::transport::{Channel, Endpoint, Server};

    use super::*;

    all_cases!(channel, &[Code::DeadlineExceeded, Code::Cancelled]);

    /// Connects to a server of its own, which ends with the runtime of the test.
    async fn channel() -> Channel {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let server = Server::builder().add_routes(routes());
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        endpoint.connect().await.expect("a server that listens")
    }
}

mod tls {
    use std::sync::Arc;

    use tokio_rdma::io::TlsListener;
    use tokio_rdma::{RdmaListener, RdmaStream};
    use tokio_rdma_rpc::{Channel, Config, serve};
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
    use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

    use super::*;

    all_cases!(channel, &[Code::DeadlineExceeded]);

    /// The name that the server's certificate is for.
    const NAME: &str = "server.example";

    /// Connects to a server of its own, which ends with the runtime of the test.
    async fn channel() -> Channel {
        let own = rcgen::generate_simple_self_signed([NAME.to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::Pkcs8(own.key_pair.serialize_der().into());
        let server = ServerConfig::builder().with_no_client_auth();
        let server =
            server.with_single_cert(vec![own.cert.der().clone()], key).expect("a key of the certificate");
        let mut roots = RootCertStore::empty();
        roots.add(own.cert.der().clone()).expect("a certificate");
        let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();

        let listener = RdmaListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(serve(TlsListener::new(listener, Arc::new(server)), routes()));
        let connector = TlsConnector::from(Arc::new(client));
        Channel::with_connector(NAME, true, Config::default(), move || {
            let connector = connector.clone();
            async move {
                let name = ServerName::try_from(NAME).expect("a name");
                connector.connect(name, RdmaStream::connect(address).await?).await
            }
        })
    }
}
