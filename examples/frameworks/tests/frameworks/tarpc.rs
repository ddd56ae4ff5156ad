//! tarpc, by its own `serde_transport` over a stream.
//!
//! Runs on: rxe

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::frames::codec;
use common::stream::listening;
use common::*;
use futures::StreamExt;
use futures::future::join_all;
use tarpc::client::{self, RpcError};
use tarpc::context::{self, Context};
use tarpc::serde::{Deserialize, Serialize};
use tarpc::serde_transport::{self, Transport};
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Json;
use tarpc::tokio_util::codec::Framed;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio_rdma::{Adapter, RdmaStream, StreamConfig};

/// The longest message where it does not matter.
const LONGEST: usize = 1 << 20;

#[tarpc::service]
trait Desk {
    async fn double(number: u64) -> u64;
    async fn repeat(text: String, times: usize) -> String;
    /// Returns when so many callers have met here.
    async fn meet(callers: u32) -> u32;
    /// Never answers.
    async fn sleep();
}

#[derive(Clone)]
struct Clerk {
    meeting: Arc<Semaphore>,
    /// How many callers have ever slept.
    begun: Arc<AtomicUsize>,
    /// How many callers sleep, and a word whenever that changes.
    sleepers: Arc<AtomicUsize>,
    changed: Arc<Notify>,
}

/// Counts who sleeps for as long as it does.
struct Sleeper(Clerk);

impl Sleeper {
    fn new(clerk: Clerk) -> Self {
        clerk.begun.fetch_add(1, Ordering::SeqCst);
        clerk.sleepers.fetch_add(1, Ordering::SeqCst);
        clerk.changed.notify_one();
        Self(clerk)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.notify_one();
    }
}

impl Clerk {
    fn new() -> Self {
        Self {
            meeting: Arc::new(Semaphore::new(0)),
            begun: Arc::default(),
            sleepers: Arc::default(),
            changed: Arc::default(),
        }
    }

    /// Waits until so many sleep.
    async fn asleep(&self, count: usize) {
        within(async {
            while self.sleepers.load(Ordering::SeqCst) != count {
                self.changed.notified().await;
            }
        })
        .await;
    }
}

impl Desk for Clerk {
    async fn double(self, _: Context, number: u64) -> u64 {
        number * 2
    }

    async fn repeat(self, _: Context, text: String, times: usize) -> String {
        text.repeat(times)
    }

    async fn meet(self, _: Context, callers: u32) -> u32 {
        self.meeting.add_permits(1);
        let _all = self.meeting.acquire_many(callers).await.expect("open");
        callers
    }

    async fn sleep(self, _: Context) {
        let _sleeper = Sleeper::new(self);
        std::future::pending().await
    }
}

/// A server for one client at a time, the clerk that answers, and where it is.
fn serve(adapter: &Adapter, longest: usize) -> (JoinHandle<()>, Clerk, SocketAddr) {
    let listener = listening(adapter, &StreamConfig::default());
    let address = listener.local_addr().expect("an address");
    let clerk = Clerk::new();
    let serving = clerk.clone();
    let server = tokio::spawn(async move {
        while let Ok((stream, _peer)) = listener.accept().await {
            let channel = BaseChannel::with_defaults(transport(stream, longest));
            let answers = channel.execute(serving.clone().serve());
            answers.for_each_concurrent(None, |answer| answer).await;
        }
    });
    (server, clerk, address)
}

async fn call(adapter: &Adapter, address: SocketAddr, longest: usize) -> DeskClient {
    let config = StreamConfig::default();
    let stream = within(RdmaStream::connect_on(adapter, address, &config)).await.expect("connected");
    DeskClient::new(client::Config::default(), transport(stream, longest)).spawn()
}

/// A transport with this limit of a message.
fn transport<Item, SinkItem>(
    stream: RdmaStream,
    longest: usize,
) -> Transport<RdmaStream, Item, SinkItem, Json<Item, SinkItem>>
where
    Item: for<'de> Deserialize<'de>,
    SinkItem: Serialize,
{
    serde_transport::new(Framed::new(stream, codec(longest)), Json::default())
}

/// More time than anything here takes.
fn patient() -> Context {
    let mut context = context::current();
    context.deadline = Instant::now() + patience();
    context
}

// IO-14: tarpc.
#[tokio::test]
async fn calls_are_answered() {
    let adapter = adapter();
    let (_server, _clerk, address) = serve(&adapter, LONGEST);
    let client = call(&adapter, address, LONGEST).await;
    assert_eq!(within(client.double(patient(), 21)).await.expect("answered"), 42);
    // One after the other, far more than there are credits.
    for number in 0..often(1000, 100) as u64 {
        assert_eq!(within(client.double(patient(), number)).await.expect("answered"), 2 * number);
    }
    let long = within(client.repeat(patient(), "ab".into(), 20_000)).await.expect("answered");
    assert_eq!(long, "ab".repeat(20_000));
}

#[tokio::test]
async fn many_calls_are_under_way_at_once() {
    const CALLERS: u32 = 64;
    let adapter = adapter();
    let (_server, _clerk, address) = serve(&adapter, LONGEST);
    let client = call(&adapter, address, LONGEST).await;
    // None is answered before all have been asked.
    let meetings = (0..CALLERS).map(|_| client.meet(patient(), CALLERS));
    for outcome in within(join_all(meetings)).await {
        assert_eq!(outcome.expect("answered"), CALLERS);
    }
}

#[tokio::test]
async fn expired_or_dropped_call_is_cancelled_at_server() {
    let adapter = adapter();
    let (_server, clerk, address) = serve(&adapter, LONGEST);
    let client = call(&adapter, address, LONGEST).await;
    // A deadline may pass before the server has heard of the call, if that takes long: then the next is longer.
    let mut limit = Duration::from_millis(50);
    while clerk.begun.load(Ordering::SeqCst) == 0 {
        let mut hasty = patient();
        hasty.deadline = Instant::now() + limit;
        let error = within(client.sleep(hasty)).await.expect_err("never answered");
        assert!(matches!(error, RpcError::DeadlineExceeded), "{error}");
        limit *= 2;
    }
    clerk.asleep(0).await;
    // A call that is dropped is cancelled at the server, too.
    let sleeping = tokio::spawn({
        let client = client.clone();
        async move { client.sleep(patient()).await }
    });
    clerk.asleep(1).await;
    sleeping.abort();
    clerk.asleep(0).await;
    assert_eq!(within(client.double(patient(), 1)).await.expect("answered"), 2);
}

#[tokio::test]
async fn oversized_call_fails_without_ending_connection() {
    let adapter = adapter();
    let (_server, _clerk, address) = serve(&adapter, LONGEST);
    let client = call(&adapter, address, 2000).await;
    let error = within(client.repeat(patient(), "x".repeat(3000), 1)).await.expect_err("too long");
    assert!(matches!(error, RpcError::Send(_)), "{error}");
    assert_eq!(within(client.double(patient(), 2)).await.expect("answered"), 4);
}

#[tokio::test]
async fn call_beyond_server_limit_ends_the_connection() {
    let adapter = adapter();
    let (_server, _clerk, address) = serve(&adapter, 2000);
    let client = call(&adapter, address, LONGEST).await;
    let error = within(client.repeat(patient(), "x".repeat(3000), 1)).await.expect_err("too long");
    assert!(matches!(error, RpcError::Channel(_) | RpcError::Shutdown), "{error}");
    // The server goes on, with the next.
    let client = call(&adapter, address, LONGEST).await;
    assert_eq!(within(client.double(patient(), 2)).await.expect("answered"), 4);
}

#[tokio::test]
async fn oversized_response_ends_the_connection() {
    let adapter = adapter();
    let (_server, clerk, address) = serve(&adapter, LONGEST);
    let client = call(&adapter, address, 2000).await;
    // The client is gone without a cancel: the server, which only reads the end, keeps this call until its deadline.
    let mut context = patient();
    context.deadline = Instant::now() + Duration::from_secs(5);
    let sleeping = tokio::spawn({
        let client = client.clone();
        async move { client.sleep(context).await }
    });
    clerk.asleep(1).await;
    let error = within(client.repeat(patient(), "x".into(), 3000)).await.expect_err("too long");
    assert!(matches!(error, RpcError::Channel(_) | RpcError::Shutdown), "{error}");
    within(sleeping).await.expect("no panic").expect_err("it goes with the connection");
    clerk.asleep(0).await;
    // For a client that takes it there is an answer.
    let client = call(&adapter, address, LONGEST).await;
    let answer = within(client.repeat(patient(), "x".into(), 3000)).await.expect("answered");
    assert_eq!(answer, "x".repeat(3000));
}

#[tokio::test]
async fn a_server_that_goes_away_ends_the_calls() {
    let adapter = adapter();
    let (server, clerk, address) = serve(&adapter, LONGEST);
    let client = call(&adapter, address, LONGEST).await;
    let sleeping = tokio::spawn({
        let client = client.clone();
        async move { client.sleep(patient()).await }
    });
    clerk.asleep(1).await;
    server.abort();
    let error = within(sleeping).await.expect("no panic").expect_err("nobody is there to answer");
    assert!(matches!(error, RpcError::Channel(_) | RpcError::Shutdown), "{error}");
    clerk.asleep(0).await;
    let error = within(client.double(patient(), 1)).await.expect_err("nor this");
    assert!(matches!(error, RpcError::Shutdown | RpcError::Channel(_)), "{error}");
}

#[tokio::test]
async fn a_client_that_goes_away_ends_its_calls() {
    let adapter = adapter();
    let (_server, clerk, address) = serve(&adapter, LONGEST);
    let client = call(&adapter, address, LONGEST).await;
    let sleeping = tokio::spawn({
        let client = client.clone();
        async move { client.sleep(patient()).await }
    });
    clerk.asleep(1).await;
    sleeping.abort();
    drop(client);
    clerk.asleep(0).await;
    // The server goes on, with the next.
    let client = call(&adapter, address, LONGEST).await;
    assert_eq!(within(client.double(patient(), 3)).await.expect("answered"), 6);
}
