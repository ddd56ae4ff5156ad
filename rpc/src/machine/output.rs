//! The bytes that are to be written: frames one behind the other, long bodies without a copy.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Shorter bodies are copied behind their header.
const COPY_BELOW: usize = 4 << 10;
/// The most pieces in one write.
const PIECES: usize = 16;

/// The bytes that are to be written.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pieces: VecDeque<Bytes>,
    /// Those behind the pieces.
    tail: BytesMut,
    length: usize,
    /// The bytes that were written since the beginning.
    written_in_all: u64,
    /// Pieces that were written. They may be the program's own, so they are dropped without the lock.
    written: Vec<Bytes>,
}

impl Output {
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn written_in_all(&self) -> u64 {
        self.written_in_all
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Appends a copy of bytes.
    pub(super) fn copy(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Appends the first `length` of these bytes, without a copy if they are many.
    pub(super) fn push(&mut self, bytes: &mut Bytes, length: usize) {
        if length < COPY_BELOW {
            self.copy(&bytes[..length]);
            return bytes.advance(length);
        }
        if !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
        }
        self.length += length;
        self.pieces.push_back(bytes.split_to(length));
    }

    /// Returns the pieces that were written, to be taken.
    pub(super) fn written(&mut self) -> &mut Vec<Bytes> {
        &mut self.written
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.written.extend(self.pieces.drain(..));
        self.tail = BytesMut::new();
        self.length = 0;
    }

    /// Has `write` take the first bytes, as many as it wants.
    pub(crate) fn with_slices<R>(&self, write: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        let mut slices = [IoSlice::new(&[]); PIECES];
        let parts = self.pieces.iter().map(|piece| &piece[..]).chain([&self.tail[..]]);
        let mut count = 0;
        for (slice, part) in slices.iter_mut().zip(parts.filter(|part| !part.is_empty())) {
            *slice = IoSlice::new(part);
            count += 1;
        }
        write(&slices[..count])
    }

    /// Removes bytes that were written.
    pub(crate) fn advance(&mut self, mut written: usize) {
        self.length -= written;
        self.written_in_all += written as u64;
        while let Some(piece) = self.pieces.front_mut().filter(|_| written > 0) {
            let here = written.min(piece.len());
            piece.advance(here);
            written -= here;
            if piece.is_empty() {
                self.written.extend(self.pieces.pop_front());
            }
        }
        self.tail.advance(written);
        if self.length == 0 && self.tail.capacity() > COPY_BELOW {
            // An idle connection keeps nothing.
            self.tail = BytesMut::new();
        }
    }
}
