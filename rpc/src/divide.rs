//! Two protocols behind one listener.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::io::ReadBuf;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rdma::RdmaStream;

use crate::connected::Connected;
use crate::wire::MAGIC;

/// The most peers that wait to be sorted, and how long each has for its first byte and for its server.
const UNSORTED: usize = 256;
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause behind an accept that has failed.
const PAUSE: Duration = Duration::from_millis(10);

/// Divides the connections of a listener by their first byte: those that speak in messages, for [`serve`](crate::serve), and all
/// others, for tonic's own server, hyper or axum. So the clients of a service move one by one.
///
/// The listener is an `RdmaListener` or, with the feature `rustls`, a `tokio_rdma::io::TlsListener`, or any other stream of such
/// streams. With TLS the first byte is that of the protocol inside, whatever names of protocols (ALPN) both ends have: those that
/// other clients ask for, such as `h2`, belong into the configuration of rustls.
///
/// Nothing is read: each server sees its connections from their first byte on. A peer is dropped that says nothing for 10
/// seconds, or whose server does not take it within that time; and earlier, if 256 others wait: then the oldest of the
/// address that has most (of IPv6, the network of 64 bits), of those that have said nothing if there are such. The task that
/// divides ends when both results are dropped.
///
/// ```no_run
/// # use tokio_rdma_rpc::Divided;
/// # async fn serve_http2(_: tonic::service::Routes, _: Divided) -> std::io::Result<()> { Ok(()) }
/// # async fn example(routes: tonic::service::Routes) -> std::io::Result<()> {
/// let listener = tokio_rdma::RdmaListener::bind("0.0.0.0:50051").await?;
/// let (in_messages, others) = tokio_rdma_rpc::divide(listener);
/// // `serve_http2` is tonic's `serve_with_incoming`, as before.
/// tokio::try_join!(tokio_rdma_rpc::serve(in_messages, routes.clone()), serve_http2(routes, others))?;
/// # Ok(())
/// # }
/// ```
///
/// # Panics
/// Outside of a tokio runtime.
pub fn divide<L, S, E>(listener: L) -> (Divided<S>, Divided<S>)
where
    L: Stream<Item = Result<S, E>> + Send + 'static,
    S: PeekFirst + Send + 'static,
    E: fmt::Display + Send + 'static,
{
    let ((messages, in_messages), (others, in_others)) = (mpsc::channel(1), mpsc::channel(1));
    tokio::spawn(run(listener, messages, others));
    (Divided { streams: in_messages }, Divided { streams: in_others })
}

/// A stream that [`divide`] takes: one of which the first byte can be looked at. One that wraps another passes the call on.
pub trait PeekFirst: Connected {
    /// Returns the first byte of what the peer has sent, which stays to be read, or `None` at the end of file.
    ///
    /// # Errors
    /// Those of a read.
    fn poll_peek_first(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<u8>>>;
}

impl PeekFirst for RdmaStream {
    fn poll_peek_first(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<u8>>> {
        let mut first = [0];
        let mut first = ReadBuf::new(&mut first);
        self.poll_peek(cx, &mut first).map_ok(|_| first.filled().first().copied())
    }
}

/// The streams of `tokio_rdma::io::TlsListener`, and TLS over others.
#[cfg(feature = "rustls")]
impl<T> PeekFirst for tokio_rustls::server::TlsStream<T>
where
    T: Connected + tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static,
{
    fn poll_peek_first(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<u8>>> {
        tokio::io::AsyncBufRead::poll_fill_buf(Pin::new(self), cx).map_ok(|bytes| bytes.first().copied())
    }
}

async fn run<L, S, E>(listener: L, messages: mpsc::Sender<S>, others: mpsc::Sender<S>)
where
    L: Stream<Item = Result<S, E>>,
    S: PeekFirst + Send + 'static,
    E: fmt::Display,
{
    let mut listener = Box::pin(listener);
    let (mut tasks, mut unsorted) = (JoinSet::new(), Vec::new());
    let unused = async { tokio::join!(messages.closed(), others.closed()) };
    let mut unused = std::pin::pin!(unused);
    loop {
        tokio::select! {
            _ = &mut unused => return,
            Some(_) = tasks.join_next() => {
                unsorted.retain(|one: &Unsorted| !one.task.is_finished());
            }
            accepted = listener.next() => match accepted {
                None => break,
                Some(Ok(stream)) => {
                    if unsorted.len() >= UNSORTED {
                        drop_oldest(&mut unsorted);
                    }
                    // Those without an address are one peer.
                    let peer = stream.connection_info().peer_addr.map(|peer| network(peer.ip()));
                    let has_spoken = Arc::new(AtomicBool::new(false));
                    let sorted = sort(stream, messages.clone(), others.clone(), has_spoken.clone());
                    unsorted.push(Unsorted { network: peer, has_spoken, task: tasks.spawn(sorted) });
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, "no connection accepted");
                    sleep(PAUSE).await;
                }
            },
        }
    }
    while tasks.join_next().await.is_some() {}
}

/// A stream that no server has yet.
struct Unsorted {
    network: Option<IpAddr>,
    /// It waits for its server.
    has_spoken: Arc<AtomicBool>,
    task: AbortHandle,
}

/// Returns what the owner of an address has at least: of IPv6, 2^64 addresses.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
        address => address,
    }
}

/// Drops the oldest peer of the network that has most, so that many from one are no reason to drop another. Those that have said
/// nothing go first.
fn drop_oldest(unsorted: &mut Vec<Unsorted>) {
    let mut counts = HashMap::new();
    for one in &*unsorted {
        *counts.entry(one.network).or_insert(0) += 1;
    }
    let order = |one: &Unsorted| (one.has_spoken.load(Ordering::Relaxed), Reverse(counts.get(&one.network)));
    // The first of several with the same key, which is the oldest.
    let oldest = unsorted.iter().enumerate().min_by_key(|(_, one)| order(one));
    if let Some((place, _)) = oldest {
        unsorted.remove(place).task.abort();
    }
}

/// Hands a stream to the server that its first byte is for.
async fn sort<S: PeekFirst>(
    mut stream: S,
    messages: mpsc::Sender<S>,
    others: mpsc::Sender<S>,
    has_spoken: Arc<AtomicBool>,
) {
    let sorted = async {
        if let Ok(Some(first)) = poll_fn(|cx| stream.poll_peek_first(cx)).await {
            has_spoken.store(true, Ordering::Relaxed);
            // No method of HTTP begins with a small letter.
            let server = if first == MAGIC[0] { messages } else { others };
            // It may have ended.
            let _ = server.send(stream).await;
        }
    };
    // Also for a server that takes no connections: it must not keep the other from its own.
    let _ = timeout(PATIENCE, sorted).await;
}

/// The connections of one of the two servers behind a listener, from [`divide`].
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct Divided<S = RdmaStream> {
    streams: mpsc::Receiver<S>,
}

impl<S> Stream for Divided<S> {
    type Item = io::Result<S>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.streams.poll_recv(cx).map(|stream| stream.map(Ok))
    }
}
