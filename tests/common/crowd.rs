//! Many peers that connect, say what they are told to, and then nothing more. Each that is thrown out comes back at once.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use tokio_rdma::Adapter;

use super::process::one_test;
use super::raw::{REQUEST_KEY, Start, fpdu, write};
use super::{listening, within};

/// How many of a crowd connect at the same time when it gathers.
const AT_ONCE: usize = 100;

/// A crowd, on a thread of its own. It is gone when this is dropped.
pub struct Crowd {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    connected: watch::Receiver<usize>,
    thrown_out: watch::Receiver<usize>,
}

impl Crowd {
    /// `size` peers of a listener at this address, who say these words. They are all connected by TCP.
    pub async fn new(address: SocketAddr, size: usize, words: Vec<u8>) -> Self {
        let words = Arc::new(words);
        Self::with(size, move |connected| visit(address, words.clone(), connected)).await
    }

    /// `size` peers, each of which comes back as soon as its visit is over. A visit reports that it has begun. All of them
    /// have done so once.
    pub async fn with<V, F>(size: usize, visit: V) -> Self
    where
        V: Fn(Connected) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        let (count, connected) = watch::channel(0);
        let (out, thrown_out) = watch::channel(0);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let mut peers = JoinSet::new();
                let (count, out, visit) = (Connected(Arc::new(count)), Arc::new(out), Arc::new(visit));
                let fill = async {
                    for number in 0..size {
                        // A kernel whose queue is full drops the others, and they try again after ever longer pauses.
                        let mut there = count.0.subscribe();
                        let _ = there.wait_for(|there| there + AT_ONCE > number).await;
                        let (count, out, visit) = (count.clone(), out.clone(), visit.clone());
                        peers.spawn(async move {
                            loop {
                                visit(count.clone()).await;
                                out.send_modify(|out| *out += 1);
                                tokio::task::yield_now().await;
                            }
                        });
                    }
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    _ = stopped => {}
                    () = fill => {}
                }
            });
        });
        let mut crowd = Self { stop: Some(stop), thread: Some(thread), connected, thrown_out };
        within(crowd.connected.wait_for(|count| *count >= size)).await.expect("they are there");
        crowd
    }

    /// Waits until so many more were thrown out.
    pub async fn renewed(&mut self, more: usize) {
        let before = *self.thrown_out.borrow();
        within(self.thrown_out.wait_for(|now| *now >= before + more)).await.expect("they are there");
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        drop(self.stop.take());
        let outcome = self.thread.take().map(JoinHandle::join);
        assert!(matches!(outcome, Some(Ok(()))) || std::thread::panicking(), "the crowd has panicked");
    }
}

/// The address of the listener, and what each peer sends, for the process of a crowd.
const LISTENER: &str = "TOKIO_RDMA_TEST_LISTENER";
const WORDS: &str = "TOKIO_RDMA_TEST_WORDS";

/// A crowd in a process of its own, which has its descriptors. It is gone when this is dropped.
pub struct CrowdProcess {
    process: Child,
    lines: mpsc::UnboundedReceiver<()>,
}

impl CrowdProcess {
    /// Runs this test of this program, which calls [`be_crowd`].
    pub fn new(module: &str, function: &str, address: SocketAddr, words: &[u8]) -> Self {
        let words: Vec<_> = words.iter().map(u8::to_string).collect();
        let mut command = one_test(module, function);
        command.env(LISTENER, address.to_string()).env(WORDS, words.join(" "));
        let mut process = command.stdout(Stdio::piped()).spawn().expect("started");
        let stdout = BufReader::new(process.stdout.take().expect("piped"));
        let (sender, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            let lines = stdout.lines().map_while(Result::ok).filter(|line| line == "renewed");
            lines.for_each(|_| _ = sender.send(()));
        });
        Self { process, lines }
    }

    /// Waits until all peers have connected, the first time, and then until a hundred were thrown out.
    pub async fn renewed(&mut self) {
        within(self.lines.recv()).await.expect("it goes on");
    }
}

impl Drop for CrowdProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Is the crowd of a [`CrowdProcess`] until the process is killed. Does nothing in any other process.
///
/// # Panics
/// When there are too few descriptors, or the other process has ended.
pub fn be_crowd<V, F>(size: usize, visit: V)
where
    V: Fn(SocketAddr, Arc<Vec<u8>>, Connected) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let Ok(address) = std::env::var(LISTENER) else { return };
    let address = address.parse().expect("an address");
    let words = std::env::var(WORDS).expect("set");
    let words: Result<Vec<u8>, _> = words.split_whitespace().map(str::parse).collect();
    let words = Arc::new(words.expect("numbers"));
    assert!(raise_descriptors() > size + 100, "too few descriptors for this test");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut crowd = Crowd::with(size, move |connected| visit(address, words.clone(), connected)).await;
        let mut stdout = std::io::stdout();
        loop {
            writeln!(stdout, "\nrenewed").expect("somebody reads");
            crowd.renewed(100).await;
        }
    });
}

/// By this a peer reports that it is connected.
#[derive(Clone)]
pub struct Connected(Arc<watch::Sender<usize>>);

impl Connected {
    pub fn report(&self) {
        self.0.send_modify(|count| *count += 1);
    }
}

/// A visit of a peer that says these words. It stays until it is thrown out.
pub async fn visit(address: SocketAddr, words: Arc<Vec<u8>>, connected: Connected) {
    // Out of ports, perhaps, or out of room in the queue of the kernel.
    let Ok(mut stream) = TcpStream::connect(address).await else { return };
    connected.report();
    let _ = stream.write_all(&words).await;
    let mut heard = [0; 1024];
    while matches!(stream.read(&mut heard).await, Ok(1..)) {}
    // A reset leaves no TIME_WAIT behind, which would use up the ports.
    let _ = stream.set_zero_linger();
}

/// A visit of a peer that completes its connection, with this private data, and says nothing over it. Counts the connections
/// that are complete.
pub async fn connect_and_be_silent(
    address: SocketAddr,
    private_data: &[u8],
    connected: Connected,
    complete: &AtomicUsize,
) {
    let Ok(mut stream) = TcpStream::connect(address).await else { return };
    connected.report();
    let connect = async {
        stream.write_all(&request(private_data)).await?;
        let mut reply = [0; 20];
        stream.read_exact(&mut reply).await?;
        let mut rest = vec![0; usize::from(u16::from_be_bytes([reply[18], reply[19]]))];
        stream.read_exact(&mut rest).await?;
        // The empty Write of the peer-to-peer mode.
        stream.write_all(&fpdu(&write(0, 0, &[]), true)).await
    };
    if connect.await.is_ok() {
        complete.fetch_add(1, Ordering::Relaxed);
        while matches!(stream.read(&mut [0; 1024]).await, Ok(1..)) {}
    }
    // As above.
    let _ = stream.set_zero_linger();
}

/// A complete MPA request with this private data, as a peer sends it that will never answer the reply.
pub fn request(private_data: &[u8]) -> Vec<u8> {
    Start::peer_to_peer(16, 16).data(private_data).encode(REQUEST_KEY)
}

/// The private data with which a stream is asked for, or messages.
pub async fn hello<T, E>(
    adapter: &Adapter,
    connect: impl AsyncFnOnce(SocketAddr) -> Result<T, E>,
) -> Vec<u8> {
    let (listener, address) = listening(adapter);
    let asked = async {
        let request = listener.request().await.expect("a request");
        request.private_data().to_vec()
    };
    let (_, hello) = within(async { tokio::join!(connect(address), asked) }).await;
    hello
}

/// Lowers the number of descriptors of this process.
pub fn limit_descriptors(limit: u64) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, limit, hard).expect("lowered");
}

/// Raises the number of descriptors of this process as far as it goes, and returns it.
pub fn raise_descriptors() -> usize {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("raised");
    usize::try_from(hard).unwrap_or(usize::MAX)
}
