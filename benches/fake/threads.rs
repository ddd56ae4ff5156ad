//! Threads with a core and a lane each, which begin together.

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
use crate::lanes::{self, MakeLane};

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

/// A thread that waits for numbers of operations.
struct Worker {
    orders: Sender<usize>,
    took: Receiver<io::Result<Duration>>,
}

impl Worker {
    fn start(core: usize, make: MakeLane, start: Arc<Start>) -> Self {
        let ((orders, numbers), (answers, took)) = (channel(), channel());
        thread::spawn(move || {
            let mut cores = CpuSet::new();
            // On a machine with fewer cores the threads share one.
            let _ = cores.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &cores));
            let mut lane = make();
            for count in numbers {
                let prepared = match &mut lane {
                    Ok(lane) => lane.prepare(),
                    Err(error) => Err(io::Error::other(error.to_string())),
                };
                start.wait();
                let begin = Instant::now();
                let done = prepared.and_then(|()| lane.as_mut().map_or(Ok(()), |lane| lane.run(count)));
                // Fails once the program ends.
                let _ = answers.send(done.map(|()| begin.elapsed()));
            }
        });
        Self { orders, took }
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
        let runtime = lanes::runtime()?;
        let (adapter, workers) = runtime.block_on(async {
            let adapter = lanes::adapter()?;
            let mut workers = Vec::new();
            for core in 0..threads {
                workers.push(Worker::start(core, lanes::lane(&adapter, line).await?, start.clone()));
            }
            io::Result::Ok((adapter, workers))
        })?;
        Ok(Self { workers, _adapter: adapter, _runtime: runtime })
    }

    /// So many operations on each. Returns the nanoseconds of one, as a thread has them on average of the rates: what matters is how
    /// much all do in a time.
    fn run(&self, count: usize) -> io::Result<f64> {
        for worker in &self.workers {
            worker.orders.send(count).map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        let mut rate = 0.0;
        for worker in &self.workers {
            let took = worker.took.recv().map_err(io::Error::other)??;
            rate += count as f64 / took.as_nanos() as f64;
        }
        Ok(self.workers.len() as f64 / rate)
    }
}

/// For every number on standard input, so many operations on each thread; prints the nanoseconds of one.
pub(crate) fn serve(line: Line, threads: usize) -> io::Result<()> {
    let workers = Workers::start(line, threads)?;
    for number in io::stdin().lines() {
        println!("{}", workers.run(number?.trim().parse().map_err(io::Error::other)?)?);
        io::stdout().flush()?;
    }
    // What the end of connections costs is not counted.
    std::process::exit(0)
}

/// A few operations on two threads.
pub(crate) fn smoke(line: Line) -> io::Result<()> {
    Workers::start(line, 2)?.run(64).map(drop)
}
