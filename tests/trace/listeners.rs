//! The log of listeners of the soft provider: nothing when they are dropped, and a lack of resources once in a while.

use std::fs::File;
use std::net::SocketAddr;
use std::time::Duration;

use common::crowd::request;
use common::process::alone;
use common::verbs::is_device;
use common::*;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rdma::{AcceptParams, AcceptorConfig, QueuePairConfig, RdmaListener, RdmaStream, StreamConfig};

use super::Log;

impl Log {
    /// The warnings with this text.
    fn warnings(&self, text: &str) -> usize {
        let all = String::from_utf8(self.0.lock().expect("not poisoned").clone()).expect("text");
        all.lines().filter(|line| line.contains("WARN") && line.contains(text)).count()
    }

    /// Waits for a warning.
    async fn warned(&self, text: &str) {
        within(async {
            while self.warnings(text) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}

// The task that accepts may notice that its socket is shut down before it is ended.
#[test]
fn a_listener_that_is_dropped_warns_of_nothing() {
    let log = Log::default();
    let runtime = {
        let log = log.clone();
        // Each worker logs for as long as it lives.
        let listen = move || std::mem::forget(log.listen());
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .on_thread_start(listen)
            .build()
    };
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        for _ in 0..500 {
            tokio::spawn(async { drop(listening(&adapter())) }).await.expect("no panic");
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(10));
    assert!(log.length() > 0, "the workers log");
    assert_eq!(log.warnings(""), 0);
}

// A graceful stop of a server is no event for an operator.
#[tokio::test]
async fn an_acceptor_that_is_cancelled_warns_of_nothing() {
    let log = Log::default();
    let _guard = log.listen();
    let adapter = adapter();
    let (listener, _) = listening(&adapter);
    let acceptor = listener.acceptor(AcceptorConfig::default(), {
        let adapter = adapter.clone();
        move |request| {
            let queue_pair = adapter.queue_pair(QueuePairConfig::default());
            async move { Ok(request.accept(&queue_pair?, AcceptParams::default()).await?) }
        }
    });
    let acceptor = acceptor.expect("it listens");
    let mut accept = Box::pin(acceptor.accept());
    assert!(futures::poll!(&mut accept).is_pending());
    // Its task waits for requests.
    tokio::task::yield_now().await;
    listener.cancel();
    within(accept).await.expect_err("cancelled");
    assert!(log.length() > 0);
    assert_eq!(log.warnings(""), 0);
}

// IO-10: a lack of descriptors stops accepting and nothing else, is logged once, and passes.
#[tokio::test]
async fn a_lack_of_descriptors_pauses_accepting() {
    if !alone(module_path!(), "a_lack_of_descriptors_pauses_accepting") {
        return;
    }
    let log = Log::default();
    let _guard = log.listen();
    let (listener, address) = listening(&adapter());
    // One is accepted, and its request is not complete.
    let (first, second) =
        request(b"first").split_at_checked(10).map(|(a, b)| (a.to_vec(), b.to_vec())).expect("long");
    let mut slow = TcpStream::connect(address).await.expect("connected");
    slow.write_all(&first).await.expect("written");
    let late = TcpSocket::new_v4().expect("a socket");
    let limit = 200;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    let mut files = Vec::new();
    let until_accepted = async {
        // The queue of the kernel is in order: this one is accepted after the other.
        let mut probe = TcpStream::connect(address).await.expect("connected");
        probe.write_all(&request(b"probe")).await.expect("written");
        let request = listener.request().await.expect("a request");
        assert_eq!(&request.private_data()[..], b"probe");
        // Their descriptors must not become free.
        (probe, request)
    };
    let _probe = within(until_accepted).await;
    setrlimit(Resource::RLIMIT_NOFILE, limit, hard).expect("lowered");
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    let mut late = late.connect(address).await.expect("connected");
    late.write_all(&request(b"late")).await.expect("written");
    log.warned("accept failed").await;
    slow.write_all(&second).await.expect("written");
    let request = within(listener.request()).await.expect("a request");
    assert_eq!(&request.private_data()[..], b"first", "its request is read meanwhile");
    drop(files);
    let request = within(listener.request()).await.expect("a request");
    assert_eq!(&request.private_data()[..], b"late");
    assert_eq!(log.warnings("accept failed"), 1, "one every ten seconds");
}

// A plain TCP client is logged at `info`, and not each of many; what it sent cannot forge a line (IO-10).
#[tokio::test]
async fn plain_tcp_client_log_is_rate_limited() {
    let log = Log::default();
    let _guard = log.listen();
    let (_listener, address) = listening(&adapter());
    for _ in 0..3 {
        let mut client = TcpStream::connect(address).await.expect("connected");
        client.write_all(b"GET /\nINFO forged\n").await.expect("written");
        let mut rest = Vec::new();
        // The listener has closed the connection: it has logged what it logs.
        let _ = within(client.read_to_end(&mut rest)).await;
    }
    let lines = log.lines();
    let infos: Vec<_> = lines.iter().filter(|line| line.contains("speak iWARP")).collect();
    let [line] = infos[..] else { panic!("{lines:?}") };
    assert!(line.starts_with("INFO") && line.contains(r#"start with "GET /\nINFO forge""#), "{line}");
    assert!(!lines.iter().any(|line| line.starts_with("INFO forged")), "{lines:?}");
}

// IO-10: the server hears of it, and not of each client.
#[tokio::test]
async fn a_lack_of_memory_for_streams_is_logged() {
    // A stream on the soft provider registers no memory.
    if !is_device() || !alone(module_path!(), "a_lack_of_memory_for_streams_is_logged") {
        return;
    }
    let log = Log::default();
    let _guard = log.listen();
    let small = StreamConfig::default();
    let large = small.receive_buffer((1 << 29) - 1);
    let adapter = adapter();
    let listener = RdmaListener::bind_on(&adapter, SocketAddr::new(v4(), 0), &large).expect("bound");
    let (_, hard) = getrlimit(Resource::RLIMIT_AS).expect("a limit");
    setrlimit(Resource::RLIMIT_AS, 1 << 29, hard).expect("lowered");
    for _ in 0..3 {
        let connect = RdmaStream::connect_on(&adapter, listener.local_addr().expect("bound"), &small);
        within(connect).await.expect_err("there is no memory");
    }
    setrlimit(Resource::RLIMIT_AS, hard, hard).expect("raised");
    assert_eq!(log.warnings("no resources for a connection"), 1, "one every ten seconds");
}
