//! The peer's end of the stream, with the bytes that wait to be written and those that have come.

use std::collections::VecDeque;
use std::io::ErrorKind;

use futures::FutureExt;
use tokio::io::AsyncWriteExt;
use tokio_rdma::sim::TcpStream;

/// A write takes at least one of so many parts of the queued bytes.
const LEAST_PART: usize = 8;

pub(crate) struct Peer {
    stream: Option<TcpStream>,
    outgoing: VecDeque<u8>,
    /// The number of bytes of one write; 0 for all.
    piece: usize,
    pub(crate) incoming: Vec<u8>,
    /// It does not read for now.
    pub(crate) deaf: bool,
    /// Nothing more will come.
    pub(crate) ended: bool,
    /// Something was written since the start-up.
    pub(crate) spoke: bool,
}

impl Peer {
    pub(crate) fn new(stream: TcpStream, piece: usize) -> Self {
        Self {
            stream: Some(stream),
            outgoing: VecDeque::new(),
            piece,
            incoming: Vec::new(),
            deaf: false,
            ended: false,
            spoke: false,
        }
    }

    /// The start-up is over.
    pub(crate) fn begin(&mut self, piece: usize) {
        self.piece = piece;
        self.spoke = false;
    }

    pub(crate) fn queue(&mut self, bytes: &[u8]) {
        if self.stream.is_some() {
            self.outgoing.extend(bytes);
        }
    }

    /// Writes and reads as much as the stream allows. Returns whether that was anything.
    pub(crate) fn transfer(&mut self) -> bool {
        let Some(stream) = &self.stream else { return false };
        let mut moved = false;
        let bytes = self.outgoing.make_contiguous();
        let piece = if self.piece == 0 {
            bytes.len()
        } else {
            self.piece.max(bytes.len() / LEAST_PART).min(bytes.len())
        };
        if piece > 0 {
            match stream.try_write(&bytes[..piece]) {
                Ok(written) => {
                    self.outgoing.drain(..written);
                    self.spoke = true;
                    moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.outgoing.clear(),
            }
        }
        while !self.ended && !self.deaf {
            let known = self.incoming.len();
            self.incoming.resize(known + 4096, 0);
            let outcome = stream.try_read(&mut self.incoming[known..]);
            self.incoming.truncate(known + outcome.as_ref().copied().unwrap_or(0));
            match outcome {
                Ok(0) => self.ended = true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.ended = true,
            }
            moved = true;
        }
        moved
    }

    /// Writes no more.
    pub(crate) fn finish(&mut self) {
        self.outgoing.clear();
        if let Some(stream) = &mut self.stream {
            // It can only fail if the stream is over.
            let _ = stream.shutdown().now_or_never();
        }
    }

    /// Goes away, with a reset if `hard` or if something is unread.
    pub(crate) fn close(&mut self, hard: bool) {
        self.outgoing.clear();
        self.ended = true;
        if let Some(stream) = self.stream.take()
            && hard
        {
            stream.reset();
        }
    }
}
