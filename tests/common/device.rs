//! The device that a test runs on: the soft provider over TCP or over a simulated network, or in the guest machine a kernel
//! driver.
//!
//! A module with a line `Runs on: soft, sim, rxe, siw` in its header runs on each of these devices; the variable
//! `TOKIO_RDMA_TEST_DEVICE` names the device. A module without that line is about the soft provider, on the host.

use std::env;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{Adapter, Connector, Listener, Provider};

use super::{connected, listening_at, within};

/// Names the device; without it, this is the host and the soft provider.
const DEVICE: &str = "TOKIO_RDMA_TEST_DEVICE";

/// The place where a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The soft provider, on the loopback interface.
    Soft,
    /// The soft provider, on a simulated network.
    Sim,
    /// `rdma_rxe`: RoCE, in the kernel.
    Rxe,
    /// `siw`: iWARP, in the kernel.
    Siw,
    /// The device of `tests/fake`, in the memory of this process: RoCE, or InfiniBand, which behaves in the same way.
    Fake,
    /// The same device as a card that speaks iWARP.
    FakeIwarp,
}

/// The device and its addresses, as the environment says.
static UNDER_TEST: LazyLock<(Device, [IpAddr; 2])> = LazyLock::new(|| {
    let (device, name, own) = match env::var(DEVICE).as_deref() {
        Err(_) | Ok("soft") => return (Device::Soft, ["127.0.0.1", "::1"].map(address)),
        // The environment says nothing of its addresses: it is in memory.
        Ok("sim") => return (Device::Sim, ["10.79.0.1", "fd79::1"].map(address)),
        Ok("rxe") => (Device::Rxe, "RXE", ["10.77.0.1", "fd77::1"]),
        Ok("siw") => (Device::Siw, "SIW", ["10.78.0.1", "fd78::1"]),
        // It knows what it was told to be.
        Ok("fake") => {
            let device = match fake_control::tell("dress") {
                Ok(0 | 1) => Device::Fake,
                Ok(2) => Device::FakeIwarp,
                other => panic!("the device of tests/fake is not loaded: {other:?}"),
            };
            return (device, ["127.0.0.1", "::1"].map(address));
        }
        Ok(other) => panic!("{DEVICE} is {other:?}"),
    };
    let names = [format!("TOKIO_RDMA_{name}_ADDR"), format!("TOKIO_RDMA_{name}_ADDR6")];
    let [v4, v6] =
        [0, 1].map(|i| env::var(&names[i]).map_or_else(|_| address(own[i]), |text| address(&text)));
    (device, [v4, v6])
});

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

impl Device {
    /// The device of this run.
    pub fn under_test() -> Self {
        UNDER_TEST.0
    }

    /// Whether the soft provider serves it.
    pub fn is_soft(self) -> bool {
        matches!(self, Self::Soft | Self::Sim)
    }

    /// Whether it is that of `tests/fake`.
    pub fn is_fake(self) -> bool {
        matches!(self, Self::Fake | Self::FakeIwarp)
    }

    /// Whether its connections are sockets of this machine's kernel.
    pub fn has_sockets(self) -> bool {
        self == Self::Soft
    }

    /// The provider that serves it, asked for by name.
    pub fn provider(self) -> Provider {
        let provider = match self {
            Self::Soft => Provider::soft(),
            Self::Sim => Ok(simulated(SoftConfig::default())),
            Self::Rxe | Self::Siw | Self::Fake | Self::FakeIwarp => Provider::verbs(),
        };
        provider.expect("the machine has the device")
    }

    /// The soft provider with settings, over the network of the device.
    pub(super) fn soft_with(self, config: SoftConfig) -> Provider {
        if self == Self::Sim { simulated(config) } else { Provider::soft_with(config) }
    }
}

/// The provider of the device `sim`.
fn simulated(config: SoftConfig) -> Provider {
    #[cfg(feature = "sim")]
    return super::sim::host().provider_with(config);
    #[cfg(not(feature = "sim"))]
    panic!("the device `sim` needs the feature `sim`: {config:?}");
}

/// Lets so much time pass; at once where no other clock than that of the runtime matters.
pub async fn pass(time: Duration) {
    if Device::under_test() == Device::Soft {
        tokio::time::pause();
        tokio::time::sleep(time).await;
        tokio::time::resume();
    } else {
        tokio::time::sleep(time).await;
    }
}

/// Lets real time pass, in a test that waits for other threads: virtual time would not wait for them. Only before the device
/// is used.
pub fn run_clock() {
    #[cfg(feature = "sim")]
    if Device::under_test() == Device::Sim {
        super::sim::run_clock();
    }
}

/// Says that the test is skipped, and why. A reason that begins with "needs" is one of the machine; a test that is skipped for a
/// reason of the device must be in `xtask/skips.txt`.
pub fn skipped(why: &str) {
    eprintln!("skipped: {why}");
}

/// Returns whether the tests run on this device. Says why the test is skipped then.
pub fn skips(device: Device, why: &str) -> bool {
    let skips = Device::under_test() == device;
    if skips {
        skipped(why);
    }
    skips
}

/// Its IPv4 address.
pub fn v4() -> IpAddr {
    UNDER_TEST.1[0]
}

/// Its IPv6 address.
pub fn v6() -> IpAddr {
    UNDER_TEST.1[1]
}

/// Both, for the tests that run on each family.
pub fn both() -> [IpAddr; 2] {
    UNDER_TEST.1
}

/// The adapter that has this address.
pub fn adapter_at(ip: IpAddr) -> Adapter {
    let provider = Device::under_test().provider();
    let id = provider.resolve(ip).expect("an adapter has the address");
    provider.open(id).expect("opened")
}

/// The device's adapter, and where it has settings that matter to every byte, it with those; each with its name.
pub fn variants() -> Vec<(Adapter, &'static str)> {
    if !Device::under_test().is_soft() {
        return vec![(super::adapter(), "as it is")];
    }
    let crc = |crc| super::adapter_with(SoftConfig::default().crc(crc));
    vec![(crc(false), "without CRC"), (crc(true), "with CRC")]
}

/// Whether the machine is an emulated one, in which everything takes ten times as long or more.
pub fn is_emulated() -> bool {
    !Device::under_test().is_soft() && !Device::under_test().is_fake()
}

/// Far beyond what anything here takes: a test that gets this far hangs.
pub fn patience() -> Duration {
    Duration::from_secs(if is_emulated() { 120 } else { 30 })
}

/// How often to do something of which the point is that it is often, and `least` times at the least.
pub fn often(count: usize, least: usize) -> usize {
    if is_emulated() { (count / 20).max(least) } else { count }
}

/// An address at which nothing listens.
pub fn nobody(ip: IpAddr) -> SocketAddr {
    // Below the ports that anybody picks, and each one once in a process. On a device it is a port space of its own, or one
    // where what is free for TCP need not be free.
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    let next = NEXT.get_or_init(|| {
        // Processes that start one after the other begin far apart: by the golden ratio of all ports.
        let hash = u64::from(std::process::id().wrapping_mul(0x9e37_79b9));
        AtomicU16::new(u16::try_from((hash * u64::from(COUNT)) >> 32).expect("less than the count"))
    });
    loop {
        let address = SocketAddr::new(ip, FIRST + next.fetch_add(1, Ordering::Relaxed) % COUNT);
        if !Device::under_test().has_sockets() || TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// Something that is kept for as long as an address is to be in the state that it was made for.
pub enum Holder {
    Tcp(TcpListener),
    Socket(Socket),
    Listener(Listener),
    Connector(Connector),
}

/// A peer that never answers a connection request: on soft it is TCP that takes it, elsewhere a listener that nobody
/// asks.
pub fn silent(ip: IpAddr) -> (Holder, SocketAddr) {
    if Device::under_test().has_sockets() {
        let listener = TcpListener::bind((ip, 0)).expect("a port");
        let address = listener.local_addr().expect("its address");
        return (Holder::Tcp(listener), address);
    }
    let (listener, address) = listening_at(&adapter_at(ip), ip);
    (Holder::Listener(listener), address)
}

/// An address that is taken, and at which nobody listens.
pub fn deaf(ip: IpAddr) -> (Holder, SocketAddr) {
    if Device::under_test().has_sockets() {
        let domain = if ip.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
        let socket = Socket::new(domain, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::new(ip, 0).into()).expect("bound");
        let address = socket.local_addr().expect("its address").as_socket().expect("an IP address");
        return (Holder::Socket(socket), address);
    }
    let connector = adapter_at(ip).connector();
    connector.bind(SocketAddr::new(ip, 0)).expect("bound");
    let address = connector.local_addr().expect("bound");
    (Holder::Connector(connector), address)
}

/// An address of the device's network that no host has.
///
/// The soft provider's own network has none: all of 127.0.0.0/8 is this host.
pub fn absent() -> Option<SocketAddr> {
    let IpAddr::V4(own) = v4() else { return None };
    let [a, b, c, _] = own.octets();
    (!own.is_loopback()).then(|| SocketAddr::from(([a, b, c, 77], 7)))
}

/// The last events of a simulated network, a line each; empty on other devices.
pub fn last_events() -> String {
    #[cfg(feature = "sim")]
    if Device::under_test() == Device::Sim {
        return super::sim::last_events();
    }
    String::new()
}

/// Returns when what this thread has done to its connections has reached their peers: what is done later arrives later.
pub async fn settled() {
    if Device::under_test().has_sockets() {
        let listener = TcpListener::bind((v4(), 0)).expect("a port");
        let address = listener.local_addr().expect("its address");
        let other = std::thread::spawn(move || listener.accept().map(drop));
        std::net::TcpStream::connect(address).expect("connected");
        tokio::task::yield_now().await;
        return other.join().expect("no panic").expect("accepted");
    }
    // A whole connection comes and goes.
    let pair = connected(&super::adapter()).await;
    within(pair.active.connection.disconnect()).await.expect("disconnected");
    within(pair.passive.connection.disconnected()).await;
}
