//! The acknowledgements of the peer's kernel.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

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

/// Returns the time since the last acknowledgement or data from the peer's kernel on this TCP socket; `None` unless
/// this kernel repeats what it sent since: segments, or the probes of a peer that has no room (`TCP_INFO`, tcp(7)).
pub(crate) fn unanswered(socket: BorrowedFd<'_>) -> io::Result<Option<Duration>> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which has so many, and the descriptor is open while
    // borrowed.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if outcome < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it consists of integers, for which zeros are values, too.
    let info = unsafe { info.assume_init() };
    // A single probe may be on its way, and the next one follows only when it got no answer.
    let repeats = info.tcpi_retransmits > 0 || info.tcpi_probes > 1;
    // Data that acknowledges nothing new does not count as an acknowledgement.
    let heard = info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv);
    Ok(repeats.then(|| Duration::from_millis(heard.into())))
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
