//! Threads with a core and a track each, which begin together.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use tokio::runtime::Runtime;
use tokio_rdma::Adapter;

use crate::Line;
use crate::tracks::{self, MakeTrack, WARM_UP};

/// The line at which all threads wait. They do not sleep there: they would wake up one after the other.
struct Start {
    threads: usize,
    /// How often a thread has come here.
    ready: AtomicUsize,
}

impl Start {
    fn wait(&self) {
        let place = self.ready.fetch_add(1, Ordering::AcqRel);
        let all = (place / self.threads + 1) * self.threads;
        while self.ready.load(Ordering::Acquire) < all {
            // For a machine with fewer cores.
            thread::yield_now();
        }
    }
}

/// When a thread has begun and ended.
type Span = (Instant, Instant);

/// How often threads that did not run at the same time, as others had their cores, try again.
const TRIES: usize = 20;

/// Whether most of the time of the longest span is in all of them.
fn overlap(spans: &[Span]) -> bool {
    let all = spans.iter().map(|(begin, _)| *begin).max().zip(spans.iter().map(|(_, end)| *end).min());
    let shared = all.map_or(Duration::ZERO, |(begin, end)| end.saturating_duration_since(begin));
    spans.iter().all(|(begin, end)| shared * 10 >= (*end - *begin) * 8)
}

/// A thread that waits for numbers of operations.
struct Worker {
    orders: Sender<usize>,
    spans: Receiver<io::Result<Span>>,
}

impl Worker {
    fn start(core: usize, make: MakeTrack, start: Arc<Start>) -> Self {
        let ((orders, numbers), (answers, spans)) = (channel(), channel());
        thread::spawn(move || {
            let mut cores = CpuSet::new();
            // On a machine with fewer cores the threads share one.
            let _ = cores.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &cores));
            let mut track = make();
            for count in numbers {
                let prepared = match &mut track {
                    Ok(track) => track.prepare().and_then(|()| track.run(WARM_UP)),
                    Err(error) => Err(io::Error::other(error.to_string())),
                };
                start.wait();
                let begin = Instant::now();
                let done = prepared.and_then(|()| track.as_mut().map_or(Ok(()), |track| track.run(count)));
                // Fails once the program ends.
                let _ = answers.send(done.map(|()| (begin, Instant::now())));
            }
        });
        Self { orders, spans }
    }
}

/// Threads that run a line, and the adapter that some lines share.
struct Workers {
    workers: Vec<Worker>,
    _adapter: Adapter,
    /// That of the adapter. Nothing runs on it while the threads do.
    _runtime: Runtime,
}

impl Workers {
    fn start(line: Line, threads: usize) -> io::Result<Self> {
        let start = Arc::new(Start { threads, ready: AtomicUsize::new(0) });
        let runtime = tracks::runtime()?;
        let (adapter, workers) = runtime.block_on(async {
            let adapter = tracks::adapter()?;
            let mut workers = Vec::new();
            for core in 0..threads {
                workers.push(Worker::start(core, tracks::track(&adapter, line).await?, start.clone()));
            }
            io::Result::Ok((adapter, workers))
        })?;
        Ok(Self { workers, _adapter: adapter, _runtime: runtime })
    }

    /// So many operations on each. Returns the nanoseconds of one, as a thread has them on average of the rates: what matters is how
    /// much all do in a time.
    fn run(&self, count: usize) -> io::Result<f64> {
        let mut spans = self.try_run(count)?;
        for _ in 1..TRIES {
            if overlap(&spans) {
                break;
            }
            spans = self.try_run(count)?;
        }
        let rate: f64 =
            spans.iter().map(|(begin, end)| count as f64 / (*end - *begin).as_nanos() as f64).sum();
        Ok(spans.len() as f64 / rate)
    }

    fn try_run(&self, count: usize) -> io::Result<Vec<Span>> {
        for worker in &self.workers {
            worker.orders.send(count).map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        self.workers.iter().map(|worker| worker.spans.recv().map_err(io::Error::other)?).collect()
    }
}

/// For every number on standard input, so many operations on each thread; prints the nanoseconds of one.
pub(crate) fn serve(line: Line, threads: usize) -> io::Result<()> {
    let workers = Workers::start(line, threads)?;
    for number in io::stdin().lines() {
        println!("{}", workers.run(number?.trim().parse().map_err(io::Error::other)?)?);
        io::stdout().flush()?;
    }
    // The cost of the end of connections is not counted.
    std::process::exit(0)
}

/// A few operations on two threads.
pub(crate) fn smoke(line: Line) -> io::Result<()> {
    Workers::start(line, 2)?.run(64).map(drop)
}
