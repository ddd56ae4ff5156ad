//! A long transfer over a cable that delays, loses and reorders packets. Every byte is checked.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread;

use futures::future::join_all;
use tokio_rdma::{
    AcceptParams, Access, Adapter, ConnectParams, Listener, Provider, QueuePair, QueuePairConfig, Region,
    RemoteRegion,
};

use super::guest::{Cable, block_on, port};
use super::raw::success;

/// At once, so that the delay of one is filled by the others.
const CONNECTIONS: usize = 8;
const MESSAGES: usize = 1000 / CONNECTIONS;
const BLOCK: usize = 1 << 20;
/// How many messages are on their way.
const WINDOW: usize = 16;

/// How many blocks each connection moves, written and read taken together. Each of the two roles has half of 100 MB,
/// or of what the environment says.
fn blocks() -> usize {
    let megabytes = std::env::var("TOKIO_RDMA_NETEM_MB").map_or(100, |text| text.parse().expect("a number"));
    (megabytes * 500_000_usize).div_ceil(BLOCK * CONNECTIONS)
}

/// Bytes in which every stretch is unlike all others.
struct Noise(Vec<u8>);

impl Noise {
    fn new() -> Arc<Self> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let words = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        });
        Arc::new(Self(words.take(2 * BLOCK / 8).flat_map(u64::to_le_bytes).collect()))
    }

    /// The bytes that the connection with this number sends as its message or block of that number.
    fn message(&self, connection: usize, number: usize, length: usize) -> &[u8] {
        let start = (connection * 7919 + number * 104_729) % BLOCK;
        &self.0[start..start + length]
    }
}

/// Short ones, long ones, and those in between.
fn length(number: usize) -> usize {
    1 + number * 2477 % 9000
}

async fn send(adapter: &Adapter, queue_pair: &QueuePair, bytes: &[u8]) {
    success(queue_pair.send(adapter.buffer_from(bytes).expect("memory")).expect("posted")).await;
}

/// The messages of a connection as they arrive, with receives ahead of them.
struct Inbox {
    adapter: Adapter,
    queue_pair: QueuePair,
    receives: std::collections::VecDeque<tokio_rdma::Op<tokio_rdma::Buffer>>,
}

impl Inbox {
    fn new(adapter: &Adapter) -> Self {
        let config = QueuePairConfig::default().receive_depth(2 * WINDOW);
        let queue_pair = adapter.queue_pair(config).expect("a queue pair");
        let mut inbox = Self { adapter: adapter.clone(), queue_pair, receives: Default::default() };
        (0..2 * WINDOW).for_each(|_| inbox.expect_another());
        inbox
    }

    fn expect_another(&mut self) {
        let buffer = self.adapter.buffer(9000).expect("memory");
        self.receives.push_back(self.queue_pair.receive(buffer).expect("posted"));
    }

    async fn next(&mut self) -> Vec<u8> {
        let receive = self.receives.pop_front().expect("there are always some");
        let (length, buffer) = success(receive).await;
        self.expect_another();
        buffer[..length].to_vec()
    }
}

fn contents(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    region.read(0, &mut bytes).expect("in range");
    bytes
}

/// Echoes the messages, looks at what is written, and offers something else to be read.
async fn passive(adapter: &Adapter, listener: &Listener, noise: &Noise) {
    let region = adapter.register(BLOCK, Access::REMOTE_READ | Access::REMOTE_WRITE).await.expect("memory");
    let mut inbox = Inbox::new(adapter);
    let request = listener.request().await.expect("a request");
    let connection = usize::from(request.private_data()[0]);
    let data = region.remote().to_bytes().to_vec();
    let accepted = request.accept(&inbox.queue_pair, AcceptParams::default().private_data(data)).await;
    let accepted = accepted.expect("accepted");
    for number in 0..MESSAGES {
        let message = inbox.next().await;
        assert!(message == noise.message(connection, number, length(number)), "message {number}");
        send(adapter, &inbox.queue_pair, &message).await;
    }
    for block in 0..blocks() {
        inbox.next().await;
        if block % 2 == 0 {
            assert!(
                contents(&region) == noise.message(connection, block, BLOCK),
                "block {block} was written"
            );
            region.write(0, noise.message(connection, block + 1, BLOCK)).expect("in range");
        }
        send(adapter, &inbox.queue_pair, b"next").await;
    }
    accepted.disconnected().await;
}

async fn active(adapter: &Adapter, server: SocketAddr, connection: usize, noise: &Noise) {
    let mut inbox = Inbox::new(adapter);
    let connector = adapter.connector();
    let params = ConnectParams::default().private_data(vec![connection as u8]);
    let reply = connector.connect(&inbox.queue_pair, server, params).await.expect("accepted");
    let remote = RemoteRegion::decode(reply.private_data()).expect("a region");
    let completed = reply.complete().await.expect("connected");
    let queue_pair = inbox.queue_pair.clone();
    for number in 0..MESSAGES + WINDOW {
        if number < MESSAGES {
            send(adapter, &queue_pair, noise.message(connection, number, length(number))).await;
        }
        if let Some(number) = number.checked_sub(WINDOW) {
            let echo = inbox.next().await;
            assert!(echo == noise.message(connection, number, length(number)), "echo {number}");
        }
    }
    let local = adapter.register(BLOCK, Access::LOCAL_WRITE | Access::READ_SINK).await.expect("memory");
    let whole = || local.slice(0..BLOCK).expect("in range");
    for block in 0..blocks() {
        if block % 2 == 0 {
            local.write(0, noise.message(connection, block, BLOCK)).expect("in range");
            success(queue_pair.write(whole(), &remote).expect("posted")).await;
        } else {
            success(queue_pair.read(whole(), &remote).expect("posted")).await;
            assert!(contents(&local) == noise.message(connection, block, BLOCK), "block {block} was read");
        }
        send(adapter, &queue_pair, b"done").await;
        inbox.next().await;
    }
    completed.disconnect().await.expect("disconnected");
}

async fn open(provider: Provider, address: IpAddr) -> Adapter {
    let id = provider.resolve(address).expect("an adapter has the address");
    provider.open(id).expect("opened")
}

/// Runs both ends; `near` is on the host with siw, the other one always on the soft provider.
pub fn transfer(
    cable: &Cable,
    [near_ip, far_ip]: [IpAddr; 2],
    near: fn() -> Provider,
    near_is_passive: bool,
) {
    let noise = Noise::new();
    let (tell, told) = std::sync::mpsc::channel();
    let (address, passive_noise) = (if near_is_passive { near_ip } else { far_ip }, noise.clone());
    let soft: fn() -> Provider = || Provider::soft().expect("compiled in");
    let (passive_provider, active_provider) = if near_is_passive { (near, soft) } else { (soft, near) };
    let active_address = if near_is_passive { far_ip } else { near_ip };
    let server = SocketAddr::new(address, port());
    let serve = move || {
        block_on(async {
            let adapter = open(passive_provider(), address).await;
            let listener = adapter.listener();
            listener.bind(server).expect("bound");
            listener.listen(0).expect("listening");
            tell.send(()).expect("somebody waits");
            join_all((0..CONNECTIONS).map(|_| passive(&adapter, &listener, &passive_noise))).await;
        });
    };
    let call = move || {
        block_on(async {
            let adapter = open(active_provider(), active_address).await;
            join_all((0..CONNECTIONS).map(|number| active(&adapter, server, number, &noise))).await;
        });
    };
    if near_is_passive {
        let serving = thread::spawn(serve);
        told.recv().expect("a server");
        cable.far(call);
        serving.join().expect("served");
    } else {
        let serving = cable.begin_far(serve);
        told.recv().expect("a server");
        call();
        serving.end();
    }
}
