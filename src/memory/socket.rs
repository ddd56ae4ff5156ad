//! The kernel's view of a TCP connection.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

#[cfg(feature = "inspect")]
use crate::inspect::TcpReport;

/// Returns the number of bytes that were written to this TCP socket and not acknowledged by the peer's kernel
/// (`SIOCOUTQ`, tcp(7)). An end of the stream that was sent and not acknowledged counts as one byte.
pub(crate) fn unacknowledged(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut queued: libc::c_int = 0;
    // SAFETY: the request writes one `int` to the address, which is valid for the call, and the descriptor is open
    // while borrowed.
    let outcome = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut queued) };
    if outcome < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(queued).unwrap_or(0))
}

/// The kernel's view of a TCP connection (`TCP_INFO`, tcp(7)): `struct tcp_info` of linux/tcp.h, in words of 32 bits. Fields that the
/// kernel does not have are 0.
pub(crate) struct TcpInfo([u32; 58]);

impl TcpInfo {
    /// Asks the kernel.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let mut words = [0; 58];
        let mut length = size_of_val(&words) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to `words`, which has so many and for which all bytes are values, and the
        // descriptor is open while borrowed.
        let outcome = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                words.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(words)) }
    }

    /// Returns `tcpi_state`, `tcpi_ca_state`, `tcpi_retransmits` and `tcpi_probes`.
    fn states(&self) -> [u8; 4] {
        self.0[0].to_ne_bytes()
    }

    /// Returns the time since the last acknowledgement or data from the peer's kernel; `None` unless this kernel repeats what it sent
    /// since: segments, or the probes of a peer that has no room.
    pub(crate) fn unanswered(&self) -> Option<Duration> {
        let [_, _, retransmits, probes] = self.states();
        // A single probe may be on its way, and the next one follows only when it got no answer.
        let repeats = retransmits > 0 || probes > 1;
        // Data that acknowledges nothing new does not count as an acknowledgement.
        repeats.then(|| self.since_acknowledged().min(self.since_received()))
    }

    fn milliseconds(&self, word: usize) -> Duration {
        Duration::from_millis(self.0[word].into())
    }

    /// Returns `tcpi_last_data_recv`.
    fn since_received(&self) -> Duration {
        self.milliseconds(13)
    }

    /// Returns `tcpi_last_ack_recv`.
    fn since_acknowledged(&self) -> Duration {
        self.milliseconds(14)
    }
}

#[cfg(feature = "inspect")]
impl TcpInfo {
    /// Returns the report for a snapshot. The caller knows how many bytes are not acknowledged.
    pub(crate) fn report(&self, unacknowledged: usize) -> TcpReport {
        // In the order of the kernel, from 1 on.
        const STATES: [&str; 12] = [
            "UNKNOWN",
            "ESTAB",
            "SYN-SENT",
            "SYN-RECV",
            "FIN-WAIT-1",
            "FIN-WAIT-2",
            "TIME-WAIT",
            "UNCONN",
            "CLOSE-WAIT",
            "LAST-ACK",
            "LISTEN",
            "CLOSING",
        ];
        let [state, _, retransmits, probes] = self.states();
        TcpReport {
            state: STATES.get(usize::from(state)).unwrap_or(&STATES[0]).to_string(),
            round_trip: Duration::from_micros(self.0[17].into()),
            round_trip_variance: Duration::from_micros(self.0[18].into()),
            unacknowledged,
            unsent: (self.0[36] as usize).min(unacknowledged),
            peer_window: self.0[57] as usize,
            retransmits: self.0[25],
            unanswered_probes: u32::from(retransmits.max(probes)),
            since_sent: self.milliseconds(11),
            since_received: self.since_received(),
            since_acknowledged: self.since_acknowledged(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn written_bytes_count_until_acknowledged() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let mut writer = TcpStream::connect(listener.local_addr().expect("its address")).expect("connected");
        let (mut reader, _) = listener.accept().expect("accepted");
        assert_eq!(unacknowledged(writer.as_fd()).expect("a TCP socket"), 0);
        writer.set_nonblocking(true).expect("non-blocking");
        let mut written = 0;
        while let Ok(length) = writer.write(&[1; 65536]) {
            written += length;
        }
        let queued = unacknowledged(writer.as_fd()).expect("a TCP socket");
        assert!(queued > 0 && queued <= written, "{queued} of {written}");
        let mut rest = vec![0; written];
        reader.read_exact(&mut rest).expect("all bytes");
        // The last acknowledgement may be delayed, and comes in any case.
        while unacknowledged(writer.as_fd()).expect("a TCP socket") > 0 {
            std::thread::yield_now();
        }
    }
}
