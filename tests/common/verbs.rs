//! Devices created by a test, the objects that the kernel lists for a process, and peers in separate processes.
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::sync::oneshot;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams};

use super::device::{Device, adapter_at, skipped};
use super::life::eventually;
use super::process::one_test;
use super::resources::listed;
use super::{End, Pair, listening_at, queue_pair, within};

/// The kernel driver that this run is about; says so when there is none.
pub fn driver() -> Option<&'static str> {
    match Device::under_test() {
        Device::Rxe => return Some("rxe"),
        Device::Siw => return Some("siw"),
        Device::Soft | Device::Sim | Device::Fake | Device::FakeIwarp => {
            eprintln!("skipped: needs the devices of the guest machine (cargo xtask guest)")
        }
    }
    None
}

/// Returns whether a device is tested, a kernel's or the fake one; says so where it is the soft provider.
pub fn is_device() -> bool {
    let tested = !Device::under_test().is_soft();
    if !tested {
        skipped("needs a device (cargo xtask test --filter fake)");
    }
    tested
}

/// Whether the kernel driver that this run is about is rxe; says why the test is skipped otherwise.
pub fn is_rxe(why: &str) -> bool {
    let driver = driver();
    if driver.is_some_and(|driver| driver != "rxe") {
        skipped(why);
    }
    driver == Some("rxe")
}

/// Tells the fake device a line; `None`, with a line that says so, where another device is tested.
pub fn fake(line: &str) -> Option<i64> {
    if !Device::under_test().is_fake() {
        eprintln!("skipped: needs the device of tests/fake (cargo xtask test --filter fake)");
        return None;
    }
    Some(fake_control::tell(line).expect("understood"))
}

/// Has the fake device behave again if the test fails: calls that it holds would keep its process from ending.
pub struct FakeReset(());

impl Drop for FakeReset {
    fn drop(&mut self) {
        if std::thread::panicking() {
            fake("reset");
        }
    }
}

/// Has the fake device behave, now and after a failure of the test; `None` as [`fake`].
pub fn fake_reset() -> Option<FakeReset> {
    fake("reset").map(|_| FakeReset(()))
}

/// Has the fake device hold the threads that call this. What is dropped in such a call is to be declared before the guard: it would hold
/// a test that fails, too.
#[must_use]
pub fn hold(call: &str) -> FakeReset {
    fake(&format!("hold {call}"));
    FakeReset(())
}

/// Whether the fake device is tested as a card that speaks iWARP; says so where it is not.
pub fn is_iwarp_card() -> bool {
    let tested = Device::under_test() == Device::FakeIwarp;
    if !tested {
        eprintln!("skipped: needs the iWARP card of tests/fake (cargo xtask test --filter fake)");
    }
    tested
}

/// Waits until nothing of the fake device is left.
pub async fn nothing_is_left() {
    for kind in ["qp", "cq", "srq", "mr", "mw", "pd", "channel", "context", "cm_id"] {
        eventually(kind, || fake(&format!("count {kind}")) == Some(0)).await;
    }
}

/// The error with which the fake device refuses a line.
pub fn refused(line: &str) -> io::Error {
    fake_control::tell(line).expect_err("refused")
}

/// Has an adapter make the completion queues that it keeps: for each of up to four threads of the runtime. Returns when it has no
/// other: a machine with one processor has one queue for all threads, and several queue pairs at a time need another one.
pub async fn make_completion_queues(adapter: &Adapter) {
    for _ in 0..4 {
        drop(queue_pair(adapter));
        eventually("the queue pair is gone", || !resources().iter().any(|line| line.starts_with("qp"))).await;
    }
}

/// Runs `program` with these arguments, one by one between the spaces.
pub fn run(program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split(' ')).output().expect(program);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {stderr}");
}

/// A network interface with a device over it. The other end of its cable is a host that never says a word.
pub struct Link {
    driver: &'static str,
    /// The network interface.
    pub name: String,
    /// The device.
    pub device: String,
    /// Its address.
    pub address: IpAddr,
    /// The address of the silent host.
    pub silent: IpAddr,
}

impl Link {
    pub fn new(driver: &'static str) -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // The leftovers of a process that was killed are not in the way of the next.
        let process = std::process::id() % 128;
        let name = format!("t{process}n{number}");
        let network = 128 + u8::try_from(process).expect("small");
        let host = |last| IpAddr::V4(Ipv4Addr::new(10, network, number, last));
        let link = Self {
            driver,
            device: format!("{driver}{name}"),
            address: host(1),
            silent: host(2),
            name: name.clone(),
        };
        run("ip", &format!("link add {name} type veth peer name {name}far"));
        run("ip", &format!("address add {}/24 dev {name}", link.address));
        // Resolved, so that packets go there; nobody reads them.
        run("ip", &format!("neigh add {} lladdr 02:00:00:00:00:77 dev {name}", link.silent));
        run("ip", &format!("link set {name}far up"));
        run("ip", &format!("link set {name} up"));
        link.add_device();
        link
    }

    pub fn add_device(&self) {
        run("rdma", &format!("link add {} type {} netdev {}", self.device, self.driver, self.name));
    }

    pub fn remove_device(&self) {
        run("rdma", &format!("link del {}", self.device));
    }

    /// Begins to remove the device. The drivers of the guest wait: the device goes when its last handle does.
    pub fn begin_to_remove(self: &Arc<Self>) -> oneshot::Receiver<()> {
        let link = self.clone();
        let (tell, told) = oneshot::channel();
        // Not of the runtime, whose end would wait for it whatever became of the test.
        std::thread::spawn(move || {
            link.remove_device();
            let _ = tell.send(());
        });
        told
    }

    pub fn open(&self) -> Adapter {
        adapter_at(self.address)
    }

    /// Cuts the ends of its connections off from each other, so that the driver does not notice it.
    pub fn cut(&self) {
        match self.driver {
            // `siw` notices that its interface goes down. Without the address its TCP finds no way.
            "siw" => run("ip", &format!("address del {}/24 dev {}", self.address, self.name)),
            _ => run("ip", &format!("link set {} down", self.name)),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Nobody waits: librdmacm keeps a device open until the process ends, unless it hears of the removal, and these
        // drivers take it away from nobody.
        let script = format!("rdma link del {}; ip link del {}", self.device, self.name);
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let _ = command.spawn();
    }
}

/// A connected pair on one adapter, at this address.
pub async fn connected_at(adapter: &Adapter, ip: IpAddr) -> Pair {
    connected_at_with(adapter, ip, ConnectParams::default(), AcceptParams::default()).await
}

/// The same with terms.
pub async fn connected_at_with(
    adapter: &Adapter,
    ip: IpAddr,
    connect: ConnectParams,
    accept: AcceptParams,
) -> Pair {
    let (active, passive) = (queue_pair(adapter), queue_pair(adapter));
    let (listener, address) = listening_at(adapter, ip);
    let connector = adapter.connector();
    let (ours, theirs) = within(async {
        tokio::join!(
            connector.connect_and_complete(&active, address, connect),
            listener.accept_next(&passive, accept),
        )
    })
    .await;
    Pair {
        active: End { queue_pair: active, connection: ours.expect("connected") },
        passive: End { queue_pair: passive, connection: theirs.expect("accepted") },
    }
}

/// The objects that the kernel holds for processes: a line for each, of any device. In the guest nobody has any but the test; and
/// the number that the kernel names is that of a thread, which may be gone.
pub fn resources() -> Vec<String> {
    let mut found = Vec::new();
    for kind in ["qp", "cm_id", "mr", "pd", "cq", "srq"] {
        let text = listed(kind);
        // The kernel's own have no number.
        let theirs = text.lines().filter(|line| line.contains(" pid "));
        found.extend(theirs.map(|line| format!("{kind} {line}")));
    }
    found
}

/// How many descriptors this process has open.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("a Linux system").count()
}

/// Returns when the kernel holds nothing for this process any more.
pub async fn nothing_held() {
    eventually("nothing is left", || resources().is_empty()).await;
}

/// One test at a time: they count what the process has.
pub fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number out of the environment, or this one.
pub fn amount(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |text| text.parse().expect("a number"))
}

const ROLE: &str = "TOKIO_RDMA_TEST_ROLE";
/// Marks what the other process says among what the test harness prints around it.
const MARK: &str = "peer says: ";

/// The role that this process was started for, and its argument.
pub fn role() -> Option<(String, String)> {
    let role = std::env::var(ROLE).ok()?;
    role.split_once(' ').map(|(role, argument)| (role.to_owned(), argument.to_owned()))
}

/// Says something to the process that gave this one its role.
#[allow(clippy::print_stdout, reason = "the other process reads it")]
pub fn say(what: &str) {
    println!("\n{MARK}{what}");
}

/// This program once more, to play a role in its test `child_role`. It is killed when this is dropped.
pub struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Runs the `child_role` of the module that says `module_path!()`, as this user if one is named.
    pub fn start(module: &str, role: &str, argument: &str, user: Option<u32>) -> Self {
        use std::os::unix::process::CommandExt;

        let mut command = one_test(module, "child_role");
        command.env(ROLE, format!("{role} {argument}"));
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("another process");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, output }
    }

    /// The next thing that it says.
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).expect("its output") > 0, "the process has left");
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim_end().to_owned();
            }
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }

    /// Stops it: its kernel goes on answering. Returns when none of its threads runs any more.
    pub fn freeze(&self) {
        let id = Pid::from_raw(self.child.id().cast_signed());
        kill(id, Signal::SIGSTOP).expect("a signal");
        let status = waitpid(id, Some(WaitPidFlag::WUNTRACED)).expect("its state");
        assert_eq!(status, WaitStatus::Stopped(id, Signal::SIGSTOP));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Long enough for a child that waits to be killed.
pub const FOREVER: Duration = Duration::from_secs(3600);
