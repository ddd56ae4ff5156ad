//! The protocol of ib_send_lat and ib_write_bw of perftest with `-R`, implemented with this crate.
//!
//! There are two connections to one port. The first is for negotiation: the client sends a message, the server responds
//! with the same kind of message, and so on. When both sides have reported that they are ready, the server listens for
//! the second connection, which carries the test. All numbers are in network byte order.

use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use tokio_rdma::error::{ConnectError, DisconnectError, Reason};
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{
    AcceptParams, Access, Adapter, Buffer, ConnectParams, Connection, Listener, Op, QueuePair,
    QueuePairConfig, RemoteRegion,
};

use super::guest::{Stage, port, start};
use super::raw::{success, success_or_canceled};

/// The version that we say we are: that of perftest 4.5+0.17. It talks to nobody below [`OLDEST`].
const VERSION: &[u8; 16] = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";
const OLDEST: f32 = 5.70;
/// The size of the buffer that short messages go round in, and the distance between two of them.
const CYCLE_BUFFER: u32 = 4096;
const CACHE_LINE: u32 = 64;
/// A transmission unit of 1024 bytes, as a digit; the second connection does not heed it.
const MTU: &[u8; 2] = b"3\0";

/// Numbers, key and address of a queue pair and its memory, and what is between them.
const DESCRIPTION: usize = 56;
const KEY: usize = 16;
const ADDRESS: usize = 24;

/// A side as it describes itself. What the connection manager knows anyway is zero.
fn description(memory: Option<&RemoteRegion>) -> [u8; DESCRIPTION] {
    let mut bytes = [0; DESCRIPTION];
    if let Some(memory) = memory {
        bytes[KEY..KEY + 4].copy_from_slice(&memory.key().0.to_be_bytes());
        bytes[ADDRESS..ADDRESS + 8].copy_from_slice(&memory.address().to_be_bytes());
    }
    bytes
}

/// So much of the memory in the other side's description.
fn memory(description: &[u8], length: usize) -> RemoteRegion {
    let key = u32::from_be_bytes(description[KEY..KEY + 4].try_into().expect("four bytes"));
    let address = u64::from_be_bytes(description[ADDRESS..ADDRESS + 8].try_into().expect("eight bytes"));
    RemoteRegion::new(address, RemoteKey(key), u32::try_from(length).expect("short"))
}

/// A measurement: so many messages of this size.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub program: Program,
    pub count: usize,
    pub size: usize,
}

/// Which of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// ib_send_lat: a message goes, another comes, and so on.
    SendLatency,
    /// ib_write_bw: the client writes into the memory of the server.
    WriteBandwidth,
}

/// The first connection.
struct Agreement {
    adapter: Adapter,
    queue_pair: QueuePair,
    connection: Connection,
    /// There is always one.
    receive: Option<Op<Buffer>>,
    /// Whether we are the one who begins.
    client: bool,
}

/// A receive for the first connection, which has to be there before the connection is.
fn receive(adapter: &Adapter, queue_pair: &QueuePair) -> Op<Buffer> {
    queue_pair.receive(adapter.buffer(DESCRIPTION).expect("memory")).expect("posted")
}

impl Agreement {
    async fn accept(adapter: &Adapter, listener: &Listener) -> Self {
        let queue_pair = adapter.queue_pair(QueuePairConfig::default()).expect("a queue pair");
        let receive = Some(receive(adapter, &queue_pair));
        let connection = listener.accept_next(&queue_pair, AcceptParams::default()).await.expect("accepted");
        Self { adapter: adapter.clone(), queue_pair, connection, receive, client: false }
    }

    async fn connect(adapter: &Adapter, server: SocketAddr) -> Self {
        let queue_pair = adapter.queue_pair(QueuePairConfig::default()).expect("a queue pair");
        let receive = Some(receive(adapter, &queue_pair));
        let connector = adapter.connector();
        let connect = connector.connect_and_complete(&queue_pair, server, ConnectParams::default());
        let connection = connect.await.expect("connected");
        Self { adapter: adapter.clone(), queue_pair, connection, receive, client: true }
    }

    fn post(&self, ours: &[u8]) -> Op<Buffer> {
        let message = self.adapter.buffer_from(ours).expect("memory");
        self.queue_pair.send(message).expect("posted")
    }

    async fn say(&self, ours: &[u8]) {
        success(self.post(ours)).await;
    }

    async fn hear(&mut self) -> Vec<u8> {
        let received = self.receive.take().expect("there is always one");
        let (length, buffer) = success(received).await;
        self.receive = Some(receive(&self.adapter, &self.queue_pair));
        buffer[..length].to_vec()
    }

    /// Both say something of the same kind; returns what the other said.
    async fn exchange(&mut self, ours: &[u8]) -> Vec<u8> {
        let theirs;
        if self.client {
            self.say(ours).await;
            theirs = self.hear().await;
        } else {
            theirs = self.hear().await;
            self.say(ours).await;
        }
        assert_eq!(theirs.len(), ours.len());
        theirs
    }

    /// The exchanges that each test begins with.
    async fn begin(&mut self) {
        let version = self.exchange(VERSION).await;
        let version = String::from_utf8_lossy(&version);
        let number = version.trim_end_matches('\0').parse::<f32>();
        assert!(number.is_ok_and(|number| number >= OLDEST), "version {version:?}");
        for ours in [CYCLE_BUFFER, CACHE_LINE] {
            self.exchange(&ours.to_be_bytes()).await;
        }
        self.exchange(MTU).await;
    }

    /// Each waits for the other to get here.
    async fn meet(&mut self) {
        self.exchange(&description(None)).await;
    }

    /// The same for the last time, for a server: the client leaves at once. That it has heard of it, its exit status and its
    /// table say.
    async fn meet_last(&mut self) {
        let ours = description(None);
        assert_eq!(self.hear().await.len(), ours.len());
        success_or_canceled(self.post(&ours)).await;
    }

    /// The client's results, which the server shows: messages and figures.
    async fn report(&mut self, run: Run) {
        for number in [run.size as u64, run.count as u64] {
            let theirs = self.exchange(&number.to_be_bytes()).await;
            assert!(self.client || theirs == number.to_be_bytes(), "{number} and {theirs:?}");
        }
        for figure in [3.0_f64, 2.0, 1.0] {
            self.exchange(&figure.to_be_bytes()).await;
        }
    }
}

/// The second connection.
struct Test {
    adapter: Adapter,
    queue_pair: QueuePair,
    receives: Vec<Op<Buffer>>,
    run: Run,
}

impl Test {
    /// A queue pair with all its receives.
    fn new(adapter: &Adapter, run: Run) -> Self {
        let config = QueuePairConfig::default().receive_depth(run.count).send_depth(run.count);
        let queue_pair = adapter.queue_pair(config).expect("a queue pair");
        let messages = if run.program == Program::SendLatency { run.count } else { 0 };
        let receive = |_| queue_pair.receive(adapter.buffer(run.size).expect("memory")).expect("posted");
        let receives = (0..messages).map(receive).collect();
        Self { adapter: adapter.clone(), queue_pair, receives, run }
    }

    /// The server may not listen again yet, and refuses until it does, which is soon.
    async fn connect(&self, server: SocketAddr) -> Connection {
        let connector = self.adapter.connector();
        let begun = std::time::Instant::now();
        loop {
            assert!(begun.elapsed() < super::patience(), "the server refuses for good");
            let params = ConnectParams::default();
            match connector.connect_and_complete(&self.queue_pair, server, params).await {
                Ok(connection) => return connection,
                Err(ConnectError::Refused { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    fn message(&self) -> Buffer {
        self.adapter.buffer_from(&vec![7; self.run.size]).expect("memory")
    }

    async fn ping_pong(&mut self, client: bool) {
        for receive in std::mem::take(&mut self.receives) {
            if client {
                success(self.queue_pair.send(self.message()).expect("posted")).await;
                assert_eq!(success(receive).await.0, self.run.size);
            } else {
                assert_eq!(success(receive).await.0, self.run.size);
                success(self.queue_pair.send(self.message()).expect("posted")).await;
            }
        }
    }

    async fn write(&self, target: &RemoteRegion) {
        let write = |_| self.queue_pair.write(self.message(), target).expect("posted");
        let writes: Vec<_> = (0..self.run.count).map(write).collect();
        join_all(writes.into_iter().map(success)).await;
    }
}

/// The server of a program.
pub async fn serve(adapter: &Adapter, listener: &Listener, run: Run) {
    let mut agreement = Agreement::accept(adapter, listener).await;
    agreement.begin().await;
    agreement.meet().await;
    let mut test = Test::new(adapter, run);
    let connection = listener.accept_next(&test.queue_pair, AcceptParams::default()).await.expect("accepted");
    agreement.meet().await;

    let length = run.size.max(CYCLE_BUFFER as usize);
    let region = adapter.register(length, Access::REMOTE_WRITE).await.expect("memory");
    // Each side describes itself, and does so again when it has connected its queue pair.
    for _ in 0..3 {
        agreement.exchange(&description(Some(&region.remote()))).await;
    }
    // The fourth time the test of one program is about to begin, and that of the other is over.
    agreement.meet().await;
    match run.program {
        Program::SendLatency => test.ping_pong(false).await,
        Program::WriteBandwidth => agreement.report(run).await,
    }
    agreement.meet_last().await;
    connection.disconnected().await;
    if run.program == Program::WriteBandwidth {
        // The bytes of the last write came before the end, and are random.
        let mut bytes = vec![0; run.size];
        region.read(0, &mut bytes).expect("in range");
        let zeros = bytes.iter().filter(|byte| **byte == 0).count();
        assert!(zeros < run.size / 16, "{zeros} of {} bytes are zero", run.size);
    }
    agreement.connection.disconnected().await;
}

/// The client of a program.
pub async fn call(adapter: &Adapter, server: SocketAddr, run: Run) {
    let mut agreement = Agreement::connect(adapter, server).await;
    agreement.begin().await;
    agreement.meet().await;
    let mut test = Test::new(adapter, run);
    let connection = test.connect(server).await;
    agreement.meet().await;

    let mut theirs = Vec::new();
    for _ in 0..3 {
        theirs = agreement.exchange(&description(None)).await;
    }
    match run.program {
        Program::SendLatency => {
            agreement.meet().await;
            test.ping_pong(true).await;
        }
        Program::WriteBandwidth => {
            test.write(&memory(&theirs, run.size)).await;
            agreement.meet().await;
            agreement.report(run).await;
        }
    }
    agreement.meet().await;
    for connection in [connection, agreement.connection] {
        // The program does not wait for anybody when it ends: siw may answer with a reset then.
        match connection.disconnect().await {
            Ok(()) | Err(DisconnectError::Lost { reason: Reason::Errno(libc::ECONNRESET), .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

impl Run {
    fn program(self) -> &'static str {
        match self.program {
            Program::SendLatency => "ib_send_lat",
            Program::WriteBandwidth => "ib_write_bw",
        }
    }

    fn flags(self, stage: &Stage, port: u16) -> String {
        format!("-R -F -d {} -p {port} -n {} -s {}", stage.device, self.count, self.size)
    }

    /// The program's table has a line on what was measured; its figures are the machine's affair.
    fn check(self, stage: &Stage, said: &str) {
        let [size, count] = [self.size, self.count].map(|number| number.to_string());
        let is_result = |line: &str| {
            let mut words = line.split_whitespace();
            words.next() == Some(&size) && words.next() == Some(&count)
        };
        assert!(said.lines().any(is_result), "{}: {self:?}: {said}", stage.name);
    }
}

/// Their client and our server.
pub fn original_client(stage: &Stage, run: Run) {
    let server = SocketAddr::new(stage.ours[0], port());
    let serving =
        stage.begin_serving(server, async move |adapter, listener| serve(&adapter, &listener, run).await);
    let flags = format!("{} {}", run.flags(stage, server.port()), server.ip());
    let outcome = start(run.program(), &flags, None).finish();
    assert!(outcome.status.success(), "{}: {outcome}", stage.name);
    run.check(stage, &outcome.stdout);
    serving.end();
}

/// Our client and their server.
pub fn original_server(stage: &Stage, run: Run) {
    let server = SocketAddr::new(stage.theirs[0], port());
    let program = start(run.program(), &run.flags(stage, server.port()), Some(server.port()));
    stage.begin(0, async move |adapter| call(&adapter, server, run).await).end();
    let outcome = program.finish();
    assert!(outcome.status.success(), "{}: {outcome}", stage.name);
    run.check(stage, &outcome.stdout);
}

/// Both programs, in both roles.
pub fn all(stage: &Stage) {
    for (program, size) in [(Program::SendLatency, 1000), (Program::WriteBandwidth, 65_536)] {
        let run = Run { program, count: 20, size };
        original_client(stage, run);
        original_server(stage, run);
    }
}
