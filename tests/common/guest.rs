//! The guest machine of `cargo xtask guest`: two hosts with a cable between them, one of which has siw.
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};

use tokio_rdma::error::OpenError;
use tokio_rdma::{Adapter, Listener, Provider};

use super::interop::{Program, example_program, until_listening};
use super::process::one_test;

/// The addresses of the host that has siw: the initial network namespace.
pub const NEAR: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 79, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd79, 0, 0, 0, 0, 0, 0, 1))];
/// The addresses of the host that has nothing but sockets.
pub const FAR: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 79, 0, 2)), IpAddr::V6(Ipv6Addr::new(0xfd79, 0, 0, 0, 0, 0, 0, 2))];

/// The addresses of the far host on the cable of the machine's own siw, which has the first of each.
pub const MACHINE_FAR: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 78, 0, 2)), IpAddr::V6(Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 2))];

/// A bad cable, as tc-netem(8) says it: packets are late, lost, and overtaken.
const BAD: &str = "limit 10000 delay 20ms 4ms loss 1% reorder 10% 50%";

/// How long anything may take on the emulated machine.
const LONGEST: Duration = Duration::from_secs(120);

/// Whether this is the guest machine; says so when it is not.
pub fn is_guest() -> bool {
    let guest = std::env::var_os("TOKIO_RDMA_GUEST").is_some();
    if !guest {
        eprintln!("skipped: needs the guest machine (cargo xtask guest)");
    }
    guest
}

/// Whether there is a verbs provider; says so when there is not.
pub fn has_verbs() -> bool {
    let absent = matches!(Provider::verbs(), Err(OpenError::Unsupported("built without the feature verbs")));
    if absent {
        eprintln!("skipped: built without the feature verbs");
    }
    !absent
}

/// A build of siw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Siw {
    /// As it is in the kernel: neither peer-to-peer nor checksums by itself.
    Stock,
    /// Rebuilt with peer-to-peer mode, and checksums required.
    PeerToPeer,
}

/// One test at a time: there is one kernel.
static TURN: Mutex<()> = Mutex::new(());
static PORT: AtomicU16 = AtomicU16::new(20_000);

/// A port that was not used before.
pub fn port() -> u16 {
    PORT.fetch_add(1, Ordering::Relaxed)
}

/// A cable from the initial namespace, where siw has it, to a namespace of its own.
pub struct Cable {
    /// The interfaces: here, and on the far host.
    links: [&'static str; 2],
    far: Host,
    _turn: MutexGuard<'static, ()>,
}

impl Cable {
    /// A new one, with a build of siw that is loaded for it. That needs a process that has no device open.
    pub fn new(siw: Siw) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let far = Host::new();
        ip(&format!("link add near type veth peer name far netns {}", far.id));
        configure("near", NEAR);
        far.run(|| configure("far", FAR));
        load(siw, "near");
        Self { links: ["near", "far"], far, _turn: turn }
    }

    /// That of the machine's own siw, which it stays with: a device that a process has open cannot be removed.
    pub fn of_the_machine() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let far = Host::new();
        ip(&format!("link set veth3 netns {}", far.id));
        far.run(|| configure("veth3", MACHINE_FAR));
        Self { links: ["veth2", "veth3"], far, _turn: turn }
    }

    /// Sets the maximum transmission unit of both ends.
    pub fn set_mtu(&self, mtu: u32) {
        let [near, far] = self.links;
        ip(&format!("link set {near} mtu {mtu}"));
        self.far.run(move || ip(&format!("link set {far} mtu {mtu}")));
    }

    /// Makes the cable a bad one, both ways.
    pub fn impair(&self) {
        let [near, far] = self.links;
        command("tc", &format!("qdisc replace dev {near} root netem {BAD}"));
        self.far.run(move || command("tc", &format!("qdisc replace dev {far} root netem {BAD}")));
    }

    /// Runs something on the far host, and waits for it.
    pub fn far<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        self.far.run(job)
    }

    /// Begins something on the far host.
    pub fn begin_far<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> Running<R> {
        self.far.begin(job)
    }

    /// Starts a program on the far host, which listens on this port if there is one.
    pub fn start_far(&self, program: impl Into<PathBuf>, arguments: &str, port: Option<u16>) -> Program {
        let (program, arguments) = (program.into(), arguments.to_owned());
        self.far.run(move || start(program, &arguments, port))
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // Whatever went wrong here the test has reported already.
        let quietly = |program: &str, arguments: &str| {
            let _ = Command::new(program).args(arguments.split(' ')).output();
        };
        if self.links[0] == "near" {
            quietly("ip", "link del near");
            quietly("guest-siw", "stock");
        } else {
            // Otherwise it would go with its namespace, and take the other end along.
            let back = self.far.begin(move || quietly("ip", "link set veth3 netns 1"));
            let _ = back.0.recv_timeout(LONGEST);
            for link in self.links {
                quietly("tc", &format!("qdisc del dev {link} root"));
                quietly("ip", &format!("link set {link} mtu 1500 up"));
            }
        }
    }
}

/// A delay of the host's own traffic, while siw is at both ends. Its passive end replies before it listens for frames
/// (`siw_accept`). Without a delay the first frame of the active end may come in between and be missed, and if the active
/// end leaves then, the kernel panics (iwcm.c:969): a close where it expects the end of the handshake.
const LATE: &str = "delay 1ms limit 10000";

/// Set in the process that runs a test in peer-to-peer mode.
const PEER_TO_PEER: &str = "TOKIO_RDMA_TEST_PEER_TO_PEER";

/// Runs the test `function` of the module that says `module_path!()` while the machine's own siw is the one with
/// peer-to-peer mode and checksums. It runs in a process of its own: what this one had open could not be removed afterwards.
pub fn in_peer_to_peer_mode(module: &str, function: &str, test: impl FnOnce()) {
    if std::env::var_os(PEER_TO_PEER).is_some() {
        return test();
    }
    if !is_guest() || !has_verbs() {
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let link = variable("TOKIO_RDMA_SIW_LINK");
    load(Siw::PeerToPeer, &link);
    command("tc", &format!("qdisc replace dev lo root netem {LATE}"));
    let ended = one_test(module, function).env(PEER_TO_PEER, "1").output();
    command("tc", "qdisc del dev lo root");
    load(Siw::Stock, &link);
    let ended = ended.expect("it runs");
    let said = [ended.stdout, ended.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    let well = ended.status.success() && said.contains("1 passed");
    // Indented, or its tests are taken for those of this process.
    assert!(well, "{function}, {}:\n    {}", ended.status, said.replace('\n', "\n    "));
}

/// The addresses of both sides of a test, and the device and the provider that they use.
pub struct Stage {
    pub name: String,
    /// The provider of our side, as the examples name it.
    pub provider: &'static str,
    open: fn() -> Provider,
    /// Our addresses, of both versions.
    pub ours: [IpAddr; 2],
    /// Those of the programs that are not ours.
    pub theirs: [IpAddr; 2],
    /// The device of those programs.
    pub device: String,
    /// Between the two, unless they are on one host.
    pub cable: Option<Cable>,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Stage {
    /// Ours over sockets on one host, theirs over siw on the other.
    pub fn soft(siw: Siw) -> Self {
        Self {
            name: format!("soft and siw {siw:?}"),
            provider: "soft",
            open: || Provider::soft().expect("compiled in"),
            ours: FAR,
            theirs: NEAR,
            device: variable("TOKIO_RDMA_SIW_DEVICE"),
            cable: Some(Cable::new(siw)),
            _turn: None,
        }
    }

    /// Both over the same device, `RXE` or `SIW`, on this host; says so when that cannot be.
    pub fn verbs(device: &str) -> Option<Self> {
        if !has_verbs() {
            return None;
        }
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let addresses = addresses(device);
        Some(Self {
            name: format!("verbs on {device}"),
            provider: "verbs",
            open: || Provider::verbs().expect("it was there"),
            ours: addresses,
            theirs: addresses,
            device: variable(&format!("TOKIO_RDMA_{device}_DEVICE")),
            cable: None,
            _turn: Some(turn),
        })
    }

    /// Whether what is not ours uses siw.
    pub fn is_siw(&self) -> bool {
        self.name.to_lowercase().contains("siw")
    }

    /// Begins something on our host, with an adapter that has our address of this version.
    pub fn begin<R: Send + 'static>(
        &self,
        version: usize,
        job: impl AsyncFnOnce(Adapter) -> R + Send + 'static,
    ) -> Running<R> {
        let (open, address) = (self.open, self.ours[version]);
        let job = move || {
            block_on(async {
                let provider = open();
                let id = provider.resolve(address).expect("an adapter has the address");
                job(provider.open(id).expect("opened")).await
            })
        };
        match &self.cable {
            Some(cable) => cable.begin_far(job),
            None => {
                let (tell, told) = mpsc::channel();
                thread::spawn(move || tell.send(catch_unwind(AssertUnwindSafe(job))));
                Running(told)
            }
        }
    }

    /// Begins to serve on our host; returns when somebody can connect.
    pub fn begin_serving<R: Send + 'static>(
        &self,
        address: SocketAddr,
        job: impl AsyncFnOnce(Adapter, Listener) -> R + Send + 'static,
    ) -> Running<R> {
        let (tell, told) = mpsc::channel();
        let running = self.begin(usize::from(address.is_ipv6()), async move |adapter: Adapter| {
            let listener = adapter.listener();
            listener.bind(address).expect("bound");
            listener.listen(0).expect("listening");
            tell.send(()).expect("somebody waits");
            job(adapter, listener).await
        });
        // When it fails, its end says why.
        let _ = told.recv();
        running
    }

    /// Starts an example on our host, which listens on this port if there is one.
    pub fn start(&self, name: &str, arguments: &str, port: Option<u16>) -> Program {
        let program = example_program(name);
        match &self.cable {
            Some(cable) => cable.start_far(program, arguments, port),
            None => start(program, arguments, port),
        }
    }
}

/// The addresses of the machine's device, `RXE` or `SIW`.
pub fn addresses(device: &str) -> [IpAddr; 2] {
    ["ADDR", "ADDR6"]
        .map(|which| variable(&format!("TOKIO_RDMA_{device}_{which}")).parse().expect("an address"))
}

fn variable(name: &str) -> String {
    std::env::var(name).expect(name)
}

/// Starts a program on this host, which listens on this port if there is one.
pub fn start(program: impl Into<PathBuf>, arguments: &str, port: Option<u16>) -> Program {
    let mut program = Program::start(program, arguments);
    if let Some(port) = port {
        until_listening(&mut program, port);
    }
    program
}

/// Compiles a program of `tests/c`, if this process has not done so. What comes of it stays in the memory of the machine.
pub fn c_program(name: &str, libraries: &str) -> PathBuf {
    static COMPILED: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let compile = || {
        let source = format!("{}/../c/{name}.c", env!("CARGO_MANIFEST_DIR"));
        let scratch = std::env::var_os("TOKIO_RDMA_SCRATCH").expect("a place for files");
        let program = PathBuf::from(scratch).join(format!("{name}-{}", std::process::id()));
        let arguments = format!("-Wall -o {} {source} {libraries}", program.display());
        Program::start("cc", &arguments).finish().expect_success();
        program
    };
    // Another test waits meanwhile: the machine would not compile faster if both did.
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    compiled.entry(name.to_owned()).or_insert_with(compile).clone()
}

/// Loads a build of siw, and makes a device of this interface.
fn load(siw: Siw, link: &str) {
    let build = match siw {
        Siw::Stock => "stock",
        Siw::PeerToPeer => "p2p",
    };
    let output = Command::new("guest-siw").arg(build).env("TOKIO_RDMA_SIW_LINK", link).output();
    let output = output.expect("guest-siw");
    assert!(output.status.success(), "guest-siw {build}: {}", String::from_utf8_lossy(&output.stderr));
}

fn configure(interface: &str, addresses: [IpAddr; 2]) {
    ip("link set lo up");
    ip(&format!("address add {}/24 dev {interface}", addresses[0]));
    ip(&format!("address add {}/64 dev {interface} nodad", addresses[1]));
    ip(&format!("link set {interface} up"));
}

fn ip(arguments: &str) {
    command("ip", arguments);
}

fn command(program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split(' ')).output().expect(program);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {stderr}");
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own, which does what it is told.
struct Host {
    /// Its thread, by which the namespace is found.
    id: i32,
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// Something that goes on at a host.
pub struct Running<R>(mpsc::Receiver<thread::Result<R>>);

impl<R> Running<R> {
    /// Waits for its end; panics as it did.
    pub fn end(self) -> R {
        match self.0.recv_timeout(LONGEST).expect("it hangs") {
            Ok(result) => result,
            Err(panic) => resume_unwind(panic),
        }
    }
}

impl Host {
    fn new() -> Self {
        let (tell, told) = mpsc::channel();
        let (jobs, work) = mpsc::channel::<Job>();
        let thread = thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
            tell.send(nix::unistd::gettid().as_raw()).expect("somebody waits");
            work.into_iter().for_each(|job| job());
        });
        Self { id: told.recv().expect("a host"), jobs: Some(jobs), thread: Some(thread) }
    }

    fn begin<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> Running<R> {
        let (tell, told) = mpsc::channel();
        let job: Job = Box::new(move || {
            let result = catch_unwind(AssertUnwindSafe(job));
            // Nobody listens to the rest of a test that has failed.
            let _ = tell.send(result);
        });
        self.jobs.as_ref().expect("not dropped").send(job).expect("a host");
        Running(told)
    }

    fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        self.begin(job).end()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs a future on a runtime that stays on this thread, and so in its namespace.
///
/// # Panics
/// When it takes too long.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(LONGEST, future).await.expect("it hangs") })
}
