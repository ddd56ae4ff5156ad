//! Pairs of proxies: for each server one beside the clients, and one beside the server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::hosts::{Host, Running, Usage, until};
use super::servers::PORTS;

/// The example, where a release build puts it.
const PROGRAM: &str = "target/release/examples/proxy";
/// What is added to the port of a server for that of its proxy.
const OFFSET: u16 = 10_000;
/// The longest that connections take to end: those that are closed and unread linger for some seconds.
const SETTLE: Duration = Duration::from_secs(60);
/// The descriptors that a proxy keeps after its first connection: those of the connector's adapter.
const KEPT: usize = 1;
/// The memory in kB that a proxy may have gained besides a half of what it had: the allocator keeps some of what was in use.
const SLACK: u64 = 16 << 10;

/// The protocol between two proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Middle {
    /// Streams of this crate.
    Rdma,
    /// TCP, to compare with.
    Tcp,
}

/// The hosts, and what is between them.
#[derive(Clone, Copy)]
pub(super) struct Route<'a> {
    /// The host of the clients.
    pub(super) near: &'a Host,
    /// The host of the servers.
    pub(super) far: &'a Host,
    /// The address of the far host.
    pub(super) to: &'a str,
    /// The folder with the output of the proxies.
    pub(super) folder: &'a Path,
}

/// Proxies between the clients and every server.
pub(super) struct Crossing<'a> {
    /// The hosts.
    route: Route<'a>,
    /// The protocol.
    middle: Middle,
    /// Those beside the clients.
    pub(super) near: Vec<Running>,
    /// Those beside the servers.
    pub(super) far: Vec<Running>,
}

impl<'a> Crossing<'a> {
    /// Starts the proxies.
    pub(super) fn start(route: Route<'a>, middle: Middle) -> Result<Self, String> {
        let mut crossing = Self { route, middle, near: Vec::new(), far: Vec::new() };
        crossing.start_far()?;
        crossing.start_near()?;
        Ok(crossing)
    }

    /// Starts those beside the servers, after those that run have ended.
    pub(super) fn start_far(&mut self) -> Result<(), String> {
        self.far.clear();
        for port in PORTS {
            let role = if self.middle == Middle::Rdma { "rdma-to-tcp" } else { "tcp-to-tcp" };
            let listen = format!("{}:{}", self.route.to, port + OFFSET);
            let command = [role, &listen, &format!("127.0.0.1:{port}")];
            let log = self.log("far", port);
            self.far.push(proxy(self.route.far, command, port + OFFSET, log)?);
        }
        Ok(())
    }

    /// Starts those beside the clients, after those that run have ended.
    pub(super) fn start_near(&mut self) -> Result<(), String> {
        self.near.clear();
        for port in PORTS {
            let role = if self.middle == Middle::Rdma { "tcp-to-rdma" } else { "tcp-to-tcp" };
            let command =
                [role, &format!("127.0.0.1:{port}"), &format!("{}:{}", self.route.to, port + OFFSET)];
            let log = self.log("near", port);
            self.near.push(proxy(self.route.near, command, port, log)?);
        }
        Ok(())
    }

    /// Returns the path of the output of a proxy.
    fn log(&self, side: &str, port: u16) -> PathBuf {
        self.route.folder.join(format!("{side}-{port}.log"))
    }

    /// Returns the resources of every proxy, the near ones first.
    pub(super) fn usages(&self) -> Vec<Usage> {
        self.near.iter().chain(&self.far).map(Running::usage).collect()
    }

    /// Returns the resources of the pair for one server.
    pub(super) fn pair(&self, port: u16) -> [Usage; 2] {
        let index = PORTS.iter().position(|each| *each == port).unwrap_or(0);
        [self.near[index].usage(), self.far[index].usage()]
    }

    /// Waits until the proxies have the descriptors and the memory that they had before.
    ///
    /// # Errors
    /// A sentence with what one of them still has after a minute.
    pub(super) fn settle(&self, before: &[Usage]) -> Result<(), String> {
        let excess = || {
            let pairs = self.usages().into_iter().zip(before).zip(PORTS.iter().cycle());
            let above = pairs.filter(|((now, before), _)| {
                now.descriptors > before.descriptors + KEPT || now.kib > before.kib * 3 / 2 + SLACK
            });
            let text = |((now, before), port): ((Usage, &Usage), &u16)| {
                let (now, before) = ((now.descriptors, now.kib), (before.descriptors, before.kib));
                format!("port {port}: {now:?} descriptors and kB, {before:?} before")
            };
            above.map(text).collect::<Vec<_>>()
        };
        if until(SETTLE, || excess().is_empty()) { Ok(()) } else { Err(excess().join("; ")) }
    }
}

/// Starts a proxy.
fn proxy(host: &Host, arguments: [&str; 3], port: u16, log: PathBuf) -> Result<Running, String> {
    let mut command = host.command(PROGRAM);
    command.args(["--connections", "4000", "--grace", "5"]).args(arguments);
    host.start(command, port, log)
}
