//! RDMA Reads beside the bytes of a stream, on its queue pair.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use tokio::sync::Semaphore;
use tokio::task::coop::unconstrained;

use super::{Moved, READ, Side, State, StreamEngine};
use crate::cm::Adapter;
use crate::error::{PostError, PostErrorKind, StreamBroken};
use crate::inflight::WorkBuffer;
use crate::io::end::End;
use crate::io::stream::RdmaStream;
use crate::mr::RemoteRegion;
use crate::qp::{Op, ReadPermit, WorkOptions};

/// Reads of the peer's memory beside the bytes of a stream.
///
/// The peer registers memory of the adapter of its end, such as a [`Region`](crate::Region) with
/// [`Access::REMOTE_READ`](crate::Access::REMOTE_READ), writes the description of it to the stream
/// ([`RemoteRegion::to_bytes`]), and this end reads the memory without the peer's program. So long data goes from memory to
/// memory, without the copies of a stream. Both ends have to keep a protocol of their own: which memory may be read, and when it
/// has been.
///
/// On iWARP the buffer of a read is a region with [`Access::READ_SINK`](crate::Access::READ_SINK)
/// ([`AdapterInfo::read_sink_required`](crate::AdapterInfo::read_sink_required)).
///
/// A few reads are under way at once: four, unless the read limits or the queue of the adapter permit fewer. Those of this handle
/// and its clones wait in turn, and with a limit of the adapter (`VerbsConfig::max_reads`) those of all its connections. It does not
/// keep the stream open.
///
/// ```no_run
/// # async fn example(stream: tokio_rdma::RdmaStream, described: [u8; 16]) -> std::io::Result<()> {
/// use tokio_rdma::mr::RemoteRegion;
///
/// let remote = RemoteRegion::from_bytes(described);
/// if let Some(one_sided) = stream.one_sided() {
///     let buffer = one_sided.adapter().buffer(remote.len() as usize)?;
///     let buffer = one_sided.read(buffer, &remote).await?;
///     println!("{} bytes", buffer.len());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct OneSided {
    end: Weak<StreamEngine>,
    adapter: Adapter,
    /// The places of reads: without, all that wait would be woken for each message.
    places: Arc<Semaphore>,
}

impl RdmaStream {
    /// Returns the means to read memory of the peer beside the bytes of this stream. `None` on the soft provider, where the
    /// bytes of a stream go to the memory of the reader anyway, if the read limits of the connection permit no reads, and if the stream
    /// has a session.
    pub fn one_sided(&self) -> Option<OneSided> {
        // With a session a read would have to be repeated over another connection.
        let End::Plain(engine) = self.end() else { return None };
        let reads = engine.reads;
        let end = (reads > 0).then(|| Arc::downgrade(engine))?;
        Some(OneSided { end, adapter: self.adapter(), places: Arc::new(Semaphore::new(reads)) })
    }
}

impl OneSided {
    /// Returns the adapter of the stream, which the buffers of reads belong to.
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// Reads memory of the peer: as many bytes as the buffer has, from the first byte of `remote` on.
    ///
    /// It takes part in the budget of the task, and is woken as a writer of the stream is.
    ///
    /// # Errors
    /// The error of the stream if that has ended, `NotConnected` if it was dropped and has closed, and `InvalidInput` if the request
    /// is refused.
    /// If the peer does not permit the read, the stream ends at both ends.
    ///
    /// # Cancel safety
    /// A read that has begun goes on if the future is dropped: the device writes to the buffer until then, and the memory of
    /// the peer must still be there.
    pub async fn read<B: WorkBuffer>(&self, buffer: B, remote: &RemoteRegion) -> io::Result<B> {
        let end = self.end.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        // It is never closed.
        let _place = self.places.acquire().await.map_err(io::Error::other)?;
        let mut waiting = Some(buffer);
        let mut op = loop {
            // The place among the reads of the adapter comes last: a read that waits for others of this stream has none.
            let may_read =
                |state: &mut State, _| (state.reads < end.reads || state.ended.is_some()).then_some(());
            end.wait_for(Side::Writer, may_read).await.map_err(moved)?;
            let mut permit = match end.queue_pair.reserve_read().await {
                Ok(permit) => permit,
                Err(kind) => {
                    let ended =
                        end.wait_for(Side::Writer, |state, _| Some(state.error())).await.map_err(moved)?;
                    return Err(ended.unwrap_or_else(|| end.refused(kind)));
                }
            };
            // The permit is dropped behind the lock of the stream.
            let attempt =
                |state: &mut State, _| Some(end.post_read(state, &mut permit, &mut waiting, remote));
            match end.wait_for(Side::Writer, attempt).await.map_err(moved)? {
                Some(Posted::Read(op)) => break op,
                Some(Posted::Refused(refused)) => return Err(end.refused(refused.kind)),
                Some(Posted::Ended(error)) => return Err(error),
                // Another handle of the stream was faster.
                None => {}
            }
        };
        // The notification of the queue wakes this task; who collects the completion need not be this one.
        let completed = end.wait_for(Side::Writer, |state, _| {
            let mut noop = Context::from_waker(Waker::noop());
            match Pin::new(&mut unconstrained(&mut op)).poll(&mut noop) {
                Poll::Ready((outcome, buffer)) => {
                    Some((outcome.map_err(|error| (error, state.error())), buffer))
                }
                Poll::Pending => None,
            }
        });
        let (outcome, buffer) = completed.await.map_err(moved)?;
        match outcome {
            Ok(_) => Ok(buffer),
            Err((error, ended)) => Err(ended.unwrap_or_else(|| error.into())),
        }
    }
}

/// Returns the error of a read on a stream that has another connection: only those with a session have, which have no reads.
fn moved(Moved: Moved) -> io::Error {
    io::ErrorKind::NotConnected.into()
}

/// The outcome of an attempt to begin a read.
enum Posted<B: WorkBuffer> {
    Read(Op<B>),
    Refused(PostError<B>),
    Ended(io::Error),
}

impl StreamEngine {
    /// Returns the error of a read that was not posted.
    fn refused(&self, kind: PostErrorKind) -> io::Error {
        let ended = self.connection.ended().map(|reason| StreamBroken::Connection(reason).into());
        ended.unwrap_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, kind))
    }

    /// Posts a read. `None` if as many as may be are under way.
    fn post_read<B: WorkBuffer>(
        &self,
        state: &mut State,
        permit: &mut ReadPermit<'_>,
        buffer: &mut Option<B>,
        remote: &RemoteRegion,
    ) -> Option<Posted<B>> {
        if let Some(error) = state.error() {
            return Some(Posted::Ended(error));
        }
        if state.reads >= self.reads {
            return None;
        }
        let options = WorkOptions::default().context(READ);
        let buffer = buffer.take()?;
        let posted =
            permit.post(options, |queue_pair, options| queue_pair.read_with(buffer, remote, options));
        Some(match posted {
            Ok(op) => {
                state.reads += 1;
                Posted::Read(op)
            }
            Err(refused) => Posted::Refused(refused),
        })
    }
}

impl State {
    /// Returns the error of the stream if it has ended.
    fn error(&self) -> Option<io::Error> {
        self.ended.clone().map(io::Error::from)
    }
}

impl fmt::Debug for OneSided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneSided").field("adapter", &self.adapter).finish_non_exhaustive()
    }
}
