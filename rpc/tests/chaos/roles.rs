//! The processes that the faults are done to: this program, once more.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use common::dice::Dice;
use common::life::eventually;
use common::process::one_test;
use common::{resources, within};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, gettid};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::runtime::Handle;
use tokio::task::{JoinSet, block_in_place};
use tokio_rdma::RdmaListener;
use tokio_rdma_rpc::{Channel, Config, Server};

use super::calls::{ANSWERING, answer_counted, make_calls};

const ROLE: &str = "TOKIO_RDMA_TEST_ROLE";
/// Marks what a process says among what the test harness prints around it.
const MARK: &str = "process says: ";
/// The tasks of the client that call.
const CALLERS: usize = 8;

/// The worker threads of a process.
const WORKERS: usize = 2;

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut workers = tokio::runtime::Builder::new_multi_thread();
    // Threads that have handed their work over end at once.
    workers.worker_threads(WORKERS).thread_keep_alive(Duration::ZERO).enable_all();
    workers.build().expect("a runtime").block_on(future)
}

/// Has new threads take the place of all worker threads, which end with the buffers that they keep for streams.
async fn renew_workers() {
    let (all_old, all) = (Arc::new(Barrier::new(WORKERS)), Arc::new(Barrier::new(2 * WORKERS)));
    let mut old = JoinSet::new();
    for _ in 0..WORKERS {
        let (all_old, all) = (all_old.clone(), all.clone());
        old.spawn(async move {
            // Each task blocks a thread of its own, up to here without handing its work over.
            all_old.wait();
            block_in_place(|| {
                let new = all.clone();
                tokio::spawn(async move { new.wait() });
                all.wait();
            });
            gettid()
        });
    }
    for thread in old.join_all().await {
        let task = format!("/proc/self/task/{thread}");
        eventually("the thread ends", || !Path::new(&task).exists()).await;
    }
}

/// The resources of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    memory: usize,
    descriptors: usize,
    tasks: usize,
    /// The calls that it answers.
    calls: usize,
}

impl Held {
    /// Returns the resources of this process, without what its threads keep.
    pub(crate) async fn own(calls: usize) -> Self {
        renew_workers().await;
        Self {
            memory: super::MEMORY.allocated(),
            descriptors: resources::held()["descriptors"],
            tasks: Handle::current().metrics().num_alive_tasks(),
            calls,
        }
    }

    pub(crate) fn is_no_more_than(&self, before: &Self, slack: usize) -> bool {
        self.memory <= before.memory + slack
            && self.descriptors <= before.descriptors
            && self.tasks <= before.tasks
            && self.calls <= before.calls
    }
}

/// Another process. It is killed when this is dropped.
pub(crate) struct Role {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Where it listens, or what it connects to.
    pub(crate) address: SocketAddr,
}

impl Role {
    /// Starts a server.
    pub(crate) async fn server() -> Self {
        Self::start("server").await
    }

    /// Starts a client that calls for as long as it lives.
    pub(crate) async fn client(server: SocketAddr) -> Self {
        Self::start(&server.to_string()).await
    }

    async fn start(role: &str) -> Self {
        let mut command = Command::from(one_test(module_path!(), "role"));
        command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("another process");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let mut role = Self { child, input, output, address: ([127, 0, 0, 1], 0).into() };
        role.address = role.hear().await.parse().expect("an address");
        role
    }

    /// Returns the next line that the process has for this one.
    async fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let length = within(self.output.read_line(&mut line)).await.expect("its output");
            assert!(length > 0, "a process has failed");
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim_end().to_owned();
            }
        }
    }

    /// Returns the resources of the process.
    pub(crate) async fn held(&mut self) -> Held {
        self.input.write_all(b"held\n").await.expect("its input");
        let line = self.hear().await;
        let numbers: Vec<usize> = line.split(' ').map(|number| number.parse().expect("a number")).collect();
        let [memory, descriptors, tasks, calls] = numbers[..] else { panic!("{line}") };
        Held { memory, descriptors, tasks, calls }
    }

    fn signal(&self, signal: Signal) {
        let id = self.child.id().expect("it runs");
        kill(Pid::from_raw(id.cast_signed()), signal).expect("a signal");
    }

    pub(crate) fn stop(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Kills the process, which must not have ended by itself: its calls are checked there.
    pub(crate) async fn kill(&mut self) {
        assert!(self.child.try_wait().expect("a status").is_none(), "a process has failed");
        self.child.kill().await.expect("killed");
    }
}

#[allow(clippy::print_stdout, reason = "the process that has started it reads it")]
fn say(what: impl std::fmt::Display) {
    println!("{MARK}{what}");
}

// The role of a process, if it has one. It ends with its input.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    block_on(async {
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        let mut tasks = JoinSet::new();
        if role == "server" {
            let listener = RdmaListener::bind("127.0.0.1:0").await.expect("bound");
            say(listener.local_addr().expect("bound"));
            // Small windows, so that calls wait for them.
            let config = Config::default().call_window(64 << 10).connection_window(256 << 10).max_calls(50);
            let service =
                tower::service_fn(async |request| Ok::<_, Infallible>(answer_counted(request).await));
            tasks.spawn(async move {
                Server::new().config(config).serve(listener, service).await.expect("ended")
            });
        } else {
            say(&role);
            let channel = Channel::connect_lazy(role);
            for number in 0..CALLERS {
                let dice = Dice::of(std::process::id().into(), number);
                tasks.spawn(make_calls(channel.clone(), dice, None, Default::default()));
            }
        }
        loop {
            tokio::select! {
                line = lines.next_line() => match line.expect("its input") {
                    None => return,
                    Some(_) => {
                        let Held { memory, descriptors, tasks, calls } = Held::own(ANSWERING.load(Ordering::SeqCst)).await;
                        say(format_args!("{memory} {descriptors} {tasks} {calls}"));
                    }
                },
                Some(ended) = tasks.join_next() => ended.expect("no panic"),
            }
        }
    });
}
