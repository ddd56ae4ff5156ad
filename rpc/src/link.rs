//! A connection: its state behind a lock, the task that reads, and the writes of whoever has something to say.

mod frames;
mod lending;
mod spare;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http_body::Body;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, coop};
use tokio::time::timeout;

use self::frames::Frames;
pub(crate) use self::lending::Lending;
use crate::error::{BoxError, Error};
use crate::machine::{Answer, Arrived, End, Machine, Read, Sent};
use crate::metrics::TrafficMetrics;
use crate::wire::{Code, Ends, HELLO_START, MOST_FIELDS, Origin, Settings, put_trailers};

/// The bytes from which on what calls have to say is written without waiting for more: the peer works on the first of them while
/// this end says the others.
const GATHERED: usize = 2 << 10;

/// A byte stream that is read.
pub(crate) type Reader = Box<dyn AsyncRead + Send + Unpin>;
/// A byte stream that is written.
pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// A connection.
pub(crate) struct Link {
    state: Mutex<State>,
    /// The calls that the peer still takes.
    pub(crate) permits: Arc<Semaphore>,
    /// The reads of the peer's memory, on a device.
    lending: Option<Lending>,
    metrics: TrafficMetrics,
}

struct State {
    machine: Machine,
    writer: Writer,
    /// The task that reads, and writes what others could not.
    driver: Option<Waker>,
    /// That task processes frames just now: it writes when it has done so.
    is_driving: bool,
    /// It was woken to write, and lets other tasks run first, which may have something to say, too.
    gathers: bool,
    /// It has let others run, and writes the next time, whatever they have said.
    has_gathered: bool,
    lost: Option<Error>,
}

impl State {
    /// Writes what there is to be written: at once if nothing will join it, or soon. Ends the connection if it has nothing
    /// more to do.
    fn write(&mut self) {
        if self.is_driving {
            return;
        }
        if !self.machine.output().is_empty() {
            match self.driver.clone() {
                Some(driver) if self.machine.is_alone() || self.machine.output().len() >= GATHERED => {
                    self.write_now(&mut Context::from_waker(&driver));
                }
                driver => {
                    self.gathers = true;
                    self.machine.wake(driver);
                }
            }
        }
        if self.machine.is_finished() {
            let driver = self.driver.clone();
            self.machine.wake(driver);
        }
    }

    /// Has the task of the connection write: the caller may be no task at all.
    fn write_soon(&mut self) {
        if !self.is_driving && (!self.machine.output().is_empty() || self.machine.is_finished()) {
            let driver = self.driver.clone();
            self.machine.wake(driver);
        }
    }

    /// Writes as much as there is room for. The task of the connection goes on when there is more.
    fn write_now(&mut self, cx: &mut Context<'_>) {
        if self.lost.is_some() {
            return;
        }
        while !self.machine.output().is_empty() {
            let writer = Pin::new(&mut self.writer);
            let (outcome, most) = self.machine.output().with_slices(|slices| {
                let most: usize = slices.iter().map(|slice| slice.len()).sum();
                (writer.poll_write_vectored(cx, slices), most)
            });
            match outcome {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => {
                    return self.fail(Error::Lost(Arc::new(io::ErrorKind::WriteZero.into())));
                }
                // A stream of the program may be wrong.
                Poll::Ready(Ok(written)) if written > most => {
                    let error = io::Error::other("the stream has written more than it was given");
                    return self.fail(Error::Lost(Arc::new(error)));
                }
                Poll::Ready(Ok(written)) => self.machine.output().advance(written),
                Poll::Ready(Err(error)) => return self.fail(Error::Lost(Arc::new(error))),
            }
        }
        if let Poll::Ready(Err(error)) = Pin::new(&mut self.writer).poll_flush(cx) {
            return self.fail(Error::Lost(Arc::new(error)));
        }
        self.machine.unblock();
    }

    /// Ends all calls.
    fn fail(&mut self, error: Error) {
        self.lost.get_or_insert(error);
        self.machine.fail();
        let driver = self.driver.clone();
        self.machine.wake(driver);
    }
}

impl Link {
    fn new(machine: Machine, writer: Writer, calls: u32, lending: Option<Lending>) -> Arc<Self> {
        let metrics = TrafficMetrics::new(machine.is_client());
        let state = State {
            machine,
            writer,
            driver: None,
            is_driving: false,
            gathers: false,
            has_gathered: false,
            lost: None,
        };
        let most = usize::try_from(calls).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Arc::new(Self { state: Mutex::new(state), permits: Arc::new(Semaphore::new(most)), lending, metrics })
    }

    /// Has `act` use the state. What follows for other tasks is done without the lock.
    fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut state);
        let after = state.machine.after();
        let traffic = state.machine.traffic();
        let accepts = state.lost.is_none() && state.machine.accepts();
        drop(state);
        if let Some(after) = after {
            after.run();
        }
        if !accepts && !self.permits.is_closed() {
            // Who waits for a place goes to another connection.
            self.permits.close();
        }
        self.metrics.record(traffic);
        result
    }

    /// Returns whether calls can be begun.
    pub(crate) fn accepts(&self) -> bool {
        self.with(|state| state.lost.is_none() && state.machine.accepts())
    }

    /// Returns its report for a snapshot.
    #[cfg(feature = "inspect")]
    pub(crate) fn report(&self) -> tokio_rdma::inspect::ChannelReport {
        let mut report = self.with(|state| state.machine.report());
        report.places = self.permits.available_permits();
        report
    }

    /// Begins no more calls. The connection ends with the last one.
    pub(crate) fn go_away(&self) {
        self.with(|state| {
            state.machine.go_away(Code::None);
            let driver = state.driver.clone();
            state.machine.wake(driver);
        });
    }

    /// Ends all calls, and the connection.
    pub(crate) fn fail(&self, error: Error) {
        self.with(|state| state.fail(error));
    }

    /// Encodes a head with these fields by `put`, which has the origin of the connection.
    ///
    /// # Errors
    /// `TooLarge`: the peer does not take it.
    pub(crate) fn encode(
        &self,
        fields: &HeaderMap,
        put: impl FnOnce(&Origin, &mut Vec<u8>),
    ) -> Result<Vec<u8>, Unsent> {
        let mut block = Vec::with_capacity(256);
        let fits = self.with(|state| {
            put(state.machine.origin(), &mut block);
            state.machine.peer_takes_head(block.len())
        });
        if fits && fields.len() <= MOST_FIELDS { Ok(block) } else { Err(Unsent::TooLarge) }
    }

    /// Encodes trailers.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub(crate) fn encode_trailers(&self, trailers: &HeaderMap) -> Result<Vec<u8>, Unsent> {
        self.encode(trailers, |_, block| put_trailers(trailers, block))
    }

    /// Returns whether an answer to a call is still wanted.
    pub(crate) fn is_wanted(&self, id: u32) -> bool {
        self.with(|state| state.machine.is_wanted(id))
    }

    /// Sets the task that answers a call.
    pub(crate) fn set_task(&self, id: u32, task: AbortHandle) {
        self.with(|state| state.machine.set_task(id, task));
    }

    /// Ends a call.
    pub(crate) fn reset(&self, id: u32, code: Code) {
        self.with(|state| {
            state.machine.reset(id, code);
            state.write_soon();
        });
    }

    /// Ends a call whose request has failed, and sets the reason if that is what ends its answer.
    pub(crate) fn fail_call(&self, id: u32, error: Error, reason: &OnceLock<Error>) {
        let code = if matches!(error, Error::TooLarge) { Code::TooLarge } else { Code::Cancel };
        let unused = self.with(|state| {
            let unused = if state.machine.is_answered(id) { Err(error) } else { reason.set(error) };
            state.machine.reset(id, code);
            state.write_soon();
            unused
        });
        // It has a destructor of the program's, which the lock is not held for.
        drop(unused);
    }

    /// Returns the error of a call that has ended with this.
    fn error(&self, code: Code) -> Error {
        let may_be_lost = matches!(code, Code::Internal | Code::None);
        let lost = if may_be_lost { self.with(|state| state.lost.clone()) } else { None };
        lost.unwrap_or(Error::Reset(code))
    }

    /// Ends the connection if it has nothing more to do, and writes what there is. The task is woken for both.
    fn poll_driver(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.with(|state| {
            if !state.driver.as_ref().is_some_and(|driver| driver.will_wake(cx.waker())) {
                state.driver = Some(cx.waker().clone());
            }
            state.is_driving = false;
            let gathers = std::mem::take(&mut state.gathers);
            if gathers && !std::mem::replace(&mut state.has_gathered, true) {
                // A task that wakes itself goes behind those that are ready.
                cx.waker().wake_by_ref();
            } else {
                state.has_gathered = false;
                state.write_now(cx);
            }
            if state.lost.is_some() || state.machine.is_finished() { Poll::Ready(()) } else { Poll::Pending }
        })
    }

    /// Takes all frames that have come. The requests among them are added to `arrived`.
    fn receive(&self, frames: &mut Frames, arrived: &mut Vec<Arrived>) -> Result<(), Error> {
        self.with(|state| {
            state.is_driving = true;
            let outcome = loop {
                match frames.next() {
                    Ok(None) => break Ok(()),
                    Ok(Some((header, payload))) => match state.machine.receive(header, payload) {
                        Ok(request) => arrived.extend(request),
                        Err(malformed) => break Err(malformed),
                    },
                    Err(malformed) => break Err(malformed),
                }
            };
            outcome.map_err(|malformed| {
                state.machine.go_away(Code::Protocol);
                Error::Protocol(malformed.0)
            })
        })
    }

    /// Reads frames until the connection ends, and has `begin` begin each request: with `true` if it came alone.
    ///
    /// # Errors
    /// The reason of the end, unless nothing was lost by it.
    pub(crate) async fn drive(
        self: &Arc<Self>,
        frames: &mut Frames,
        mut begin: impl FnMut(Arrived, bool),
    ) -> Result<(), Error> {
        let is_server = self.with(|state| !state.machine.is_client());
        let mut arrived = Vec::new();
        let mut keeper = self.lending.is_some().then(|| Box::pin(self.keep_memory()));
        loop {
            let mut poll = |cx: &mut Context<'_>| match self.poll_driver(cx) {
                Poll::Ready(()) => Poll::Ready(None),
                // A peer that does not read gets no more answers.
                Poll::Pending if is_server && self.with(|state| state.machine.is_full()) => Poll::Pending,
                Poll::Pending if frames.ends_turn() => {
                    // A task that wakes itself goes behind those that are ready.
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                Poll::Pending => frames.poll_fill(cx).map(Some),
            };
            let filled = poll_fn(|cx| {
                keeper = keeper.take_if(|keeper| keeper.as_mut().poll(cx).is_pending());
                poll(cx)
            });
            match filled.await {
                None => return self.with(|state| state.lost.clone().map_or(Ok(()), Err)),
                Some(Ok(0)) => return Err(Error::Lost(Arc::new(io::ErrorKind::UnexpectedEof.into()))),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(Error::Lost(Arc::new(error))),
            }
            let outcome = self.receive(frames, &mut arrived);
            let is_alone = arrived.len() == 1;
            arrived.drain(..).for_each(|request| begin(request, is_alone));
            if self.lending.is_some() {
                let borrowed = self.with(|state| state.machine.take_borrowed());
                borrowed.into_iter().for_each(|borrowed| self.borrow(borrowed));
            }
            outcome?;
        }
    }

    /// Ends the connection behind [`drive`](Self::drive): writes what is left as far as there is room, and ends this
    /// direction, within the time.
    pub(crate) async fn end(&self, frames: &mut Frames, outcome: Result<(), Error>, limit: Duration) {
        let is_orderly = outcome.is_ok();
        let closed = || Error::Lost(Arc::new(io::ErrorKind::ConnectionAborted.into()));
        self.with(|state| {
            state.is_driving = false;
            state.write_now(&mut Context::from_waker(Waker::noop()));
            state.fail(outcome.err().unwrap_or_else(closed));
        });
        let end = async {
            // The lock is held for each poll only.
            let shutdown = poll_fn(|cx| self.with(|state| Pin::new(&mut state.writer).poll_shutdown(cx)));
            // With unread bytes a TCP socket would be reset, and what is on its way lost.
            if shutdown.await.is_ok() && is_orderly {
                while poll_fn(|cx| frames.poll_discard(cx)).await {}
            }
        };
        // The peer may have gone.
        let _ = timeout(limit, end).await;
        self.close();
    }

    /// Gives the stream up. Owners of calls may live on.
    fn close(&self) {
        let unused = self.with(|state| {
            state.machine.output().clear();
            let writer = std::mem::replace(&mut state.writer, Box::new(tokio::io::sink()));
            (writer, state.machine.take_lender())
        });
        drop((unused, self.lending.as_ref().map(Lending::take_buffers)));
    }
}

/// An owner of a call. The call is cancelled with the last one.
pub(crate) struct CallHandle {
    link: Arc<Link>,
    id: u32,
    /// At the client. The reset of a call goes before the next call that is there in its place.
    _permit: Option<OwnedSemaphorePermit>,
    /// The error of the task that sends the rest of the request.
    failure: Option<Arc<OnceLock<Error>>>,
}

/// Ends the calls of a connection when the task that drives it is dropped.
pub(crate) struct LossGuard<'a>(pub(crate) &'a Link);

impl Drop for LossGuard<'_> {
    fn drop(&mut self) {
        self.0.fail(Error::Lost(Arc::new(io::ErrorKind::ConnectionAborted.into())));
        self.0.close();
    }
}

impl Drop for CallHandle {
    fn drop(&mut self) {
        self.link.with(|state| {
            let code = if state.machine.is_client() { Code::Cancel } else { Code::Internal };
            state.machine.release(self.id, code);
            state.write_soon();
        });
    }
}

impl CallHandle {
    /// Returns an owner of a call that has begun.
    pub(crate) fn of(link: &Arc<Link>, id: u32) -> Self {
        Self { link: link.clone(), id, _permit: None, failure: None }
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Ends the call.
    pub(crate) fn reset(&self, code: Code) {
        self.link.reset(self.id, code);
    }

    /// Sets the place for the error of the task that sends the rest of the request.
    pub(crate) fn set_failure(&mut self, failure: Arc<OnceLock<Error>>) {
        self.failure = Some(failure);
    }

    /// Returns the error of the call, which has ended with this code.
    fn error(&self, code: Code) -> Error {
        let own = self.failure.as_ref().and_then(|failure| failure.get());
        own.cloned().unwrap_or_else(|| self.link.error(code))
    }

    /// Reads no more of the body.
    pub(crate) fn stop_reading(&self) {
        self.link.with(|state| {
            state.machine.stop_reading(self.id);
            state.write_soon();
        });
    }

    /// Returns how the answer has ended, whether it was read or not: with these trailers, or an error. `None` while it has not.
    pub(crate) fn ending(&self) -> Option<Result<Option<HeaderMap>, Error>> {
        let ending = self.link.with(|state| state.machine.ending(self.id))?;
        Some(ending.map_err(|code| self.error(code)))
    }

    /// Waits for the head of the answer.
    ///
    /// # Errors
    /// There will be none.
    pub(crate) async fn answer(&self) -> Result<Answer, Error> {
        let answer = poll_fn(|cx| {
            self.link.with(|state| {
                let answer = state.machine.answer(self.id, cx);
                state.write();
                answer.transpose().map_or(Poll::Pending, Poll::Ready)
            })
        });
        answer.await.map_err(|code| self.error(code))
    }

    /// Reads the next part of the body.
    ///
    /// # Errors
    /// It ends before its end.
    pub(crate) fn poll_read(&self, cx: &mut Context<'_>) -> Poll<Result<Read, Error>> {
        let coop = ready!(coop::poll_proceed(cx));
        let read = self.link.with(|state| {
            let read = state.machine.read(self.id, cx);
            state.write();
            read
        });
        match read.transpose() {
            None => Poll::Pending,
            Some(read) => {
                coop.made_progress();
                Poll::Ready(read.map_err(|code| self.error(code)))
            }
        }
    }
}

/// Why a body was not sent to its end.
pub(crate) enum Unsent {
    Gone(Error),
    Body(BoxError),
    /// The head or the trailers.
    TooLarge,
}

/// The next part of a body.
pub(crate) enum Part {
    /// Perhaps no bytes.
    Data(Bytes),
    End(Option<HeaderMap>),
}

/// Takes the next part of a body.
pub(crate) fn poll_part<B>(mut body: Pin<&mut B>, cx: &mut Context<'_>) -> Poll<Result<Part, BoxError>>
where
    B: Body<Error: Into<BoxError>>,
{
    if body.is_end_stream() {
        return Poll::Ready(Ok(Part::End(None)));
    }
    let frame = match ready!(body.as_mut().poll_frame(cx)) {
        None => return Poll::Ready(Ok(Part::End(None))),
        Some(Err(error)) => return Poll::Ready(Err(error.into())),
        Some(Ok(frame)) => frame,
    };
    Poll::Ready(Ok(match frame.into_data() {
        Ok(mut data) => Part::Data(data.copy_to_bytes(data.remaining())),
        Err(frame) => match frame.into_trailers() {
            Ok(trailers) => Part::End(Some(trailers)),
            Err(_) => Part::Data(Bytes::new()),
        },
    }))
}

/// What is there of a message: its head, unless that was sent, bytes of its body, and the part behind them.
pub(crate) struct Message {
    pub(crate) head: Option<Vec<u8>>,
    pub(crate) held: Bytes,
    pub(crate) next: Option<Part>,
}

impl Link {
    /// Waits for room to begin a call.
    pub(crate) async fn room(&self) {
        let room = |cx: &mut Context<'_>| self.with(|state| state.machine.has_room(cx));
        poll_fn(|cx| if room(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Begins a call with what is there of its request, which is taken from the message. `None` if the connection takes no
    /// calls, with the message as it was. The result is whether all of it was sent.
    ///
    /// # Errors
    /// `TooLarge`.
    pub(crate) fn open(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
        message: &mut Message,
    ) -> Result<Option<(CallHandle, bool)>, Unsent> {
        let Message { head, held, next } = message;
        let trailers = match next {
            Some(Part::End(Some(trailers))) => Some(self.encode_trailers(trailers)?),
            _ => None,
        };
        let end = matches!(next, Some(Part::End(_))).then_some(trailers.as_deref());
        let begun = self.with(|state| {
            if state.lost.is_some() || !state.machine.accepts() {
                return None;
            }
            let id = state.machine.open();
            let sent = state.machine.send(id, head, held, end, &mut Context::from_waker(Waker::noop()));
            state.write();
            Some((id, sent == Ok(Sent::All) && end.is_some()))
        });
        Ok(begun.map(|(id, whole)| {
            let call = CallHandle { link: self.clone(), id, _permit: Some(permit), failure: None };
            (call, whole)
        }))
    }

    /// Sends the rest of a message, in as few frames as it comes in.
    ///
    /// # Errors
    /// The call has ended, or the body has failed.
    pub(crate) async fn send_message<B>(
        &self,
        id: u32,
        message: &mut Message,
        mut body: Pin<&mut B>,
    ) -> Result<(), Unsent>
    where
        B: Body<Error: Into<BoxError>>,
    {
        let Message { head, held, next } = message;
        loop {
            // A body that is always there must not keep others from running.
            coop::consume_budget().await;
            // The last bytes wait for what is behind them: perhaps the end.
            let part = match next.take() {
                Some(part) => Some(part),
                None => {
                    let part = poll_fn(|cx| match poll_part(body.as_mut(), cx) {
                        Poll::Ready(part) => Poll::Ready(Ok(part.map(Some))),
                        Poll::Pending if head.is_some() || !held.is_empty() => Poll::Ready(Ok(Ok(None))),
                        Poll::Pending => match self.with(|state| state.machine.may_send(id, cx)) {
                            Ok(()) => Poll::Pending,
                            Err(code) => Poll::Ready(Err(code)),
                        },
                    });
                    let part = part.await.map_err(|code| Unsent::Gone(self.error(code)))?;
                    part.map_err(Unsent::Body)?
                }
            };
            match part {
                Some(Part::End(trailers)) => {
                    let trailers = trailers.map(|trailers| self.encode_trailers(&trailers)).transpose()?;
                    return self.send(id, head, std::mem::take(held), Some(trailers.as_deref())).await;
                }
                Some(Part::Data(data)) if data.is_empty() => {}
                Some(Part::Data(data)) => {
                    let before = std::mem::replace(held, data);
                    if !before.is_empty() {
                        self.send(id, head, before, None).await?;
                    }
                }
                None => self.send(id, head, std::mem::take(held), None).await?,
            }
        }
    }

    /// Sends bytes and perhaps an end, waiting for room.
    ///
    /// # Errors
    /// `Gone`: the call has ended.
    pub(crate) async fn send(
        &self,
        id: u32,
        head: &mut Option<Vec<u8>>,
        mut body: Bytes,
        end: End<'_>,
    ) -> Result<(), Unsent> {
        let sent = poll_fn(|cx| {
            self.with(|state| {
                let sent = state.machine.send(id, head, &mut body, end, cx);
                state.write();
                match sent {
                    Ok(Sent::All) => Poll::Ready(Ok(())),
                    Ok(Sent::Blocked) => Poll::Pending,
                    Err(code) => Poll::Ready(Err(code)),
                }
            })
        });
        sent.await.map_err(|code| Unsent::Gone(self.error(code)))
    }
}

/// Exchanges the hellos, this end first, and returns the state of the connection and its frames.
///
/// # Errors
/// `Lost`, or `Protocol` if the peer speaks something else.
pub(crate) async fn connect(
    reader: Reader,
    mut writer: Writer,
    mut settings: Settings,
    origin: Origin,
    lending: Option<Lending>,
) -> Result<(Arc<Link>, Frames), Error> {
    settings.loans = lending.as_ref().map(Lending::ends);
    let lost = |error| Error::Lost(Arc::new(error));
    writer.write_all(&settings.hello(Some(&origin))).await.map_err(lost)?;
    writer.flush().await.map_err(lost)?;
    let mut reader = reader;
    let (mut peer, _) = read_hello(&mut reader).await?;
    agree(&mut settings, &mut peer);
    let machine = Machine::new(true, settings, peer, origin);
    Ok((Link::new(machine, writer, peer.calls, lending), Frames::new(reader, &settings)))
}

/// Exchanges the hellos, the peer first.
///
/// # Errors
/// As [`connect`].
pub(crate) async fn accept(
    mut reader: Reader,
    mut writer: Writer,
    mut settings: Settings,
    lending: Option<Lending>,
) -> Result<(Arc<Link>, Frames), Error> {
    settings.loans = lending.as_ref().map(Lending::ends);
    let lost = |error| Error::Lost(Arc::new(error));
    let (mut peer, origin) = read_hello(&mut reader).await?;
    writer.write_all(&settings.hello(None)).await.map_err(lost)?;
    writer.flush().await.map_err(lost)?;
    agree(&mut settings, &mut peer);
    let machine = Machine::new(false, settings, peer, origin);
    Ok((Link::new(machine, writer, 0, lending), Frames::new(reader, &settings)))
}

/// Lends and reads memory only if both ends do, over the same connection: a relay in between has two, and memory of neither end.
fn agree(settings: &mut Settings, peer: &mut Settings) {
    if peer.loans.is_none() || peer.loans != settings.loans.map(Ends::swapped) {
        (settings.loans, peer.loans) = (None, None);
    }
}

async fn read_hello(reader: &mut Reader) -> Result<(Settings, Origin), Error> {
    let lost = |error| Error::Lost(Arc::new(error));
    let mut start = [0; HELLO_START];
    reader.read_exact(&mut start).await.map_err(lost)?;
    let (length, has_loans) =
        Settings::from_start(&start).map_err(|malformed| Error::Protocol(malformed.0))?;
    let mut rest = vec![0; length];
    reader.read_exact(&mut rest).await.map_err(lost)?;
    Settings::from_hello(has_loans, &rest).map_err(|malformed| Error::Protocol(malformed.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    // In between two connections a relay may pass frames on: the memory of each end is that of another connection.
    #[test]
    fn both_directions_lend_over_one_connection_alone() {
        let settings = |ends: Option<[&str; 2]>| Settings {
            loans: ends.map(|[local, peer]| Ends {
                local: local.parse().expect("an address"),
                peer: peer.parse().expect("an address"),
            }),
            ..Config::default().settings
        };
        let [a, b, c] = ["10.0.0.1:1", "[fd00::1]:2", "10.0.0.1:3"];
        let cases = [
            (Some([a, b]), Some([b, a]), true),
            (Some([a, b]), Some([b, c]), false),
            (Some([a, b]), Some([c, a]), false),
            (Some([a, b]), Some([a, b]), false),
            (Some([a, b]), None, false),
            (None, Some([b, a]), false),
            (None, None, false),
        ];
        for (local, peer, agrees) in cases {
            let (mut own, mut other) = (settings(local), settings(peer));
            agree(&mut own, &mut other);
            assert_eq!([own, other].map(|end| end.loans.is_some()), [agrees; 2], "{local:?} {peer:?}");
        }
    }
}
