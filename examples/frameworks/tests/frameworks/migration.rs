//! The steps of the guide's page "HTTP/2 and messages behind one port".

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::echo::{Answer, EchoClient, EchoServer, Note};
use crate::service::Plain;
use common::device::nobody;
use common::within;
use futures::TryStreamExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rdma::{RdmaConnector, RdmaListener};
use tokio_rdma_rpc::{Server as MessageServer, divide, serve};
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};

type Old = EchoClient<Channel>;
type New = EchoClient<tokio_rdma_rpc::Channel>;

fn routes() -> Routes {
    Routes::new(EchoServer::new(Plain))
}

fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}")).expect("a URI")
}

fn over_rdma(address: SocketAddr) -> Old {
    EchoClient::new(endpoint(address).connect_with_connector_lazy(RdmaConnector::new().tonic()))
}

fn in_messages(address: SocketAddr) -> New {
    EchoClient::new(tokio_rdma_rpc::Channel::connect_lazy(address.to_string()))
}

fn is_echo(answer: Answer<Note>, text: &'static str) {
    assert_eq!(answer.expect("answered").into_inner(), Note::new(text));
}

/// The server of the second step: HTTP/2 over TCP, and both protocols behind one RDMA listener.
struct Both {
    tcp: SocketAddr,
    /// The connections over RDMA that came with HTTP/2.
    others: Arc<AtomicUsize>,
    stop: CancellationToken,
    servers: JoinSet<()>,
}

impl Both {
    async fn start(rdma: SocketAddr) -> Self {
        let (stop, others) = (CancellationToken::new(), Arc::<AtomicUsize>::default());
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bound");
        let address = tcp.local_addr().expect("bound");
        let (messages, http2) = divide(RdmaListener::bind(rdma).await.expect("bound"));
        let seen = others.clone();
        let http2 = http2.inspect_ok(move |_| _ = seen.fetch_add(1, Ordering::Relaxed));
        let mut servers = JoinSet::new();
        let signal = stop.clone().cancelled_owned();
        let server = Server::builder().add_routes(routes());
        servers.spawn(async move {
            server.serve_with_incoming_shutdown(TcpIncoming::from(tcp), signal).await.expect("served");
        });
        let signal = stop.clone().cancelled_owned();
        let server = Server::builder().add_routes(routes());
        servers.spawn(async move {
            server.serve_with_incoming_shutdown(http2, signal).await.expect("served");
        });
        let signal = stop.clone().cancelled_owned();
        servers.spawn(async move {
            MessageServer::new().serve_with_shutdown(messages, routes(), signal).await.expect("served");
        });
        Self { tcp: address, others, stop, servers }
    }

    fn others(&self) -> usize {
        self.others.load(Ordering::Relaxed)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_move_one_by_one() {
    let rdma = nobody(Ipv4Addr::LOCALHOST.into());
    let both = within(Both::start(rdma)).await;
    let mut over_tcp = EchoClient::new(endpoint(both.tcp).connect_lazy());
    let mut over_rdma = over_rdma(rdma);
    let mut in_messages = in_messages(rdma);

    // All of them are served at the same time. The server sees who speaks HTTP/2 over RDMA.
    for _ in 0..2 {
        is_echo(within(over_tcp.say(Note::new("over TCP"))).await, "over TCP");
        is_echo(within(in_messages.say(Note::new("in messages"))).await, "in messages");
    }
    assert_eq!(both.others(), 0);
    for _ in 0..2 {
        is_echo(within(over_rdma.say(Note::new("over RDMA"))).await, "over RDMA");
    }
    assert_eq!(both.others(), 1);

    // One signal ends all servers, and with them the listener.
    let Both { stop, mut servers, .. } = both;
    stop.cancel();
    while let Some(ended) = within(servers.join_next()).await {
        ended.expect("no panic");
    }

    // Without HTTP/2: the client in messages finds the server by itself, the other does not.
    let listener = within(RdmaListener::bind(rdma)).await.expect("the port is free");
    let server = tokio::spawn(serve(listener, routes()));
    let answer = within(async {
        loop {
            match in_messages.say(Note::new("again")).await {
                Err(status) if status.code() == Code::Unavailable => sleep(Duration::from_millis(5)).await,
                outcome => return outcome,
            }
        }
    });
    is_echo(answer.await, "again");
    within(over_rdma.say(Note::default())).await.expect_err("HTTP/2");
    is_echo(within(in_messages.say(Note::new("and now?"))).await, "and now?");
    server.abort();
}

// A client that moves before its server gets an error that says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_moves_first_is_told() {
    let listener = RdmaListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bound");
    let address = listener.local_addr().expect("bound");
    let server = tokio::spawn(Server::builder().add_routes(routes()).serve_with_incoming(listener));
    let status = within(in_messages(address).say(Note::default())).await.expect_err("HTTP/2");
    assert_eq!(status.code(), Code::Internal, "{status:?}");
    is_echo(within(over_rdma(address).say(Note::new("as before"))).await, "as before");
    server.abort();
}

// What runs over TCP does not reach an RDMA listener, whatever it speaks, nor the other way round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tcp_and_rdma_do_not_reach_each_other() {
    let rdma = nobody(Ipv4Addr::LOCALHOST.into());
    let both = within(Both::start(rdma)).await;
    let mut over_tcp = EchoClient::new(endpoint(rdma).connect_lazy());
    within(over_tcp.say(Note::default())).await.expect_err("a listener of RDMA");
    let status = within(over_rdma(both.tcp).say(Note::default())).await.expect_err("a listener of TCP");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    let status = within(in_messages(both.tcp).say(Note::default())).await.expect_err("a listener of TCP");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(both.others(), 0);
}
