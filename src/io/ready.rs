//! The methods of tokio's `TcpStream` that take a shared reference: peeking, waiting until a read or a write is possible, and
//! reading and writing without waiting.

use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BufMut;
use futures::FutureExt;
use tokio::io::{AsyncRead, AsyncReadExt, Interest, ReadBuf, Ready};

use super::engine::Side;
use super::engine::StreamInner;
use super::stream::RdmaStream;

impl RdmaStream {
    /// Copies received bytes, which stay to be read. Waits until there are any. Returns 0 at the end of file.
    ///
    /// # Errors
    /// Those of a read.
    ///
    /// # Cancel safety
    /// Dropping the future loses no data.
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(buffer);
        self.end().peek(&mut buffer).await?;
        Ok(buffer.filled().len())
    }

    /// Copies received bytes like [`peek`](Self::peek), and returns their number.
    ///
    /// Only the waker of the last read, `poll_peek` or `poll_read_ready` is woken.
    ///
    /// # Errors
    /// Those of a read.
    pub fn poll_peek(&self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
        let before = buffer.remaining();
        ready!(self.end().poll_peek(cx, buffer))?;
        Poll::Ready(Ok(before - buffer.remaining()))
    }

    /// Waits until a read returns at once: data has arrived, or the stream has ended. Any number of tasks may wait.
    ///
    /// # Errors
    /// None. The read returns the error if the stream has ended.
    ///
    /// # Cancel safety
    /// Dropping the future loses no data.
    pub async fn readable(&self) -> io::Result<()> {
        self.end().ready(Side::Reader).await;
        Ok(())
    }

    /// Waits until a write returns at once: there is room, or the stream has ended. Any number of tasks may wait.
    ///
    /// # Errors
    /// None. The write returns the error if the stream has ended.
    ///
    /// # Cancel safety
    /// Dropping the future loses no data.
    pub async fn writable(&self) -> io::Result<()> {
        self.end().ready(Side::Writer).await;
        Ok(())
    }

    /// Waits until one of the directions of `interest` is ready. Any number of tasks may wait.
    ///
    /// | flag of the result | interest | meaning |
    /// |---|---|---|
    /// | `READABLE` | `READABLE` | as of [`readable`](Self::readable) |
    /// | `READ_CLOSED` | `READABLE` | the peer sends no more, but bytes that have arrived may be unread; or the stream is broken |
    /// | `WRITABLE` | `WRITABLE` | as of [`writable`](Self::writable) |
    /// | `WRITE_CLOSED` | `WRITABLE` | the peer takes no more, because it has closed the stream or both directions are shut down; or the stream is broken |
    /// | `ERROR` | `ERROR` | the stream is broken |
    ///
    /// There are no urgent data, so `Interest::PRIORITY` alone is never ready.
    ///
    /// # Errors
    /// None. The read or the write returns the error if the stream has ended.
    ///
    /// # Cancel safety
    /// Dropping the future loses no data.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        Ok(self.end().readiness(interest).await)
    }

    /// Waits like [`readable`](Self::readable).
    ///
    /// Only the waker of the last read, `poll_peek` or `poll_read_ready` is woken.
    ///
    /// # Errors
    /// None.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end().poll_ready(cx, Side::Reader).map(Ok)
    }

    /// Waits like [`writable`](Self::writable).
    ///
    /// Only the waker of the last write, shutdown or `poll_write_ready` is woken.
    ///
    /// # Errors
    /// None.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end().poll_ready(cx, Side::Writer).map(Ok)
    }

    /// Reads the bytes that have arrived, without waiting. Returns 0 at the end of file.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived, or the error of a read.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(buffer);
        self.end().try_read(&mut buffer)?;
        Ok(buffer.filled().len())
    }

    /// Reads like [`try_read`](Self::try_read), into several buffers, each of which is filled before the next.
    ///
    /// # Errors
    /// Those of [`try_read`](Self::try_read).
    pub fn try_read_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut total = 0;
        for buffer in buffers.iter_mut().filter(|buffer| !buffer.is_empty()) {
            match self.try_read(buffer) {
                Ok(read) => {
                    total += read;
                    if read < buffer.len() {
                        break;
                    }
                }
                // The next call returns the error.
                Err(_) if total > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(total)
    }

    /// Reads like [`try_read`](Self::try_read), and appends the bytes to the buffer.
    ///
    /// # Errors
    /// Those of [`try_read`](Self::try_read).
    pub fn try_read_buf<B: BufMut>(&self, buffer: &mut B) -> io::Result<usize> {
        // It resolves at the first poll.
        let read = Now(self.end()).read_buf(buffer).now_or_never();
        read.unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))
    }

    /// Writes as many bytes as there is room for, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room, or the error of a write.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.end().try_write(&[IoSlice::new(bytes)])
    }

    /// Writes like [`try_write`](Self::try_write), from several buffers.
    ///
    /// # Errors
    /// Those of [`try_write`](Self::try_write).
    pub fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.end().try_write(parts)
    }
}

/// Reads what has arrived, or fails with `WouldBlock`.
struct Now<'a>(&'a StreamInner);

impl AsyncRead for Now<'_> {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.try_read(into))
    }
}
