//! A relay of TCP connections to an end of this process, as a path that is slow or that breaks.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

/// The bytes that pass at once: the payload of a frame of Ethernet.
const FRAME: usize = 1448;
/// The time between two looks at what the kernel still has to deliver.
const PAUSE: Duration = Duration::from_millis(1);

/// How a path treats what is sent over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// So many bytes a second pass, in each direction.
    Slow(u32),
    /// Bytes pass as they come, until the number of [`Relay::cut_after`].
    Fast,
}

/// A relay, which runs on a thread of its own until the process ends.
pub(super) struct Relay {
    /// The address that it relays from.
    pub(super) address: SocketAddr,
    left: Arc<AtomicUsize>,
}

impl Relay {
    /// Starts a relay to this address.
    pub(super) fn start(to: SocketAddr, path: Path) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let (address, left) = (listener.local_addr()?, Arc::new(AtomicUsize::new(usize::MAX)));
        let relay = Self { address, left: left.clone() };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        thread::spawn(move || runtime.block_on(run(listener, to, path, left)));
        Ok(relay)
    }

    /// Resets the connection after so many more bytes towards the end that listens, when these have arrived there.
    pub(super) fn cut_after(&self, bytes: usize) {
        self.left.store(bytes, Ordering::SeqCst);
    }

    /// Lets everything pass again, over the next connection.
    pub(super) fn heal(&self) {
        self.cut_after(usize::MAX);
    }
}

/// Relays every connection.
async fn run(
    listener: std::net::TcpListener,
    to: SocketAddr,
    path: Path,
    left: Arc<AtomicUsize>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (from, _) = listener.accept().await?;
        let to = TcpStream::connect(to).await?;
        tokio::spawn(connection(from, to, path, left.clone()));
    }
}

/// Relays one connection, until both directions have ended or the path is cut.
async fn connection(
    mut from: TcpStream,
    mut to: TcpStream,
    path: Path,
    left: Arc<AtomicUsize>,
) -> io::Result<()> {
    let ports = [to.local_addr()?.port(), to.peer_addr()?.port()];
    for socket in [&from, &to] {
        socket.set_nodelay(true)?;
    }
    let ((mut one, mut answers), (mut back, mut other)) = (from.split(), to.split());
    let unlimited = AtomicUsize::new(usize::MAX);
    let there = copy(&mut one, &mut other, path, &left);
    let here = copy(&mut back, &mut answers, path, &unlimited);
    tokio::try_join!(there, here).map(drop).or_else(|error| match error.kind() {
        io::ErrorKind::QuotaExceeded => Ok(()),
        _ => Err(error),
    })?;
    if left.load(Ordering::SeqCst) == 0 {
        while has_unacknowledged(ports)? {
            tokio::time::sleep(PAUSE).await;
        }
        for socket in [from, to] {
            socket.set_zero_linger()?;
        }
    }
    Ok(())
}

/// Copies one direction to its end. Fails with `QuotaExceeded` when no more bytes may pass.
async fn copy(
    from: &mut ReadHalf<'_>,
    to: &mut WriteHalf<'_>,
    path: Path,
    left: &AtomicUsize,
) -> io::Result<()> {
    let mut bytes = vec![0; if path == Path::Fast { super::bytes::BULK } else { FRAME }];
    let mut free_at = Instant::now();
    loop {
        let read = from.read(&mut bytes).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        if let Path::Slow(rate) = path {
            // tokio's timer has a resolution of a millisecond, in which many frames pass. Only the relay has this thread.
            let now = Instant::now();
            thread::sleep(free_at.saturating_duration_since(now));
            free_at = free_at.max(now) + Duration::from_secs(1).mul_f64(read as f64 / f64::from(rate));
        }
        // The limit may have been set since the read began.
        let may = left.load(Ordering::SeqCst);
        let passes = read.min(may);
        to.write_all(&bytes[..passes]).await?;
        if may != usize::MAX {
            left.fetch_sub(passes, Ordering::SeqCst);
            if passes == may {
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
        }
        // The other direction has its turn.
        tokio::task::yield_now().await;
    }
}

/// Whether the kernel has bytes of the connection with these ports that the peer's kernel has not acknowledged.
fn has_unacknowledged(ports: [u16; 2]) -> io::Result<bool> {
    let table = fs::read_to_string("/proc/net/tcp")?;
    Ok(table.lines().any(|line| is_unacknowledged(line, ports)))
}

/// The same of one line: `sl local_address rem_address st tx_queue:rx_queue`.
fn is_unacknowledged(line: &str, ports: [u16; 2]) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, local, remote, _, queues, ..] = words[..] else { return false };
    let is_at = |place: &str, port| place.ends_with(&format!(":{port:04X}"));
    is_at(local, ports[0]) && is_at(remote, ports[1]) && !queues.starts_with("00000000:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_flight_are_found_by_both_ports() {
        let line = |queues| {
            format!("   1: 0100007F:1F90 0100007F:C001 01 {queues} 01:00000014 00000000     0        0 1234")
        };
        assert!(is_unacknowledged(&line("00010000:00000000"), [0x1F90, 0xC001]));
        assert!(!is_unacknowledged(&line("00010000:00000000"), [0x1F91, 0xC001]));
        assert!(!is_unacknowledged(&line("00010000:00000000"), [0x1F90, 0xC002]));
        assert!(!is_unacknowledged(&line("00000000:00010000"), [0x1F90, 0xC001]));
    }
}
