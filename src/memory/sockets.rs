//! The calls on a TCP socket that need its descriptor: the two that work on device-visible memory in place, with what stands in for
//! them where bytes are copied, in a simulated network and for a capture; and the kernel's view of a connection.

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use bytes::BufMut;
use smallvec::SmallVec;

use super::Slice;
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

/// The maximum number of entries of one system call. Linux allows 1024.
const MOST: usize = 64;

/// A destination of received bytes.
pub(crate) enum Target<'a> {
    /// Device-visible memory.
    Memory(&'a Slice),
    /// A buffer of the provider's own.
    Bytes(&'a mut [u8]),
    /// At most so many bytes of a buffer that is filled from the front, and need not be initialised.
    Append(&'a mut (dyn BufMut + 'a), usize),
    /// A piece of a buffer that need not be initialised.
    Spare(SpareTarget<'a>),
}

/// A [`Spare`] that is a target.
pub(crate) struct SpareTarget<'a> {
    memory: &'a mut [MaybeUninit<u8>],
    received: &'a mut usize,
}

impl<'a> Target<'a> {
    /// Creates a target of the next bytes of a buffer, at most `most`. Received bytes are appended to the buffer.
    pub(crate) fn append(buffer: &'a mut (dyn BufMut + 'a), most: usize) -> Self {
        let length = most.min(buffer.chunk_mut().len());
        Self::Append(buffer, length)
    }
}

/// A piece of the spare part of a buffer, which need not be initialised.
pub(crate) struct Spare<'a> {
    memory: &'a mut [MaybeUninit<u8>],
    /// The number of its first bytes that [`receive`] or [`scatter`] has written.
    received: usize,
}

impl<'a> Spare<'a> {
    /// Cuts the spare part of a buffer into pieces of these lengths, as far as it lasts.
    pub(crate) fn cut(
        buffer: &'a mut (dyn BufMut + 'a),
        lengths: impl Iterator<Item = usize>,
    ) -> impl Iterator<Item = Self> {
        // SAFETY: only initialised bytes are written to it, by `receive` and `scatter`.
        let mut rest = unsafe { buffer.chunk_mut().as_uninit_slice_mut() };
        lengths.map(move |length| {
            let length = length.min(rest.len());
            let (memory, behind) = std::mem::take(&mut rest).split_at_mut(length);
            rest = behind;
            Self { memory, received: 0 }
        })
    }

    /// Returns it as a target of one read.
    pub(crate) fn target(&mut self) -> Target<'_> {
        Target::Spare(SpareTarget { memory: self.memory, received: &mut self.received })
    }

    /// Returns the bytes that it has received.
    pub(crate) fn received(&self) -> &[u8] {
        let received: *const [MaybeUninit<u8>] = &raw const self.memory[..self.received];
        // SAFETY: `received` is 0, or the number of the first bytes that `receive` or `scatter` has written, which are initialised
        // then; and they are borrowed with `self`.
        unsafe { &*(received as *const [u8]) }
    }
}

/// The bytes that the first pieces of the spare part of a buffer have received, without a gap, and that are not part of it yet.
pub(crate) struct Received {
    start: *const MaybeUninit<u8>,
    length: usize,
}

impl Received {
    /// Creates that of these pieces.
    pub(crate) fn of(pieces: &[Spare<'_>]) -> Self {
        let start = pieces.first().map_or(std::ptr::null(), |piece| piece.memory.as_ptr());
        let mut length = 0;
        for piece in pieces {
            if piece.memory.as_ptr() != start.wrapping_add(length) {
                break;
            }
            length += piece.received;
            if piece.received < piece.memory.len() {
                break;
            }
        }
        Self { start, length }
    }

    /// Makes the next `length` bytes part of the buffer that the pieces are of. Returns false, with nothing changed, if they have not
    /// been received, or it is another buffer.
    pub(crate) fn append_to(&mut self, buffer: &mut dyn BufMut, length: usize) -> bool {
        let chunk = buffer.chunk_mut();
        if length > self.length.min(chunk.len()) || chunk.as_mut_ptr().cast_const() != self.start.cast() {
            return false;
        }
        // SAFETY: the spare part begins with these bytes, as its address says, and all of them were received.
        unsafe { buffer.advance_mut(length) };
        (self.start, self.length) = (self.start.wrapping_add(length), self.length - length);
        true
    }
}

/// A source of bytes to send.
pub(crate) enum Piece<'a> {
    /// Device-visible memory: these bytes of the slice, as far as it has them.
    Memory { slice: &'a Slice, part: Range<usize> },
    /// A buffer of the provider's own.
    Bytes(&'a [u8]),
}

/// Checks that every target may be written.
fn check(targets: &[Target<'_>]) -> io::Result<()> {
    let forbidden = |target: &Target<'_>| match target {
        Target::Memory(slice) => !slice.is_writable() || !slice.is_host_mapped(),
        Target::Bytes(_) | Target::Append(..) => false,
        Target::Spare(_) => false,
    };
    if targets.iter().any(forbidden) { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
}

/// Returns the number of bytes that the targets have room for.
pub(crate) fn room(targets: &[Target<'_>]) -> usize {
    let lengths = targets.iter().map(|target| match target {
        Target::Memory(slice) => slice.length,
        Target::Bytes(bytes) => bytes.len(),
        Target::Append(_, length) => *length,
        Target::Spare(spare) => spare.memory.len(),
    });
    lengths.sum()
}

/// Copies bytes into the targets, in order, and returns how many had room. [`receive`] does so with the bytes of a
/// socket.
///
/// # Errors
/// `PermissionDenied` for memory that may not be written.
pub(crate) fn scatter(bytes: &[u8], targets: &mut [Target<'_>]) -> io::Result<usize> {
    check(targets)?;
    let mut rest = bytes;
    for target in targets {
        let count = match target {
            Target::Memory(slice) => slice.write(0, &rest[..rest.len().min(slice.length)]),
            Target::Bytes(place) => {
                let count = rest.len().min(place.len());
                place[..count].copy_from_slice(&rest[..count]);
                count
            }
            Target::Append(buffer, length) => {
                let count = rest.len().min(*length);
                buffer.put_slice(&rest[..count]);
                count
            }
            Target::Spare(SpareTarget { memory, received }) => {
                let count = rest.len().min(memory.len());
                for (place, byte) in memory.iter_mut().zip(&rest[..count]) {
                    place.write(*byte);
                }
                **received = count;
                count
            }
        };
        rest = &rest[count..];
    }
    Ok(bytes.len() - rest.len())
}

/// Appends at most `room` bytes of the pieces, in order, and returns how many. [`send`] does so for a socket.
///
/// # Errors
/// `EFAULT` if not even the first piece is in host memory.
pub(crate) fn gather<'a>(
    pieces: impl Iterator<Item = Piece<'a>>,
    room: usize,
    into: &mut impl BufMut,
) -> io::Result<usize> {
    let mut done = 0;
    for piece in pieces {
        match piece {
            Piece::Memory { slice, .. } if !slice.is_host_mapped() => {
                let fault = || io::Error::from_raw_os_error(libc::EFAULT);
                return if done > 0 { Ok(done) } else { Err(fault()) };
            }
            Piece::Memory { slice, part } => {
                done += slice.part(part.start, part.len()).append_to(room - done, into)
            }
            Piece::Bytes(bytes) => {
                let count = bytes.len().min(room - done);
                into.put_slice(&bytes[..count]);
                done += count;
            }
        }
    }
    Ok(done)
}

/// Receives into the targets, in order, by readv(2); 0 is the end of the stream.
///
/// # Errors
/// The errors of the system call, including `WouldBlock`; `PermissionDenied` for memory that may not be written.
pub(crate) fn receive(socket: BorrowedFd<'_>, targets: &mut [Target<'_>]) -> io::Result<usize> {
    check(targets)?;
    let entries: SmallVec<[libc::iovec; 4]> = targets
        .iter_mut()
        .take(MOST)
        .map(|target| match target {
            Target::Memory(slice) => entry(slice.address(0), slice.length),
            Target::Bytes(bytes) => entry(bytes.as_mut_ptr(), bytes.len()),
            Target::Append(buffer, length) => {
                let chunk = buffer.chunk_mut();
                entry(chunk.as_mut_ptr(), chunk.len().min(*length))
            }
            Target::Spare(spare) => entry(spare.memory.as_mut_ptr().cast(), spare.memory.len()),
        })
        .collect();
    // SAFETY: every entry is a live range: a slice of an allocation that is borrowed for the call, a
    // `&mut [u8]`, or the writable part of a buffer, or a piece of it, that is borrowed exclusively. Shared memory that is not frozen is
    // never referenced by safe code, only copied by atomics, so the kernel may write it at any time. The count is at most `MOST`, and
    // the descriptor is open while borrowed.
    let received = checked(|| unsafe {
        libc::readv(socket.as_raw_fd(), entries.as_ptr(), entries.len() as libc::c_int)
    })?;
    let mut left = received;
    for (target, entry) in targets.iter_mut().zip(&entries) {
        let count = left.min(entry.iov_len);
        left -= count;
        match target {
            // SAFETY: the call has written so many bytes to the start of the writable part, which is at least as long.
            Target::Append(buffer, _) => unsafe { buffer.advance_mut(count) },
            Target::Spare(spare) => *spare.received = count,
            Target::Memory(_) | Target::Bytes(_) => {}
        }
    }
    Ok(received)
}

/// Sends the pieces, in order, by sendmsg(2) without SIGPIPE; returns how many bytes the socket took.
///
/// # Errors
/// The errors of the system call, including `WouldBlock`.
pub(crate) fn send<'a>(socket: BorrowedFd<'_>, pieces: impl Iterator<Item = Piece<'a>>) -> io::Result<usize> {
    // Not collected, which would move the list.
    let mut entries = SmallVec::<[libc::iovec; MOST]>::new();
    entries.extend(pieces.take(MOST).map(|piece| match piece {
        // Memory of another device cannot be sent: null makes the call fail.
        Piece::Memory { slice, part } if !slice.is_host_mapped() => entry(std::ptr::null_mut(), part.len()),
        Piece::Memory { slice, part } => {
            let start = part.start.min(slice.length);
            entry(slice.address(start), part.end.min(slice.length).saturating_sub(start))
        }
        Piece::Bytes(bytes) => entry(bytes.as_ptr().cast_mut(), bytes.len()),
    }));
    // SAFETY: an all-zero `msghdr` is valid: no name, no control data, no flags.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = entries.as_mut_ptr();
    message.msg_iovlen = entries.len();
    // SAFETY: every entry is a live range for the duration of the call (see `receive`), which only reads it, or
    // null, for which the call fails.
    checked(|| unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) })
}

fn entry(base: *mut u8, length: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast(), iov_len: length }
}

/// Repeats an interrupted call and turns -1 into the error.
fn checked(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(length) => return Ok(length),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use tokio::io::ReadBuf;

    use super::*;

    // The received bytes, and no others, are appended to a buffer that is not initialised.
    #[test]
    fn a_buffer_is_appended_to() {
        let (mut peer, socket) = UnixStream::pair().expect("sockets");
        let mut buffer = Vec::with_capacity(64);
        buffer.push(b'a');
        for (sent, length) in [(&b"bcdefg"[..], 4), (b"h", 4), (b"ijkl", 0)] {
            peer.write_all(sent).expect("written");
            let (before, mut behind) = (buffer.len(), [0; 8]);
            let mut targets = [Target::append(&mut buffer, length), Target::Bytes(&mut behind)];
            let received = receive(socket.as_fd(), &mut targets).expect("received");
            assert_eq!(received, sent.len());
            let (appended, rest) = sent.split_at(length.min(sent.len()));
            assert_eq!((&buffer[before..], &behind[..rest.len()]), (appended, rest));
        }
        assert_eq!(buffer, b"abcdeh");
        let mut targets = [Target::append(&mut buffer, 2), Target::Bytes(&mut [])];
        assert_eq!((room(&targets), scatter(b"fgh", &mut targets).expect("copied")), (2, 2));
        assert_eq!(buffer, b"abcdehfg");
    }

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

    // What the pieces of a room have received is appended in order, as far as there is no gap, and to this room alone.
    #[test]
    fn pieces_of_a_room_are_appended_as_far_as_they_were_received() {
        let (mut here, there) = UnixStream::pair().expect("sockets");
        for (sent, in_front) in [(0, 0), (2, 2), (3, 3), (5, 3), (9, 7), (20, 12)] {
            let (mut room, mut other) = ([MaybeUninit::uninit(); 12], [MaybeUninit::uninit(); 12]);
            let (mut room, mut other) = (ReadBuf::uninit(&mut room), ReadBuf::uninit(&mut other));
            let mut gap = [0; 2];
            here.write_all(&b"abcdefghijklmnopqrst"[..sent]).expect("sent");
            let mut pieces: Vec<_> = Spare::cut(&mut room, [3, 4, 100, 1].into_iter()).collect();
            assert_eq!(pieces.iter().map(|piece| piece.memory.len()).collect::<Vec<_>>(), [3, 4, 5, 0]);
            if sent > 0 {
                let [first, second, rest @ ..] = &mut pieces[..] else { panic!("four pieces") };
                let mut targets = vec![first.target(), Target::Bytes(&mut gap), second.target()];
                targets.extend(rest.iter_mut().map(Spare::target));
                assert_eq!(receive(there.as_fd(), &mut targets).expect("received"), sent.min(14));
            }
            let all = &b"abcfghijklmn"[..in_front];
            assert_eq!(pieces.iter().flat_map(|piece| piece.received().to_vec()).collect::<Vec<_>>(), all);
            let mut received = Received::of(&pieces);
            drop(pieces);
            assert!(!received.append_to(&mut room, in_front + 1), "more than was received");
            assert!(in_front == 0 || !received.append_to(&mut other, 1), "another room");
            let (first, second) = (in_front / 2, in_front - in_front / 2);
            assert!(received.append_to(&mut room, first) && received.append_to(&mut room, second));
            assert_eq!((room.filled(), other.filled().len()), (all, 0));
            if sent > 14 {
                let mut rest = [0; 6];
                receive(there.as_fd(), &mut [Target::Bytes(&mut rest)]).expect("received");
            }
        }
    }
}
