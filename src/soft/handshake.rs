//! The socket between two phases of the handshake, and its close.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::error::{DecodeError, Reason};
use crate::net::Stream;
use crate::net::descriptors::Holder;
use crate::proto::mpa::{Negotiated, Responder, terminate_fpdu};
use crate::wire::ddp::Header;
use crate::wire::rdmap::{Opcode, Phase, Terminate};

/// The time that a refused peer has to read the last message before the socket is closed.
const LINGER: Duration = Duration::from_secs(1);
/// The number of bytes that suffice for the header and control word of a Terminate.
const FIRST_WORDS: usize = 24;

/// A handshake that waits for its user.
pub(crate) enum PendingHandshake {
    /// The peer accepted; CompleteConnect is owed.
    Active { stream: Stream, negotiated: Negotiated, leftover: Bytes },
    /// The peer has sent a request; Accept is owed. The data is that of a Reject, if there was one.
    Passive { stream: Stream, responder: Box<Responder>, reject_data: Option<Bytes> },
}

impl PendingHandshake {
    fn stream(&self) -> &Stream {
        match self {
            Self::Active { stream, .. } | Self::Passive { stream, .. } => stream,
        }
    }

    /// Sets the data to send with a Reject; the active side has no frame to carry any.
    pub(crate) fn set_reject_data(&mut self, data: Bytes) {
        if let Self::Passive { reject_data, .. } = self {
            *reject_data = Some(data);
        }
    }

    /// Closes in order from now on, even if the socket was set to abort during the start-up.
    pub(crate) fn keep(&self) {
        self.stream().clear_abort();
    }

    /// Checks that the peer has not closed or withdrawn, as far as that is known without waiting.
    ///
    /// # Errors
    /// The reason why the handshake has ended.
    pub(crate) fn check(&self) -> Result<(), Reason> {
        let mut start = [0; FIRST_WORDS];
        match (self.stream().peek_now(&mut start), self) {
            (Ok(0), _) => Err(Reason::PeerClosed),
            // Behind its request a peer may send nothing before it has the reply (RFC 5044 section 7.1.3).
            (Ok(_), Self::Passive { .. }) => {
                Err(Reason::Protocol(DecodeError::Malformed("data before the reply")))
            }
            (Ok(length), Self::Active { leftover, .. }) => taken_back(&[leftover, &start[..length]].concat()),
            (Err(error), _) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
            (Err(error), _) => Err(Reason::Errno(error.raw_os_error().unwrap_or(0))),
        }
    }

    /// Refuses the peer and closes the socket, without waiting for the peer.
    pub(crate) fn refuse(self, lingering_close: &LingeringClose) {
        match self {
            // No third start-up frame exists that could refuse, but a Terminate in place of the first frame
            // does.
            Self::Active { stream, negotiated, .. } => {
                lingering_close
                    .close_after(stream, terminate_fpdu(&Terminate::LOCAL_CATASTROPHIC, negotiated.crc));
            }
            Self::Passive { stream, responder, reject_data: Some(data) } => {
                lingering_close.close_after(stream, responder.reject(&data));
            }
            // The R bit is the refusal of an application, after which a peer does not try again. Without one
            // the peer reads the end of the stream, as with a backlog that is full.
            Self::Passive { .. } => {}
        }
    }
}

/// Checks whether the peer has withdrawn its accept, by a Terminate in place of its first frame.
fn taken_back(bytes: &[u8]) -> Result<(), Reason> {
    match Header::decode(bytes) {
        Ok((header, _, consumed)) if header.opcode() == Opcode::Terminate => {
            let words = bytes.get(consumed..).unwrap_or_default();
            let terminate = Terminate::decode(words, Phase::StartUp).unwrap_or(Terminate::UNSPECIFIED);
            Err(terminate.reason(false))
        }
        // Anything else is a server that sends first, or for the driver to judge.
        _ => Ok(()),
    }
}

/// Closes sockets after their peers have read the last message: a limited number at a time, so that a flood
/// of peers that are refused does not use up the descriptors.
pub(crate) struct LingeringClose {
    runtime: Handle,
    places: Arc<Semaphore>,
    descriptors: Arc<Holder>,
}

impl LingeringClose {
    pub(crate) fn new(runtime: Handle, most: usize, descriptors: Arc<Holder>) -> Self {
        Self { runtime, places: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))), descriptors }
    }

    /// Sends a few last bytes and closes once the peer has ended its half, or has had the time to.
    pub(crate) fn close_after(&self, mut stream: Stream, last_words: Bytes) {
        // At once, so that they are sent even when the runtime is shutting down; a fresh socket has room for
        // them.
        let sent = stream.send_now(&last_words).unwrap_or(0);
        let rest = last_words.slice(sent..);
        // Without a place the socket is closed at once, and the peer may lose the message.
        let Ok(place) = self.places.clone().try_acquire_owned() else { return };
        let Some(descriptor) = self.descriptors.try_hold() else { return };
        self.runtime.spawn(async move {
            let close = async {
                stream.write_all(&rest).await?;
                stream.shutdown().await?;
                // Closing with unread bytes would send a reset, which may overtake the last words.
                stream.discard().await;
                std::io::Result::Ok(())
            };
            // The outcome is not used: no caller waits for it.
            let _ = tokio::time::timeout(LINGER, close).await;
            drop((place, descriptor));
        });
    }
}
