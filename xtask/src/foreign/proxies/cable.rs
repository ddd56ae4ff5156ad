//! A cable that delays and loses packets, without a module of the kernel: VXLAN carries them by UDP to this relay.

use std::io::{self, Read};
use std::net::UdpSocket;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use super::hosts::Host;

/// The time that a packet is on its way.
const DELAY: Duration = Duration::from_millis(10);
/// One packet of so many is lost.
const LOSS: u64 = 100;

/// The address of the far host over this cable.
pub(super) const FAR: &str = "10.79.0.2";

/// The cable, and the host in its middle.
pub(super) struct Cable {
    /// The process that delays and loses.
    relay: Child,
    /// The host of the relay.
    _middle: Host,
}

impl Cable {
    /// Connects two hosts.
    pub(super) fn plug(near: &Host, far: &Host) -> Result<Self, String> {
        let middle = Host::new()?;
        middle.plug(near, [("to-near", "10.78.1.1"), ("to-middle", "10.78.1.2")])?;
        middle.plug(far, [("to-far", "10.78.2.1"), ("to-middle", "10.78.2.2")])?;
        for host in [near, far] {
            // The relay would pass on packets whose checksum is left to the device.
            host.run("ethtool", "--offload to-middle tx off")?;
        }
        near.plug_carried("long", "10.79.0.1", "10.78.1.1")?;
        far.plug_carried("long", FAR, "10.78.2.1")?;
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = middle.command(program);
        command.args(["foreign", "proxies", "relay"]);
        command.args(["10.78.1.1:4789", "10.78.1.2:4789", "10.78.2.1:4789", "10.78.2.2:4789"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let relay = command.spawn().map_err(|error| format!("cannot start the relay: {error}"))?;
        Ok(Self { relay, _middle: middle })
    }

    /// Ends the cable. Returns a sentence with the counts of its packets.
    pub(super) fn unplug(mut self) -> Result<String, String> {
        drop(self.relay.stdin.take());
        let mut said = String::new();
        if let Some(mut output) = self.relay.stdout.take() {
            output.read_to_string(&mut said).map_err(|error| format!("the relay: {error}"))?;
        }
        self.relay.wait().map_err(|error| format!("the relay: {error}"))?;
        Ok(said.trim().to_owned())
    }
}

/// The packets of both directions.
#[derive(Default)]
struct Counters {
    /// Those that were sent on.
    passed: AtomicU64,
    /// Those that were not.
    lost: AtomicU64,
}

/// Relays between the two sockets until the standard input ends, and then prints the counts.
///
/// Each end is the address that the relay has on that side, and the one to which it sends there.
pub(super) fn relay(ends: [(&str, &str); 2]) -> io::Result<()> {
    let sockets = [UdpSocket::bind(ends[0].0)?, UdpSocket::bind(ends[1].0)?];
    let counters = Arc::new(Counters::default());
    for (from, to) in [(0, 1), (1, 0)] {
        let (source, target) = (sockets[from].try_clone()?, sockets[to].try_clone()?);
        let peer = ends[to].1.to_owned();
        let (dropped, passed) = (counters.clone(), counters.clone());
        let (queue, packets) = mpsc::channel();
        thread::spawn(move || {
            // Any number but 0: the same packets are lost in each run.
            let mut state = 0x9e37_79b9_7f4a_7c15 ^ to as u64;
            let mut packet = [0; 65536];
            while let Ok(length) = source.recv(&mut packet) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                if state.is_multiple_of(LOSS) {
                    dropped.lost.fetch_add(1, Ordering::Relaxed);
                } else if queue.send((Instant::now() + DELAY, packet[..length].to_vec())).is_err() {
                    break;
                }
            }
        });
        thread::spawn(move || deliver(&packets, &target, &peer, &passed));
    }
    io::stdin().read_to_end(&mut Vec::new())?;
    let [passed, lost] = [&counters.passed, &counters.lost].map(|counter| counter.load(Ordering::Relaxed));
    println!("{passed} packets passed, {lost} lost");
    Ok(())
}

/// Sends each packet when its time has come.
fn deliver(packets: &Receiver<(Instant, Vec<u8>)>, socket: &UdpSocket, peer: &str, counters: &Counters) {
    for (due, packet) in packets {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        // A packet that cannot be sent is lost as well.
        let sent = socket.send_to(&packet, peer);
        let counter = if sent.is_ok() { &counters.passed } else { &counters.lost };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
