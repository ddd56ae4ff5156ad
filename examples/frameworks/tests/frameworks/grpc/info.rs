//! The connection of a request in a tonic service.
//!
//! Runs on: rxe

use std::io::IoSlice;
use std::sync::Mutex;

use common::stream::listening;
use common::{Device, adapter, within};
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rdma::io::ConnectionInfo;
use tokio_rdma::{RdmaConnector, StreamConfig};
use tonic::Request;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Endpoint, Server};

use super::probe::{Probe, Probed};
use crate::echo::{EchoClient, EchoServer, Note};

// IO-13: the extensions of a request give the provider and the connection.
#[tokio::test]
async fn a_request_gives_its_connection() {
    let adapter = adapter();
    let listener = listening(&adapter, &StreamConfig::default());
    let address = listener.local_addr().expect("bound");
    let (found, mut infos) = tokio::sync::mpsc::unbounded_channel();
    let accepted = std::sync::Arc::new(Mutex::new(Vec::new()));
    let log = accepted.clone();
    let incoming = listener.tonic().inspect(move |stream| {
        let stream = stream.as_ref().expect("accepted");
        log.lock().expect("no panic").push(stream.get_ref().connection().id());
    });
    let service =
        InterceptedService::new(EchoServer::new(Probed(Probe::new())), move |request: Request<()>| {
            let _ = found.send(request.extensions().get::<ConnectionInfo>().cloned());
            Ok(request)
        });
    let server = tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a URI");
    let connector = RdmaConnector::new().provider(Device::under_test().provider());
    let mut client = EchoClient::new(endpoint.connect_with_connector_lazy(connector.tonic()));
    for _ in 0..2 {
        within(client.say(Note::new("hello"))).await.expect("answered");
        let info = infos.recv().await.flatten().expect("it is in the extensions");
        let own = adapter.info();
        assert_eq!((info.local_addr, info.provider, &*info.adapter), (address, own.provider, &*own.name));
        assert_eq!(accepted.lock().expect("no panic")[..], [info.connection]);
    }
    server.abort();
}

// The stream of a connection forwards each kind of write (IO-13: it is the stream with its information beside).
#[tokio::test]
async fn tonic_connection_forwards_every_kind_of_write() {
    let adapter = adapter();
    let listener = listening(&adapter, &StreamConfig::default());
    let address = listener.local_addr().expect("bound");
    let connector = RdmaConnector::new().provider(Device::under_test().provider());
    let mut incoming = listener.tonic();
    let (connected, accepted) =
        within(async { tokio::join!(connector.connect(address), incoming.next()) }).await;
    let (mut peer, mut stream) = (connected.expect("connected"), accepted.expect("one").expect("accepted"));
    assert!(stream.is_write_vectored());
    within(stream.write_all(b"one ")).await.expect("written");
    let parts = [IoSlice::new(b"t"), IoSlice::new(b"wo")];
    assert_eq!(within(stream.write_vectored(&parts)).await.expect("written"), 3);
    within(stream.shutdown()).await.expect("shut down");
    let mut found = Vec::new();
    within(peer.read_to_end(&mut found)).await.expect("read");
    assert_eq!(found, b"one two");
}
