//! Random operations on two hundred streams at a time: sizes, half-closes, drops and cancellations.
//!
//! Every acknowledged byte arrives in order, no call hangs, and no resource remains. One test in a separate process,
//! because it counts the resources of its process. `TOKIO_RDMA_CHAOS_SECONDS` sets the duration, `TOKIO_RDMA_TEST_SEED`
//! the seed.
//!
//! Runs on: rxe

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use common::dice::Dice;
use common::life::eventually;
use common::net::nothing_left;
use common::process::alone;
use common::resources::held;
use common::{Device, adapter, often, patience, v4, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rdma::io::{OwnedReadHalf, OwnedWriteHalf};
use tokio_rdma::{Adapter, RdmaListener, RdmaStream, StreamConfig};

/// How many streams there are at any time.
const STREAMS: usize = 200;

/// How many at any time, and for how long new ones are made. An emulated machine has all of them only when it is told to take
/// its time.
fn extent() -> (usize, Duration) {
    let told = std::env::var("TOKIO_RDMA_CHAOS_SECONDS").ok();
    let told = told.map(|text| Duration::from_secs(text.parse().expect("a number")));
    (
        if told.is_some() { STREAMS } else { often(STREAMS, STREAMS / 5) },
        told.unwrap_or(Duration::from_secs(10)),
    )
}

/// Byte number `offset` of the direction that has this key.
fn byte(key: usize, offset: usize) -> u8 {
    (key * 97 + offset + offset / 251 * 13) as u8
}

fn millis(dice: &mut Dice, most: usize) -> Duration {
    Duration::from_millis(dice.below(most) as u64)
}

fn one_of<T: Copy, const N: usize>(dice: &mut Dice, choices: [T; N]) -> T {
    choices[dice.below(N)]
}

/// Buffers and queues from the smallest to the default ones.
fn config(dice: &mut Dice) -> StreamConfig {
    let sizes = [2048, 2050, 5000, 16_384, 131_072];
    let depths = [16, 17, 40, 384];
    StreamConfig::default()
        .send_buffer(one_of(dice, sizes))
        .receive_buffer(one_of(dice, sizes))
        .send_depth(one_of(dice, depths))
        .receive_depth(one_of(dice, depths))
        .inline(one_of(dice, [0, 64]))
        // Nobody is given up for being slow, and what was written before a drop arrives, however slow the reader is.
        .connect_timeout(Some(patience()))
        .close_timeout(patience())
}

/// How an end writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    Shutdown,
    DropHalf,
    /// Says nothing before it has read everything. Only one end of a stream may wait like that.
    Keep,
}

/// How an end reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Appetite {
    /// To the end of file.
    All,
    /// So many bytes, and then it drops the stream.
    Some(usize),
}

/// The intentions of an end.
#[derive(Clone, Copy, Debug)]
struct Plan {
    length: usize,
    longest_write: usize,
    finish: Finish,
    appetite: Appetite,
    longest_read: usize,
    /// How often it stalls.
    stalls: usize,
    /// After so many polls the whole end is dropped, wherever it is.
    polls: Option<usize>,
    /// Each half has a task of its own.
    two_tasks: bool,
}

impl Plan {
    fn new(dice: &mut Dice, is_client: bool) -> Self {
        let most = one_of(dice, [1, 100, 20_000, often(400_000, 0)]);
        let length = dice.below(most);
        let finish = match dice.below(10) {
            0..5 => Finish::Shutdown,
            5..8 => Finish::DropHalf,
            _ if is_client => Finish::Keep,
            _ => Finish::Shutdown,
        };
        let appetite = if dice.below(6) == 0 { Appetite::Some(dice.below(100_000)) } else { Appetite::All };
        Self {
            length,
            // Not so short that one stream takes the time of all.
            longest_write: one_of(dice, [1, 10, 3000, 70_000]).max(length / 500),
            finish,
            appetite,
            longest_read: one_of(dice, [500, 3000, 70_000]),
            stalls: one_of(dice, [0, 0, 0, 1, 10]),
            polls: (dice.below(4) == 0).then(|| dice.below(60)),
            two_tasks: dice.below(2) == 0,
        }
    }
}

/// The progress of an end so far: true at any moment, also when it is dropped.
#[derive(Debug, Default)]
struct Done {
    written: AtomicUsize,
    read: AtomicUsize,
    /// It has read to the end of file.
    ended: AtomicBool,
    /// How often either end of the stream has got further.
    steps: Arc<AtomicUsize>,
}

/// The outcome of an end.
#[derive(Debug)]
struct Outcome {
    plan: Plan,
    done: Arc<Done>,
    /// It left before it was through: by its plan.
    left: bool,
    read: io::Result<()>,
    written: io::Result<()>,
}

async fn write(mut half: OwnedWriteHalf, key: usize, plan: Plan, mut dice: Dice, done: Arc<Done>) -> Written {
    let mut written = 0;
    while written < plan.length {
        let length = (1 + dice.below(plan.longest_write)).min(plan.length - written);
        let bytes: Vec<u8> = (written..written + length).map(|offset| byte(key, offset)).collect();
        let parts = bytes.split_at(dice.below(length));
        let parts = [IoSlice::new(parts.0), IoSlice::new(parts.1)];
        // A write that is given up has written nothing, and is made again.
        let most = if dice.below(4) == 0 { 1 } else { usize::MAX };
        let write = async {
            let count = half.write_vectored(&parts).await?;
            done.written.fetch_add(count, Ordering::Relaxed);
            done.steps.fetch_add(1, Ordering::Relaxed);
            io::Result::Ok(count)
        };
        match polled_at_most(write, most).await {
            Some(Ok(0)) => return (half, Err(io::ErrorKind::WriteZero.into())),
            Some(Ok(count)) => written += count,
            Some(Err(error)) => return (half, Err(error)),
            None => tokio::task::yield_now().await,
        }
    }
    let result = if plan.finish == Finish::Shutdown { half.shutdown().await } else { Ok(()) };
    (half, result)
}

/// The half is kept or dropped by who runs this.
type Written = (OwnedWriteHalf, io::Result<()>);

/// Returns `false` when it has left.
async fn read(
    mut half: OwnedReadHalf,
    key: usize,
    plan: Plan,
    mut dice: Dice,
    done: Arc<Done>,
) -> io::Result<bool> {
    let mut room = vec![0; plan.longest_read];
    let mut stalls = plan.stalls;
    loop {
        let read = done.read.load(Ordering::Relaxed);
        if matches!(plan.appetite, Appetite::Some(most) if read >= most) {
            return Ok(false);
        }
        if stalls > 0 && dice.below(10) == 0 {
            stalls -= 1;
            sleep(millis(&mut dice, 100)).await;
        }
        let most = if dice.below(4) == 0 { 1 } else { usize::MAX };
        let room = &mut room[..1 + dice.below(plan.longest_read)];
        let read_some = polled_at_most(half.read(room), most);
        match read_some.await {
            Some(Ok(0)) => {
                done.ended.store(true, Ordering::Relaxed);
                return Ok(true);
            }
            Some(Ok(count)) => {
                let mut expected = (read..read + count).map(|offset| byte(key, offset));
                let as_expected = room[..count].iter().all(|byte| expected.next() == Some(*byte));
                assert!(as_expected, "other bytes, from {read} to {}", read + count);
                done.read.fetch_add(count, Ordering::Relaxed);
                done.steps.fetch_add(1, Ordering::Relaxed);
            }
            Some(Err(error)) => return Err(error),
            None => tokio::task::yield_now().await,
        }
    }
}

/// Polls a future at most so many times and drops it; `None` when that was too few.
async fn polled_at_most<F: Future>(future: F, most: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = most;
    poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Both directions of an end. Its keys: of what it writes, and of what it reads.
async fn run(
    stream: RdmaStream,
    keys: [usize; 2],
    plan: Plan,
    mut dice: Dice,
    done: Arc<Done>,
) -> (bool, io::Result<()>, io::Result<()>) {
    let (from, to) = stream.into_split();
    let reading = read(from, keys[1], plan, dice.split(), done.clone());
    let writing = write(to, keys[0], plan, dice.split(), done);
    // Dropping the set ends its task.
    let mut tasks = JoinSet::new();
    let (tell, told) = oneshot::channel();
    let mut writing: Pin<Box<dyn Future<Output = Option<Written>> + Send>> = if plan.two_tasks {
        tasks.spawn(async move {
            let _ = tell.send(writing.await);
        });
        Box::pin(async { told.await.ok() })
    } else {
        Box::pin(async { Some(writing.await) })
    };
    let mut reading = Box::pin(reading);
    let (mut written, mut kept) = (None, None);
    loop {
        tokio::select! {
            outcome = &mut writing, if written.is_none() => {
                let (half, result) = outcome.expect("the task that writes has failed");
                written = Some(result);
                kept = (plan.finish == Finish::Keep).then_some(half);
            }
            outcome = &mut reading => {
                let (left, read) = match outcome {
                    Ok(through) => (!through, Ok(())),
                    Err(error) => (false, Err(error)),
                };
                // An end that has left does not write any more; one that has read everything does.
                if !left && written.is_none() {
                    let (half, result) = writing.await.expect("the task that writes has failed");
                    written = Some(result);
                    kept = Some(half);
                }
                drop(kept);
                return (left, read, written.unwrap_or(Ok(())));
            }
        }
    }
}

/// The same, perhaps not to its end.
async fn end(stream: RdmaStream, keys: [usize; 2], plan: Plan, dice: Dice, done: Arc<Done>) -> Outcome {
    let whole = run(stream, keys, plan, dice, done.clone());
    let outcome = polled_at_most(whole, plan.polls.unwrap_or(usize::MAX)).await;
    let (left, read, written) = outcome.unwrap_or((true, Ok(()), Ok(())));
    // A task that was told to end may still be at it.
    eventually("its tasks have ended", || Arc::strong_count(&done) == 1).await;
    Outcome { plan, done, left, read, written }
}

/// Checks what holds of one direction.
fn check(number: usize, from: &Outcome, to: &Outcome) {
    let (written, read) = (from.done.written.load(Ordering::Relaxed), to.done.read.load(Ordering::Relaxed));
    let case = || format!("stream {number}: {written} bytes written, {read} read\n  {from:?}\n  {to:?}");
    assert!(read <= written, "more than was sent: {}", case());
    // Nobody breaks a stream off: a drop is an end in good order.
    assert!(to.read.is_ok(), "{}", case());
    if !to.left {
        assert!(to.done.ended.load(Ordering::Relaxed), "{}", case());
    }
    if to.done.ended.load(Ordering::Relaxed) {
        assert_eq!(read, written, "the end of file before the end: {}", case());
    }
    if from.written.is_err() {
        assert!(to.left, "nobody has closed it: {}", case());
    } else if !from.left {
        assert_eq!(written, from.plan.length, "{}", case());
    }
}

/// The streams that are introduced: who waits for what becomes of their other end, and the steps of both.
type Expected = Arc<Mutex<HashMap<usize, (oneshot::Sender<Outcome>, Arc<AtomicUsize>)>>>;

/// Serves one stream, unless its client leaves before it has said which it is: in good order, or by giving up its connect.
async fn serve(mut stream: RdmaStream, seed: u64, expected: Expected) {
    let mut number = [0; 8];
    if within(stream.read_exact(&mut number)).await.is_err() {
        return;
    }
    let number = usize::from_le_bytes(number);
    let (waiting, steps) =
        expected.lock().expect("no panic").remove(&number).expect("a stream that somebody waits for");
    let mut dice = Dice::of(seed, 2 * number + 1);
    let plan = Plan::new(&mut dice, false);
    let done = Arc::new(Done { steps, ..Done::default() });
    let outcome = end(stream, [2 * number + 1, 2 * number], plan, dice, done).await;
    waiting.send(outcome).expect("somebody waits");
}

/// Accepts until it is told to stop; no stream is lost when an accept is given up.
async fn serve_all(listener: RdmaListener, seed: u64, expected: Expected, mut stop: watch::Receiver<bool>) {
    let mut dice = Dice::of(seed, usize::MAX - 1);
    let mut streams = JoinSet::new();
    loop {
        let most = one_of(&mut dice, [1, 2, usize::MAX]);
        tokio::select! {
            accepted = polled_at_most(listener.accept(), most) => if let Some(accepted) = accepted {
                let (stream, _) = accepted.expect("accepted");
                streams.spawn(serve(stream, seed, expected.clone()));
            },
            Some(ended) = streams.join_next() => ended.expect("no panic"),
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    while let Some(ended) = streams.join_next().await {
        ended.expect("no panic");
    }
}

/// Ends when nothing has happened for too long: one end may wait as long as it likes for another that goes on.
async fn standstill(steps: &AtomicUsize) -> usize {
    let mut before = usize::MAX;
    loop {
        let now = steps.load(Ordering::Relaxed);
        if now == before {
            return now;
        }
        before = now;
        sleep(patience()).await;
    }
}

/// One stream, from its first byte to its last.
async fn stream(adapter: &Adapter, address: SocketAddr, seed: u64, number: usize, expected: &Expected) {
    let mut dice = Dice::of(seed, 2 * number);
    let config = config(&mut dice);
    let polls = if dice.below(10) == 0 { dice.below(6) } else { usize::MAX };
    let connect = RdmaStream::connect_on(adapter, address, &config);
    let Some(connected) = within(polled_at_most(connect, polls)).await else { return };
    let mut stream = connected.unwrap_or_else(|error| panic!("stream {number}: {error:?}"));
    let plan = Plan::new(&mut dice, true);
    let (tell, told) = oneshot::channel();
    let steps = Arc::new(AtomicUsize::new(0));
    expected.lock().expect("no panic").insert(number, (tell, steps.clone()));
    // Some say nothing for a while.
    if dice.below(5) == 0 {
        sleep(millis(&mut dice, 300)).await;
    }
    let keys = [2 * number, 2 * number + 1];
    if dice.below(20) == 0 {
        expected.lock().expect("no panic").remove(&number);
        return;
    }
    stream.write_all(&number.to_le_bytes()).await.expect("written");
    let done = Arc::new(Done { steps: steps.clone(), ..Done::default() });
    let both = async {
        let near = end(stream, keys, plan, dice, done).await;
        let far = told.await.unwrap_or_else(|_| panic!("stream {number} has failed at the other end"));
        (near, far)
    };
    let (near, far) = tokio::select! {
        both = both => both,
        steps = standstill(&steps) => panic!("stream {number} hangs after {steps} steps: {plan:?}"),
    };
    check(number, &near, &far);
    check(number, &far, &near);
}

/// All of it, on an adapter, for so long; returns how many streams there were.
async fn chaos(adapter: &Adapter, seed: u64, slots: usize, time: Duration) -> usize {
    // Nobody is given up for being slow: so many at once take their time.
    let config = StreamConfig::default().handshake_timeout(patience()).close_timeout(patience());
    let listener = RdmaListener::bind_on(adapter, SocketAddr::new(v4(), 0), &config).expect("bound");
    let address = listener.local_addr().expect("an address");
    let expected = Expected::default();
    let (stop, stopped) = watch::channel(false);
    let server = tokio::spawn(serve_all(listener, seed, expected.clone(), stopped));
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..slots {
        let (adapter, expected, next) = (adapter.clone(), expected.clone(), next.clone());
        clients.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                stream(&adapter, address, seed, number, &expected).await;
                if start.elapsed() >= time {
                    return;
                }
            }
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.expect("no panic");
    }
    stop.send_replace(true);
    within(server).await.expect("no panic");
    assert!(expected.lock().expect("no panic").is_empty(), "a stream that nobody came for");
    next.load(Ordering::Relaxed)
}

#[test]
#[allow(clippy::print_stderr, reason = "how many there were")]
fn two_hundred_streams() {
    if !alone(module_path!(), "two_hundred_streams") {
        return;
    }
    let workers = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    workers.expect("a runtime").block_on(async {
        let seed = Dice::seed();
        // The first adapter of a process opens what the libraries of devices keep.
        drop(adapter());
        nothing_left().await;
        // No other task is there now: an adapter looks at the addresses with a socket, now and then.
        let before = held();
        let adapter = adapter();
        let (streams, time) = extent();
        let count = chaos(&adapter, seed, streams, time).await;
        assert!(count >= streams);
        eprintln!("{count} streams on {:?}", Device::under_test());
        drop(adapter);
        nothing_left().await;
        eventually("everything is given back", || held() == before).await;
    });
}
