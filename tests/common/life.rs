//! Peers that send MPA frames byte by byte, wakers that log, and futures that are polled a fixed number of times.

use std::fmt;
use std::future::{Future, poll_fn};
use std::net::{Ipv4Addr, SocketAddr};
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams};

use super::{End, listening, patience, queue_pair, within};

/// A peer that is nothing but a socket: it shakes hands, and then does what the test says and no more.
pub struct Raw(pub TcpStream);

impl Raw {
    /// Key, revision 2 with the S flag, and the read limits: 16 each way (RFC 5044 section 7.1, RFC 6581 section 4.1).
    fn frame(key: &[u8; 16]) -> Vec<u8> {
        [&key[..], &[0x10, 0x02, 0, 4, 0, 16, 0, 16]].concat()
    }

    /// Reads one start-up frame.
    async fn read_frame(&mut self) {
        let mut head = [0; 20];
        self.0.read_exact(&mut head).await.expect("a start-up frame");
        let mut data = vec![0; usize::from(u16::from_be_bytes([head[18], head[19]]))];
        self.0.read_exact(&mut data).await.expect("its private data");
    }

    /// Sends a connection request.
    pub async fn ask(address: SocketAddr) -> Self {
        let mut raw = Self(TcpStream::connect(address).await.expect("somebody listens"));
        raw.0.write_all(&Self::frame(b"MPA ID Req Frame")).await.expect("sent");
        raw
    }

    /// Receives a connection request.
    pub async fn asked(listener: &TcpListener) -> Self {
        let mut raw = Self(listener.accept().await.expect("somebody connects").0);
        raw.read_frame().await;
        raw
    }

    /// Accepts it.
    pub async fn accept(&mut self) {
        self.0.write_all(&Self::frame(b"MPA ID Rep Frame")).await.expect("sent");
    }

    /// A listener of that kind.
    pub async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bound");
        let address = listener.local_addr().expect("bound");
        (listener, address)
    }

    /// Reads until the other end has closed, in order or not.
    pub async fn end(&mut self) -> std::io::Result<()> {
        let mut discarded = [0; 4096];
        while within(self.0.read(&mut discarded)).await? > 0 {}
        Ok(())
    }

    /// Closes with a reset.
    pub fn reset(self) {
        socket2::SockRef::from(&self.0).set_linger(Some(std::time::Duration::ZERO)).expect("set");
    }
}

/// A connection that this crate made and a hand-made peer accepted.
pub async fn connected_to_raw(adapter: &Adapter) -> (End, Raw) {
    let (listener, address) = Raw::listener().await;
    let queue_pair = queue_pair(adapter);
    let connector = adapter.connector();
    let (connection, raw) = within(async {
        tokio::join!(connector.connect_and_complete(&queue_pair, address, ConnectParams::default()), async {
            let mut raw = Raw::asked(&listener).await;
            raw.accept().await;
            raw
        })
    })
    .await;
    (End { queue_pair, connection: connection.expect("connected") }, raw)
}

/// A connection that a hand-made peer asked for and this crate accepted.
pub async fn accepted_from_raw(adapter: &Adapter) -> (End, Raw) {
    let (listener, address) = listening(adapter);
    let queue_pair = queue_pair(adapter);
    let (connection, raw) = within(async {
        tokio::join!(listener.accept_next(&queue_pair, AcceptParams::default()), async {
            let mut raw = Raw::ask(address).await;
            raw.read_frame().await;
            raw
        })
    })
    .await;
    (End { queue_pair, connection: connection.expect("accepted") }, raw)
}

/// Polls once, with this waker.
pub fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// Polls once, for nobody.
pub fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_with(future, Waker::noop())
}

/// Polls a future at most so many times, each time when it is woken, and drops it; `None` when that was too few.
pub async fn polled<F: Future>(future: F, most: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = most;
    within(poll_fn(move |cx| {
        let Some(rest) = left.checked_sub(1) else { return Poll::Ready(None) };
        left = rest;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }))
    .await
}

/// A log of the wakers that were woken, in order.
pub struct Log<T>(Arc<Page<T>>);

struct Page<T> {
    lines: Mutex<Vec<T>>,
    written: Notify,
}

struct Note<T> {
    page: Arc<Page<T>>,
    what: T,
}

impl<T: Copy + Send + Sync + 'static> Wake for Note<T> {
    fn wake(self: Arc<Self>) {
        self.page.lines.lock().expect("no panic").push(self.what);
        self.page.written.notify_one();
    }
}

impl<T> Default for Log<T> {
    fn default() -> Self {
        Self(Arc::new(Page { lines: Mutex::new(Vec::new()), written: Notify::new() }))
    }
}

impl<T: Copy + Send + Sync + fmt::Debug + 'static> Log<T> {
    /// A waker that writes `what`, each time it is woken.
    pub fn waker(&self, what: T) -> Waker {
        Waker::from(Arc::new(Note { page: self.0.clone(), what }))
    }

    pub fn lines(&self) -> Vec<T> {
        self.0.lines.lock().expect("no panic").clone()
    }

    /// The log, once it has so many lines.
    pub async fn at_least(&self, lines: usize) -> Vec<T> {
        within(async {
            while self.lines().len() < lines {
                self.0.written.notified().await;
            }
        })
        .await;
        self.lines()
    }
}

/// A waker that runs something, once.
pub struct Once<F>(Mutex<Option<F>>, Notify, AtomicUsize);

impl<F: FnOnce() + Send + 'static> Once<F> {
    pub fn new(run: F) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(run)), Notify::new(), AtomicUsize::new(0)))
    }

    /// Waits until it has run.
    pub async fn done(&self) {
        within(async {
            while self.2.load(Ordering::Acquire) == 0 {
                self.1.notified().await;
            }
        })
        .await;
    }
}

impl<F: FnOnce() + Send + 'static> Wake for Once<F> {
    fn wake(self: Arc<Self>) {
        let run = self.0.lock().expect("no panic").take();
        if let Some(run) = run {
            run();
            self.2.store(1, Ordering::Release);
            self.1.notify_one();
        }
    }
}

/// The waker of a task that panics when it is woken, without a message on stderr.
pub fn panicking_waker() -> Waker {
    Waker::from(Once::new(|| resume_unwind(Box::new("a waker"))))
}

/// Waits for something that nothing announces.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(patience(), waiting).await.is_ok(), "never: {what}");
}
