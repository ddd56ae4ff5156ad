//! The halves of a stream, one for each direction.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;

use super::inner::StreamInner;
use super::shared::Shared;
use super::wakers::Side;

/// The read half of a borrowed stream, created by [`RdmaStream::split`](super::RdmaStream::split).
pub struct ReadHalf<'a>(&'a Shared);

/// The write half of a borrowed stream, created by [`RdmaStream::split`](super::RdmaStream::split).
pub struct WriteHalf<'a>(&'a Shared);

/// The owned read half of a stream, created by [`RdmaStream::into_split`](super::RdmaStream::into_split).
pub struct OwnedReadHalf {
    shared: Arc<Shared>,
}

/// The owned write half of a stream, created by [`RdmaStream::into_split`](super::RdmaStream::into_split).
///
/// Dropping it shuts its direction down.
pub struct OwnedWriteHalf {
    shared: Arc<Shared>,
    /// Dropping this half shuts nothing down, because `reunite` or `forget` has consumed it.
    joined: bool,
}

pub(super) fn borrowed(shared: &Shared) -> (ReadHalf<'_>, WriteHalf<'_>) {
    (ReadHalf(shared), WriteHalf(shared))
}

pub(super) fn owned(shared: Arc<Shared>) -> (OwnedReadHalf, OwnedWriteHalf) {
    (OwnedReadHalf { shared: shared.clone() }, OwnedWriteHalf { shared, joined: false })
}

/// Returns what the two halves share, or both halves if they belong to different streams.
pub(super) fn reunited(read: OwnedReadHalf, mut write: OwnedWriteHalf) -> Result<Arc<Shared>, ReuniteError> {
    if !Arc::ptr_eq(&read.shared, &write.shared) {
        return Err(ReuniteError(read, write));
    }
    write.joined = true;
    Ok(read.shared)
}

/// The error of [`OwnedReadHalf::reunite`] for halves of two different streams. Contains both halves.
#[derive(Debug, thiserror::Error)]
#[error("the halves are of two streams")]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if !self.joined {
            self.shared.shutdown();
        }
    }
}

impl OwnedWriteHalf {
    /// Drops this half without shutting its direction down. It is closed when the read half is dropped.
    pub fn forget(mut self) {
        self.joined = true;
    }
}

pub(super) fn poll_peek(
    end: &StreamInner,
    cx: &mut Context<'_>,
    buffer: &mut ReadBuf<'_>,
) -> Poll<io::Result<usize>> {
    let before = buffer.remaining();
    ready!(end.poll_peek(cx, buffer))?;
    Poll::Ready(Ok(before - buffer.remaining()))
}

pub(super) fn try_read(end: &StreamInner, buffer: &mut [u8]) -> io::Result<usize> {
    let mut buffer = ReadBuf::new(buffer);
    end.try_read(&mut buffer)?;
    Ok(buffer.filled().len())
}

/// Every write is sent at once, so there is nothing to flush.
pub(super) fn poll_flush(cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    ready!(coop::poll_proceed(cx)).made_progress();
    Poll::Ready(Ok(()))
}

macro_rules! half {
    ($half:ty, |$this:ident| $shared:expr) => {
        impl $half {
            fn shared(&self) -> &Shared {
                let $this = self;
                $shared
            }

            /// Returns the local address.
            ///
            /// # Errors
            /// None. The type is that of tokio's method.
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                Ok(self.shared().end().connection().local_addr())
            }

            /// Returns the address of the peer.
            ///
            /// # Errors
            /// None. The type is that of tokio's method.
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                Ok(self.shared().end().connection().peer_addr())
            }
        }

        impl fmt::Debug for $half {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($half))
                    .field("connection", self.shared().end().connection())
                    .finish_non_exhaustive()
            }
        }
    };
}

macro_rules! reads {
    ($half:ty) => {
        impl $half {
            /// Copies received bytes like [`RdmaStream::peek`](super::RdmaStream::peek).
            ///
            /// # Errors
            /// Those of a read.
            ///
            /// # Cancel safety
            /// Dropping the future loses no data.
            pub async fn peek(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let mut buffer = ReadBuf::new(buffer);
                self.shared().end().peek(&mut buffer).await?;
                Ok(buffer.filled().len())
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
                poll_peek(self.shared().end(), cx, buffer)
            }

            /// Waits like [`RdmaStream::readable`](super::RdmaStream::readable).
            ///
            /// # Errors
            /// None. The read returns the error if the stream has ended.
            ///
            /// # Cancel safety
            /// Dropping the future loses no data.
            pub async fn readable(&self) -> io::Result<()> {
                self.shared().end().ready(Side::Reader).await;
                Ok(())
            }

            /// Reads like [`RdmaStream::try_read`](super::RdmaStream::try_read).
            ///
            /// # Errors
            /// `WouldBlock` if nothing has arrived, or the error of a read.
            pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
                try_read(self.shared().end(), buffer)
            }
        }

        impl AsyncRead for $half {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                into: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                self.shared().end().poll_read(cx, into)
            }
        }
    };
}

macro_rules! writes {
    ($half:ty) => {
        impl $half {
            /// Waits like [`RdmaStream::writable`](super::RdmaStream::writable).
            ///
            /// # Errors
            /// None. The write returns the error if the stream has ended.
            ///
            /// # Cancel safety
            /// Dropping the future loses no data.
            pub async fn writable(&self) -> io::Result<()> {
                self.shared().end().ready(Side::Writer).await;
                Ok(())
            }

            /// Writes like [`RdmaStream::try_write`](super::RdmaStream::try_write).
            ///
            /// # Errors
            /// `WouldBlock` if there is no room, or the error of a write.
            pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
                self.shared().end().try_write(&[IoSlice::new(bytes)])
            }

            /// Writes like [`try_write`](Self::try_write), from several buffers.
            ///
            /// # Errors
            /// Those of [`try_write`](Self::try_write).
            pub fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
                self.shared().end().try_write(parts)
            }
        }

        impl AsyncWrite for $half {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.shared().end().poll_write(cx, &[IoSlice::new(bytes)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                parts: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.shared().end().poll_write(cx, parts)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                poll_flush(cx)
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.shared().poll_shutdown(cx)
            }
        }
    };
}

half!(ReadHalf<'_>, |this| this.0);
half!(WriteHalf<'_>, |this| this.0);
half!(OwnedReadHalf, |this| &this.shared);
half!(OwnedWriteHalf, |this| &this.shared);
reads!(ReadHalf<'_>);
reads!(OwnedReadHalf);
writes!(WriteHalf<'_>);
writes!(OwnedWriteHalf);
