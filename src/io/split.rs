//! The halves of a stream, one for each direction.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BufMut;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};

use super::engine::Side;
use super::stream::RdmaStream;

/// The read half of a borrowed stream, created by [`RdmaStream::split`].
pub struct ReadHalf<'a>(pub(super) &'a RdmaStream);

/// The write half of a borrowed stream, created by [`RdmaStream::split`].
pub struct WriteHalf<'a>(pub(super) &'a RdmaStream);

/// The owned read half of a stream, created by [`RdmaStream::into_split`].
pub struct OwnedReadHalf {
    pub(super) stream: RdmaStream,
}

/// The owned write half of a stream, created by [`RdmaStream::into_split`].
///
/// Dropping it shuts its direction down.
pub struct OwnedWriteHalf {
    pub(super) stream: RdmaStream,
    /// Dropping this half shuts nothing down, because `reunite` or `forget` has consumed it.
    pub(super) joined: bool,
}

/// The error of [`OwnedReadHalf::reunite`] for halves of two different streams. Contains both halves.
#[derive(Debug, thiserror::Error)]
#[error("the halves are of two streams")]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl OwnedReadHalf {
    /// Combines the two halves into the stream again.
    ///
    /// # Errors
    /// Returns both halves if they belong to different streams.
    pub fn reunite(self, mut other: OwnedWriteHalf) -> Result<RdmaStream, ReuniteError> {
        if !Arc::ptr_eq(&self.stream.shared, &other.stream.shared) {
            return Err(ReuniteError(self, other));
        }
        other.joined = true;
        Ok(RdmaStream { shared: self.stream.shared.clone() })
    }
}

impl OwnedWriteHalf {
    /// Combines the two halves into the stream again.
    ///
    /// # Errors
    /// Returns both halves if they belong to different streams.
    pub fn reunite(self, other: OwnedReadHalf) -> Result<RdmaStream, ReuniteError> {
        other.reunite(self)
    }

    /// Drops this half without shutting its direction down. It is closed when the read half is dropped.
    pub fn forget(mut self) {
        self.joined = true;
    }
}

impl Drop for OwnedReadHalf {
    fn drop(&mut self) {
        // No read has it.
        self.stream.end().end_waits(&[Side::Reader]);
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if !self.joined {
            self.stream.shared.shutdown();
        }
    }
}

/// Implements `AsyncRead` for a type that reads from a stream.
macro_rules! async_read {
    ($type:ty, |$this:ident| $stream:expr) => {
        impl AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                into: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                let $this = &*self;
                $stream.end().poll_read(cx, into)
            }
        }
    };
}
pub(super) use async_read;

/// Implements `AsyncWrite` for a type that writes to a stream.
macro_rules! async_write {
    ($type:ty, |$this:ident| $stream:expr) => {
        impl AsyncWrite for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                let $this = &*self;
                $stream.end().poll_write(cx, &[IoSlice::new(bytes)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                parts: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                let $this = &*self;
                $stream.end().poll_write(cx, parts)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            /// Resolves at once: every write is sent at once, so there is nothing to flush.
            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                ready!(tokio::task::coop::poll_proceed(cx)).made_progress();
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                let $this = &*self;
                $stream.shared.poll_shutdown(cx)
            }
        }
    };
}
pub(super) use async_write;

macro_rules! half {
    ($half:ty, |$this:ident| $stream:expr) => {
        impl $half {
            fn stream(&self) -> &RdmaStream {
                let $this = self;
                $stream
            }

            /// Returns the local address.
            ///
            /// # Errors
            /// None. The type is that of tokio's method.
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                self.stream().local_addr()
            }

            /// Returns the address of the peer.
            ///
            /// # Errors
            /// None. The type is that of tokio's method.
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                self.stream().peer_addr()
            }

            /// Waits like [`RdmaStream::ready`].
            ///
            /// # Errors
            /// None. The read or the write returns the error if the stream has ended.
            ///
            /// # Cancel safety
            /// Dropping the future loses no data.
            pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
                self.stream().ready(interest).await
            }
        }

        impl AsRef<RdmaStream> for $half {
            fn as_ref(&self) -> &RdmaStream {
                self.stream()
            }
        }

        impl fmt::Debug for $half {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($half))
                    .field("connection", &self.stream().connection())
                    .finish_non_exhaustive()
            }
        }
    };
}

macro_rules! reads {
    ($half:ty) => {
        impl $half {
            /// Copies received bytes like [`RdmaStream::peek`].
            ///
            /// # Errors
            /// Those of a read.
            ///
            /// # Cancel safety
            /// Dropping the future loses no data.
            pub async fn peek(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.stream().peek(buffer).await
            }

            /// Copies received bytes like [`peek`](Self::peek), and returns their number.
            ///
            /// # Errors
            /// Those of a read.
            pub fn poll_peek(
                &mut self,
                cx: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<usize>> {
                self.stream().poll_peek(cx, buffer)
            }

            /// Waits like [`RdmaStream::readable`].
            ///
            /// # Errors
            /// None. The read returns the error if the stream has ended.
            ///
            /// # Cancel safety
            /// Dropping the future loses no data.
            pub async fn readable(&self) -> io::Result<()> {
                self.stream().readable().await
            }

            /// Reads like [`RdmaStream::try_read`].
            ///
            /// # Errors
            /// `WouldBlock` if nothing has arrived, or the error of a read.
            pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
                self.stream().try_read(buffer)
            }

            /// Reads like [`try_read`](Self::try_read), into several buffers.
            ///
            /// # Errors
            /// Those of [`try_read`](Self::try_read).
            pub fn try_read_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                self.stream().try_read_vectored(buffers)
            }

            /// Reads like [`try_read`](Self::try_read), and appends the bytes to the buffer.
            ///
            /// # Errors
            /// Those of [`try_read`](Self::try_read).
            pub fn try_read_buf<B: BufMut>(&self, buffer: &mut B) -> io::Result<usize> {
                self.stream().try_read_buf(buffer)
            }
        }

        async_read!($half, |half| half.stream());
    };
}

macro_rules! writes {
    ($half:ty) => {
        impl $half {
            /// Waits like [`RdmaStream::writable`].
            ///
            /// # Errors
            /// None. The write returns the error if the stream has ended.
            ///
            /// # Cancel safety
            /// Dropping the future loses no data.
            pub async fn writable(&self) -> io::Result<()> {
                self.stream().writable().await
            }

            /// Writes like [`RdmaStream::try_write`].
            ///
            /// # Errors
            /// `WouldBlock` if there is no room, or the error of a write.
            pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
                self.stream().try_write(bytes)
            }

            /// Writes like [`try_write`](Self::try_write), from several buffers.
            ///
            /// # Errors
            /// Those of [`try_write`](Self::try_write).
            pub fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
                self.stream().try_write_vectored(parts)
            }
        }

        async_write!($half, |half| half.stream());
    };
}

half!(ReadHalf<'_>, |this| this.0);
half!(WriteHalf<'_>, |this| this.0);
half!(OwnedReadHalf, |this| &this.stream);
half!(OwnedWriteHalf, |this| &this.stream);
reads!(ReadHalf<'_>);
reads!(OwnedReadHalf);
writes!(WriteHalf<'_>);
writes!(OwnedWriteHalf);
