//! The halves of a stream, one for each direction.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::shared::Shared;

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
    /// Dropping this half shuts nothing down, because `reunite` has consumed it.
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

macro_rules! half {
    ($half:ty, |$this:ident| $shared:expr) => {
        impl $half {
            fn shared(&self) -> &Shared {
                let $this = self;
                $shared
            }

            /// Returns the local address.
            pub fn local_addr(&self) -> SocketAddr {
                self.shared().end().connection().local_addr()
            }

            /// Returns the address of the peer.
            pub fn peer_addr(&self) -> SocketAddr {
                self.shared().end().connection().peer_addr()
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

            fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
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
