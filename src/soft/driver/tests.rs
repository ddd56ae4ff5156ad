//! Tests the reports of the task of a connection, and their order: on a pair of sockets, without an adapter.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::task::{Wake, Waker};

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::close::{classify, first_cause};
use super::*;
use crate::inflight::{Completed, CompletionSink, Payload, RequestMeta, Table, Ticket};
use crate::memory::Owned;
use crate::net::Stream;
use crate::proto::mpa::{Negotiated, Rtr, rtr_frame, terminate_fpdu};
use crate::provider::work::{Flags, Operation, RemoteAddress, WorkRequest};
use crate::soft::connection::{Command, ConnectionParts};
use crate::soft::memory::{Registration, deregistered};
use crate::soft::receive_queue::{Receive, ReceiveQueue};
use crate::soft::receiver::reader::{Panicked, Violation};
use crate::sync::Mutex;
use crate::types::{Access, ConnectionId, OpKind, ReadLimits};
use crate::wire::ddp::{Tagged, Untagged};
use crate::wire::rdmap::{Opcode, ReadRequest};

mod reading;

/// Enough time for each of these tests.
const LIMIT: Duration = Duration::from_secs(10);

/// A log of events in their order: reports, and requests whose futures were woken.
#[derive(Default)]
struct Log {
    entries: Mutex<Vec<&'static str>>,
    /// Runs when the connection is established.
    at_established: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Log {
    fn add(&self, entry: &'static str) {
        self.entries.lock().push(entry);
    }

    /// Waits until the log has `count` entries, and takes them.
    async fn take(&self, count: usize) -> Vec<&'static str> {
        let waits = async {
            while self.entries.lock().len() < count {
                tokio::task::yield_now().await;
            }
        };
        let outcome = tokio::time::timeout(LIMIT, waits).await;
        let found = std::mem::take(&mut *self.entries.lock());
        assert!(outcome.is_ok(), "only {found:?}");
        found
    }
}

impl Observer for Log {
    fn disconnect_timeout(&self) -> Duration {
        SoftConfig::default().disconnect_timeout
    }

    fn event(&self, event: Event) {
        let at_established = self.at_established.lock().take_if(|_| matches!(event, Event::Established));
        if let Some(look) = at_established {
            look();
        }
        self.add(match event {
            Event::Established => "established",
            Event::Ended(Ending::PeerDisconnected) => "ended: disconnected",
            Event::Ended(Ending::Lost(..)) => "ended: lost",
            Event::Ended(Ending::Refused(_)) => "ended: refused",
            Event::Ended(Ending::GaveUp(_)) => "ended: gave up",
            Event::Detached => "detached",
            Event::Closed { answered: true } => "closed: answered",
            Event::Closed { answered: false } => "closed",
        });
    }
}

/// The future of a request: an entry of the log when it is woken.
struct Request(Arc<Log>, &'static str);

impl Wake for Request {
    fn wake(self: Arc<Self>) {
        self.0.add(self.1);
    }
}

/// Returns the settings of an end whose socket is read by its task, which spins for no time, and by polls.
fn read_by_task() -> SoftConfig {
    SoftConfig::default().spin(Duration::from_nanos(1))
}

/// One end of a connection, and the socket of its peer.
struct End {
    log: Arc<Log>,
    table: Arc<Table>,
    connection: Arc<ConnectionShared>,
    peer: TcpStream,
}

impl End {
    /// Creates the passive end, whose peer has to send the first frame.
    async fn passive() -> (Self, Driver<Log>) {
        Self::passive_with(&SoftConfig::default()).await
    }

    async fn passive_with(config: &SoftConfig) -> (Self, Driver<Log>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a listener");
        Self::passive_at(config, listener, |sink| ReceiveQueue::new(4, sink)).await
    }

    /// Creates the passive end of a connection to this listener, with these receives.
    async fn passive_at(
        config: &SoftConfig,
        listener: TcpListener,
        receives: impl FnOnce(CompletionSink) -> Arc<ReceiveQueue>,
    ) -> (Self, Driver<Log>) {
        let address = listener.local_addr().expect("its address");
        let (peer, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (peer, socket) =
            (peer.expect("connected"), Socket::new(Stream::Kernel(accepted.expect("accepted").0), None));
        let table = Arc::<Table>::default();
        let sink = CompletionSink::to_futures(table.clone());
        let connection = ConnectionShared::new(ConnectionParts {
            id: ConnectionId(0),
            role: Role::Passive,
            negotiated: Negotiated {
                limits: ReadLimits::new(16, 1),
                crc: config.crc,
                announces: false,
                rtr: Rtr::Write,
            },
            send_depth: 4,
            sends: sink.clone(),
            receives: receives(sink),
            keys: Arc::default(),
        });
        let log = Arc::<Log>::default();
        let driver = Driver::new(connection.clone(), socket, &[], log.clone(), config);
        (Self { log, table, connection, peer }, driver)
    }

    /// Creates an established end, and spawns its task.
    async fn established() -> (Self, JoinHandle<()>) {
        let (mut end, driver) = Self::passive().await;
        let task = tokio::spawn(driver);
        end.peer.write_all(&rtr_frame(Rtr::Write, false)).await.expect("written");
        assert_eq!(end.log.take(1).await, ["established"]);
        (end, task)
    }

    fn ticket(&self, kind: OpKind) -> Ticket {
        self.table.open(RequestMeta { kind, context: 0 }, || 0)
    }

    /// Registers a waker that logs the completion of the request. Returns whether the request is pending.
    fn is_pending(&self, ticket: Ticket, name: &'static str) -> bool {
        let waker = Waker::from(Arc::new(Request(self.log.clone(), name)));
        self.table.poll(ticket, &mut Context::from_waker(&waker)).is_pending()
    }

    fn receive(&self) -> Ticket {
        let ticket = self.ticket(OpKind::Receive);
        let receive = Receive { ticket, payload: memory() };
        assert!(self.connection.receives.post(receive).is_ok());
        assert!(self.is_pending(ticket, "receive"));
        ticket
    }

    /// Waits for the completion of the request.
    async fn completed(&self, ticket: Ticket) -> Completed {
        let completed = std::future::poll_fn(|cx| self.table.poll(ticket, cx));
        tokio::time::timeout(LIMIT, completed).await.expect("in time").expect("it was posted")
    }

    fn post(&self, operation: Operation, name: &'static str) {
        let ticket = self.ticket(operation.kind());
        assert!(self.is_pending(ticket, name));
        let work = WorkRequest { ticket, operation, payload: memory(), flags: Flags::empty() };
        assert!(self.connection.post(work).is_ok());
    }
}

/// Waits until `condition` holds.
async fn until(condition: impl Fn() -> bool) {
    let holds = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, holds).await.expect("in time");
}

fn memory() -> Payload {
    Payload::from_iter([Owned::zeroed(8).expect("memory").share().whole()])
}

const SEND: Operation = Operation::Send { invalidate: None, immediate: None };
const READ: Operation = Operation::Read { from: RemoteAddress { key: 1, address: 0 } };

/// Returns the first Send of the peer, as a frame.
fn message() -> Vec<u8> {
    let header = Untagged { last: true, opcode: Opcode::Send, invalidate: 0, qn: 0, msn: 1, mo: 0 };
    [&header.encode(4)[..], b"here", &[0; 4]].concat()
}

// A wait for the connection resolves before its first message completes, and nothing is sent before.
#[tokio::test]
async fn established_precedes_sends_and_receives() {
    for first in [rtr_frame(Rtr::Write, false).to_vec(), Vec::new()] {
        let (mut end, driver) = End::passive().await;
        end.receive();
        end.post(SEND, "send");
        end.peer.write_all(&[first.clone(), message()].concat()).await.expect("written");
        tokio::spawn(driver);
        assert_eq!(end.log.take(3).await, ["established", "send", "receive"], "behind {first:?}");
    }
}

// A user who sees the message can answer it, also one who polls for completions: also a message that is the
// first frame itself completes only once the connection is established.
#[tokio::test]
async fn nothing_completes_before_established() {
    for first in [&rtr_frame(Rtr::Write, false)[..], &[]] {
        let (mut end, driver) = End::passive().await;
        let receive = end.receive();
        let (log, table) = (end.log.clone(), end.table.clone());
        *end.log.at_established.lock() = Some(Box::new(move || {
            if table.take(receive).is_none() {
                log.add("pending");
            }
        }));
        end.peer.write_all(&[first, &message()].concat()).await.expect("written");
        tokio::spawn(driver);
        assert_eq!(end.log.take(3).await, ["pending", "established", "receive"], "behind {first:?}");
        let completed = end.completed(receive).await;
        assert_eq!((completed.status, completed.bytes), (Status::SUCCESS, 4));
    }
}

// `X3`: first the connection ends, then its requests, then the socket.
#[tokio::test]
async fn ended_precedes_the_flush() {
    let (mut end, task) = End::established().await;
    end.receive();
    end.post(READ, "read");
    end.peer.shutdown().await.expect("the end of the stream");
    let ends = ["ended: disconnected", "read", "receive", "closed: answered"];
    assert_eq!(end.log.take(4).await, ends);
    task.await.expect("no panic");
    assert!(end.log.take(0).await.is_empty());
}

#[tokio::test]
async fn a_refused_handshake_detaches_and_spares_the_receives() {
    let (mut end, driver) = End::passive().await;
    let receive = end.receive();
    end.connection.command(Command::Refuse);
    let task = tokio::spawn(driver);
    assert_eq!(end.log.take(1).await, ["detached"]);
    let mut terminate = Vec::new();
    end.peer.read_to_end(&mut terminate).await.expect("the end of the stream");
    assert_eq!(terminate, terminate_fpdu(&Terminate::LOCAL_CATASTROPHIC, false));
    drop(end.peer);
    task.await.expect("no panic");
    assert_eq!(end.log.take(1).await, ["closed: answered"]);
    assert!(end.table.poll(receive, &mut Context::from_waker(Waker::noop())).is_pending());
}

#[tokio::test]
async fn a_handshake_that_fails_spares_the_receives() {
    let (end, driver) = End::passive().await;
    let receive = end.receive();
    drop(end.peer);
    driver.await;
    assert_eq!(end.log.take(2).await, ["ended: gave up", "closed"]);
    assert!(end.table.poll(receive, &mut Context::from_waker(Waker::noop())).is_pending());
}

#[tokio::test]
async fn a_disconnect_of_ours_ends_with_the_answer() {
    let (mut end, task) = End::established().await;
    end.receive();
    end.connection.command(Command::Disconnect(deadline(LIMIT)));
    assert_eq!(end.log.take(1).await, ["receive"]);
    assert_eq!(end.peer.read(&mut [0]).await.expect("the end of the stream"), 0);
    drop(end.peer);
    task.await.expect("no panic");
    assert_eq!(end.log.take(1).await, ["closed: answered"]);
}

#[tokio::test]
async fn every_report_comes_once() {
    let (mut end, task) = End::established().await;
    end.receive();
    // The runtime ends when the Terminate is sent, and the peer does not answer it.
    end.peer.write_all(&[0xff; 64]).await.expect("written");
    assert_eq!(end.log.take(2).await, ["ended: lost", "receive"]);
    task.abort();
    assert!(task.await.is_err_and(|error| error.is_cancelled()));
    assert_eq!(end.log.take(1).await, ["closed"]);
}

#[test]
fn every_end_of_the_reader_has_its_ending() {
    const ACCESS: Terminate = Terminate::ACCESS_REMOTE;
    const CRC: Terminate = Terminate::CRC;
    let broken = |code| Stop::Broken(io::Error::from_raw_os_error(code));
    let kind = |kind: io::ErrorKind| Stop::Broken(kind.into());
    let violation = |terminate, blame| Stop::Violation(Box::new(Violation { terminate, blame }));
    let within = Reason::Local("the stream ended within a frame");
    let memory = Reason::Local("the memory of a transfer was deregistered");
    let lost = |stop, reason, status, last_words| {
        assert_eq!(classify(stop, true), (Ending::Lost(reason, status), last_words));
    };
    let failed = |stop, ending, last_words| assert_eq!(classify(stop, false), (ending, last_words));

    assert_eq!(classify(Stop::Closed, true), (Ending::PeerDisconnected, None));
    failed(Stop::Closed, Ending::GaveUp(Reason::PeerClosed), None);
    for code in [libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::ENETDOWN] {
        lost(broken(code), Reason::Errno(code), Status::IO_TIMEOUT, None);
        failed(broken(code), Ending::GaveUp(Reason::Errno(code)), None);
    }
    lost(broken(libc::ECONNRESET), Reason::Errno(libc::ECONNRESET), Status::REMOTE_ERROR, None);
    lost(kind(io::ErrorKind::UnexpectedEof), within, Status::REMOTE_ERROR, None);
    failed(kind(io::ErrorKind::UnexpectedEof), Ending::GaveUp(within), None);
    lost(Stop::Broken(deregistered()), memory, Status::REMOTE_ERROR, None);
    lost(kind(io::ErrorKind::Other), Reason::Local("the runtime was shut down"), Status::REMOTE_ERROR, None);
    lost(Stop::Terminated(Box::new(ACCESS)), ACCESS.reason(false), Status::ACCESS_VIOLATION, None);
    lost(Stop::Terminated(Box::new(CRC)), CRC.reason(false), Status::REMOTE_ERROR, None);
    failed(Stop::Terminated(Box::new(CRC)), Ending::Refused(CRC.reason(false)), None);
    lost(violation(CRC, Status::CANCELED), CRC.reason(true), Status::CANCELED, Some(CRC));
    lost(violation(ACCESS, Status::REMOTE_ERROR), ACCESS.reason(true), Status::REMOTE_ERROR, Some(ACCESS));
    failed(violation(CRC, Status::CANCELED), Ending::GaveUp(CRC.reason(true)), Some(CRC));
    let panicked = Reason::Local("a waker, a destructor or a subscriber of the program panicked");
    lost(Stop::Panicked, panicked, Status::CANCELED, None);
    lost(io::Error::other(Panicked).into(), panicked, Status::CANCELED, None);
}

/// Counts the turns of another task of the runtime while the flood is processed, from the start of the task.
/// The flood is made for memory that the peer may read and write.
async fn turns_of_others(config: &SoftConfig, flood: impl FnOnce(&Registration) -> Vec<u8>) -> usize {
    let (mut end, driver) = End::passive_with(config).await;
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let memory = Owned::zeroed(FLOOD_BYTES).expect("memory").share();
    let region = end.connection.keys.register(memory, rights).expect("registered");
    end.receive();
    let flood = [&rtr_frame(Rtr::Write, false)[..], &flood(&region), &message()].concat();
    end.peer.write_all(&flood).await.expect("room");
    tokio::spawn(driver);
    let mut turns = 0;
    while end.log.entries.lock().last() != Some(&"receive") {
        turns += 1;
        tokio::task::yield_now().await;
    }
    turns
}

/// The bytes of a Write, and of the response to a Read Request, in a flood of those that have payload.
const FLOOD_BYTES: usize = 64;

/// Returns a Read Request as a frame.
fn read_frame(msn: u32, length: u32, source_stag: u32, source_to: u64) -> Vec<u8> {
    let header = Untagged { last: true, opcode: Opcode::ReadRequest, invalidate: 0, qn: 1, msn, mo: 0 };
    let payload = ReadRequest { sink_stag: 1, sink_to: 0, length, source_stag, source_to }.encode();
    [&header.encode(payload.len())[..], &payload, &[0; 4]].concat()
}

// All of the flood is in the socket before the task runs (SEC-01). With a budget for each system call the
// first would be one turn.
#[tokio::test]
async fn a_flood_does_not_keep_other_tasks_waiting() {
    let empty_writes = |_: &Registration| rtr_frame(Rtr::Write, false).repeat(6400);
    let empty_reads = |_: &Registration| (1..=1600).flat_map(|msn| read_frame(msn, 0, 0, 0)).collect();
    let writes = |region: &Registration| {
        let header = Tagged { last: true, opcode: Opcode::Write, stag: region.key(), to: region.address() };
        [&header.encode(FLOOD_BYTES)[..], &[7; FLOOD_BYTES], &[0; 4]].concat().repeat(1600)
    };
    let reads = |region: &Registration| {
        let (key, address) = (region.key(), region.address());
        (1..=800).flat_map(|msn| read_frame(msn, FLOOD_BYTES as u32, key, address)).collect()
    };
    for spin in [Duration::ZERO, Duration::from_secs(3600)] {
        let config = SoftConfig::default().spin(spin);
        let turns = turns_of_others(&config, empty_writes).await;
        assert!(turns >= 6400 / 256, "{turns} turns in 6400 empty Writes, spin {spin:?}");
        let turns = turns_of_others(&config, writes).await;
        assert!(turns >= 1600 / 256, "{turns} turns in 1600 Writes, spin {spin:?}");
        let turns = turns_of_others(&config, empty_reads).await;
        assert!(turns >= 1600 / 32, "{turns} turns in 1600 empty Read Requests, spin {spin:?}");
        let turns = turns_of_others(&config, reads).await;
        assert!(turns >= 800 / 32, "{turns} turns in 800 Read Requests, spin {spin:?}");
    }
}

/// Polls the task until the log has this entry, and calls `look` after each poll. Between polls it yields to
/// the I/O driver.
async fn run_to(end: &End, driver: &mut Driver<Log>, entry: &str, mut look: impl FnMut(&Driver<Log>)) {
    let runs = async {
        while end.log.entries.lock().last() != Some(&entry) {
            std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *driver).poll(cx).is_ready())).await;
            look(driver);
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, runs).await.expect("it goes on");
}

// Bytes that arrive while this end disconnects are discarded in turns, too (SEC-01). Zeros are the shortest
// frames.
#[tokio::test]
async fn flood_during_disconnect_is_discarded_in_turns() {
    const LENGTH: usize = 128 * 1024;
    let (mut end, mut driver) = End::passive().await;
    if let Stream::Kernel(stream) = driver.socket.stream() {
        SockRef::from(stream).set_recv_buffer_size(4 * LENGTH).expect("set");
    }
    end.peer.write_all(&rtr_frame(Rtr::Write, false)).await.expect("written");
    run_to(&end, &mut driver, "established", |_| ()).await;
    end.receive();
    end.connection.command(Command::Disconnect(deadline(LIMIT)));
    run_to(&end, &mut driver, "receive", |_| ()).await;
    end.peer.write_all(&[0; LENGTH]).await.expect("room");
    end.peer.shutdown().await.expect("the end of the stream");
    // All bytes have arrived before the task runs.
    reading::comes(&driver, LENGTH).await;
    let (mut before, mut most) = (driver.reader.receiver().received, 0);
    run_to(&end, &mut driver, "closed: answered", |driver| {
        let received = driver.reader.receiver().received;
        most = most.max(received - std::mem::replace(&mut before, received));
    })
    .await;
    assert!(most <= 64 * 1024, "{most} bytes in one poll");
}

// The responses to Read Requests of a few bytes cost as much as the bytes that they bring (SEC-01).
#[tokio::test]
async fn long_answers_are_written_in_turns() {
    const LENGTH: usize = 1 << 20;
    const READS: u32 = 15;
    let (mut end, mut driver) = End::passive().await;
    let memory = Owned::zeroed(LENGTH).expect("memory").share();
    let region = end.connection.keys.register(memory, Access::REMOTE_READ).expect("registered");
    let read = |msn| read_frame(msn, LENGTH as u32, region.key(), region.address());
    let requests: Vec<u8> = (1..=READS).flat_map(read).collect();
    end.receive();
    let flood = [&rtr_frame(Rtr::Write, false)[..], &requests, &message()].concat();
    end.peer.write_all(&flood).await.expect("room");
    // The peer reads everything, in another thread.
    let peer = end.peer.as_fd().try_clone_to_owned().expect("a descriptor");
    let mut peer = std::net::TcpStream::from(peer);
    peer.set_nonblocking(false).expect("set");
    let reading = std::thread::spawn(move || {
        io::Read::read_exact(&mut peer, &mut vec![0; LENGTH * READS as usize]).expect("all of it");
    });
    let (mut before, mut most) = (0, 0);
    let mut measure = || {
        let written = end.connection.sending().queue.written;
        most = most.max(written - std::mem::replace(&mut before, written));
        written
    };
    run_to(&end, &mut driver, "receive", |_| _ = measure()).await;
    let rest = async {
        while measure() < (LENGTH * READS as usize) as u64 {
            std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut driver).poll(cx).is_ready())).await;
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, rest).await.expect("it goes on");
    reading.join().expect("no panic");
    // A batch is a little more than 1 MiB, and may follow one that was a little less; an answer may be behind
    // both.
    assert!(most <= 13 * LENGTH as u64 / 4, "{most} bytes in one poll");
}

#[test]
fn the_first_cause_of_an_end_is_kept() {
    let kind = |kind: io::ErrorKind| Stop::Broken(kind.into());
    let reset = || Some(io::Error::from_raw_os_error(libc::ECONNRESET));
    let cause = |stop, broken| classify(first_cause(stop, broken), true).0;
    let lost = |reason| Ending::Lost(reason, Status::REMOTE_ERROR);
    // The write met the reset, and the reader the end of the stream that follows it (SEC-11).
    assert_eq!(cause(Stop::Closed, reset()), lost(Reason::Errno(libc::ECONNRESET)));
    assert_eq!(cause(kind(io::ErrorKind::UnexpectedEof), reset()), lost(Reason::Errno(libc::ECONNRESET)));
    // The peer had closed before this side wrote.
    let pipe = || Some(io::Error::from_raw_os_error(libc::EPIPE));
    assert_eq!(cause(Stop::Closed, pipe()), Ending::PeerDisconnected);
    // The Terminate of the peer comes before the error of the socket.
    let said = cause(Stop::Terminated(Box::new(Terminate::CRC)), reset());
    assert_eq!(said, lost(Terminate::CRC.reason(false)));
}

// The end of a peer that stops within a frame keeps the bytes that were sent, not the room for a whole frame
// (SEC-12).
#[tokio::test]
async fn a_frame_that_stops_keeps_no_room() {
    const SENT: usize = 20_000;
    for path_timeout in [Some(Duration::from_secs(2)), None] {
        let config = SoftConfig::default().crc(true).path_timeout(path_timeout);
        let (mut end, mut driver) = End::passive_with(&config).await;
        let length = 60_000_u16.to_be_bytes();
        end.peer.write_all(&[&length[..], &[0; SENT - 2]].concat()).await.expect("written");
        let holds = |memory: std::ops::RangeInclusive<usize>,
                     driver: &mut Driver<Log>,
                     cx: &mut Context<'_>| {
            assert!(Pin::new(&mut *driver).poll(cx).is_pending(), "the connection lasts");
            if memory.contains(&driver.reader.receiver().memory()) { Poll::Ready(()) } else { Poll::Pending }
        };
        let comes = std::future::poll_fn(|cx| holds(SENT..=usize::MAX, &mut driver, cx));
        tokio::time::timeout(LIMIT, comes).await.expect("it comes");
        tokio::time::pause();
        let settles = std::future::poll_fn(|cx| holds(SENT..=SENT, &mut driver, cx));
        tokio::time::timeout(2 * LIMIT, settles).await.expect("it keeps room");
        tokio::time::resume();
    }
}

// A thread is writing whenever the silent peer is to be asked (SEC-04).
#[tokio::test]
async fn silent_peer_is_lost_without_a_probe() {
    let config = SoftConfig::default().path_timeout(Some(Duration::from_secs(2)));
    let (mut end, driver) = End::passive_with(&config).await;
    end.peer.write_all(&rtr_frame(Rtr::Write, false)).await.expect("written");
    tokio::spawn(driver);
    assert_eq!(end.log.take(1).await, ["established"]);
    tokio::time::pause();
    let writer = {
        let mut sending = end.connection.sending();
        sending.queue.nudge();
        sending.queue.begin(&mut WakeList::default())
    };
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(*end.log.entries.lock(), ["ended: lost"]);
    drop(writer);
}

// A peer that sends few bytes at a time causes as many system calls as one that sends many (SEC-01).
#[tokio::test]
async fn read_cost_counts_system_call_and_bytes() {
    let (mut end, driver) = End::passive_with(&SoftConfig::default().crc(true)).await;
    let socket = driver.socket.clone();
    let length = 60_000_u16.to_be_bytes();
    // No frame is complete. The whole frame has room as soon as its length is known.
    for (bytes, cost) in [(&length[..], 1), (&[0; 10], 1), (&[0; 8000], 1), (&[0; 50_000], 1 + 50_000 / 8192)]
    {
        end.peer.write_all(bytes).await.expect("written");
        reading::comes(&driver, bytes.len()).await;
        tokio::time::timeout(LIMIT, socket.stream().readable()).await.expect("in time").expect("a socket");
        let mut wakes = WakeList::default();
        let turned = driver
            .reader
            .receiver()
            .advance(&socket, &mut Turn { wakes: &mut wakes, room: None, limit: TURN });
        let turned = turned.expect("no end");
        assert!(turned.read);
        assert_eq!(turned.cost, cost, "{} bytes", bytes.len());
    }
}
