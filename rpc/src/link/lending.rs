//! Long bodies one-sidedly, on devices: the memory that this end lends, and the reads of what the peer lends.

use std::future::{pending, poll_fn};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};
use tokio_rdma::error::RegisterError;
use tokio_rdma::io::OneSided;
use tokio_rdma::{Access, Pool, PoolConfig, RdmaStream, Region, RemoteRegion};

use super::Link;
use crate::error::Error;
use crate::machine::{Borrowed, Checked, LONGEST_LOAN, Lender, MOST_LOANS, Need};
use crate::wire::Ends;

/// The places in the memory that an end lends: 1 MiB, which it has while it is in use. With more, what is copied leaves the
/// cache before it is read.
const PLACES: usize = 4;
const _: () = assert!(PLACES <= MOST_LOANS);
/// The most buffers for what the peer lends. Half of them may be in the hands of the program.
const BUFFERS: usize = 16;
/// The time between two checks of the loans. Memory that was not used between two is given back.
const CHECKED: Duration = Duration::from_secs(10);

/// The process could not register memory for what a peer had lent: no peer of a new connection lends to it.
static LACKS_MEMORY: AtomicBool = AtomicBool::new(false);

/// The means of a connection to read memory of the peer.
pub(crate) struct Lending {
    one_sided: OneSided,
    ends: Ends,
    buffers: Mutex<Option<Pool>>,
}

impl Lending {
    /// Returns that of a stream, `None` if it has none: the soft provider reads into the memory of the reader anyway. An
    /// adapter of iWARP that names its buffers to the peer is left out: they would be writable while the program has them.
    pub(crate) fn of(stream: &dyn std::any::Any) -> Option<Self> {
        let stream = stream.downcast_ref::<RdmaStream>()?;
        let one_sided = stream.one_sided().filter(|_| !LACKS_MEMORY.load(Ordering::Relaxed))?;
        let connection = stream.connection();
        let ends = Ends::new(connection.local_addr(), connection.peer_addr());
        let is_named = one_sided.adapter().info().read_sink_required;
        (!is_named).then(|| Self { one_sided, ends, buffers: Mutex::default() })
    }

    /// Returns the addresses of the connection.
    pub(super) fn ends(&self) -> Ends {
        self.ends
    }

    /// Takes the buffers, to be dropped.
    pub(super) fn take_buffers(&self) -> Option<Pool> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the buffers, which are made when they are first used.
    fn buffers(&self) -> Result<Pool, RegisterError> {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = &*buffers {
            return Ok(pool.clone());
        }
        let pool = self.one_sided.adapter().pool(PoolConfig::new(LONGEST_LOAN, BUFFERS))?;
        Ok(buffers.insert(pool).clone())
    }

    /// Reads memory of the peer.
    async fn read(&self, borrowed: &Borrowed) -> Result<Bytes, Unread> {
        let pool = self.buffers()?;
        let buffer = pool.get().await?;
        let remote = RemoteRegion::from_bytes(borrowed.memory);
        let part = self.one_sided.read(buffer.part(0..borrowed.length), &remote).await;
        let buffer = part.map_err(Unread::Stream)?.into_buffer();
        // The others go on if the program keeps what it has been given.
        let is_scarce = pool.in_use() > BUFFERS / 2;
        Ok(if is_scarce {
            Bytes::copy_from_slice(&buffer[..borrowed.length])
        } else {
            buffer.freeze(borrowed.length)
        })
    }
}

/// Why a loan was not read.
enum Unread {
    /// There is no memory for it.
    Memory(RegisterError),
    Stream(io::Error),
}

impl From<RegisterError> for Unread {
    fn from(error: RegisterError) -> Self {
        match error {
            // It takes the connection along.
            RegisterError::DeviceRemoved => Self::Stream(io::ErrorKind::NotConnected.into()),
            error => Self::Memory(error),
        }
    }
}

/// A region of places for loans.
struct Places {
    region: Region,
    is_lent: [bool; PLACES],
}

impl Lender for Places {
    fn lend(&mut self, bytes: &[u8]) -> Option<(u32, [u8; 16])> {
        let place = self.is_lent.iter().position(|is_lent| !is_lent)?;
        let start = place * LONGEST_LOAN;
        self.region.write(start, bytes).ok()?;
        let memory = self.region.remote_part(start..start + bytes.len()).ok()?;
        self.is_lent[place] = true;
        Some((u32::try_from(place).ok()?, memory.to_bytes()))
    }

    fn take_back(&mut self, loan: u32) {
        if let Some(is_lent) = self.is_lent.get_mut(loan as usize) {
            *is_lent = false;
        }
    }
}

impl Link {
    /// Reads what the peer has lent, and returns the loan.
    pub(super) fn borrow(self: &Arc<Self>, borrowed: Borrowed) {
        let guard = Borrowing { link: self.clone(), borrowed, bytes: None };
        tokio::spawn(async move {
            let mut guard = guard;
            let Some(lending) = &guard.link.lending else { return };
            match lending.read(&guard.borrowed).await {
                Ok(bytes) => guard.bytes = Some(bytes),
                // The connection has ended.
                Err(Unread::Stream(error)) => tracing::debug!(%error, "no body read"),
                // The peer may lend over this connection, so later calls have another, without loans.
                Err(Unread::Memory(error)) => {
                    tracing::warn!(%error, "no memory for long bodies: they go in frames from now on");
                    LACKS_MEMORY.store(true, Ordering::Relaxed);
                    guard.link.go_away();
                }
            }
        });
    }

    /// Keeps memory for loans of both directions while it is in use. Ends the connection if the peer keeps a loan. Resolves when
    /// there can be no more loans.
    pub(super) async fn keep_memory(&self) {
        let Some(lending) = &self.lending else { return };
        let (mut next_check, mut is_refused) = (None, false);
        loop {
            let need = poll_fn(|cx| {
                let need = self.with(|state| state.machine.loans_need(cx));
                need.map_or(Poll::Pending, Poll::Ready)
            });
            let check = async {
                match next_check {
                    Some(time) => sleep_until(time).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                need = need => {
                    if matches!(need, Need::Memory) && !is_refused {
                        let length = PLACES * LONGEST_LOAN;
                        match lending.one_sided.adapter().register(length, Access::REMOTE_READ).await {
                            Ok(region) => {
                                let places = Places { region, is_lent: [false; PLACES] };
                                // `close` takes it if the connection has ended.
                                self.with(|state| state.machine.lend_from(Box::new(places)));
                            }
                            // Bodies go in frames, at least until the next check.
                            Err(error) => {
                                tracing::debug!(%error, "no memory for long bodies");
                                is_refused = true;
                            }
                        }
                    }
                    next_check = next_check.or_else(|| Some(Instant::now() + CHECKED));
                }
                () = check => {
                    is_refused = false;
                    match self.with(|state| state.machine.check_loans()) {
                        Checked::InUse => next_check = Some(Instant::now() + CHECKED),
                        Checked::Idle(memory) => {
                            drop((memory, lending.take_buffers()));
                            next_check = None;
                        }
                        Checked::Overdue => return self.fail(Error::Protocol("it keeps memory that it was lent")),
                    }
                }
            }
        }
    }
}

/// A loan that is returned when this is dropped, with what was read.
struct Borrowing {
    link: Arc<Link>,
    borrowed: Borrowed,
    bytes: Option<Bytes>,
}

impl Drop for Borrowing {
    fn drop(&mut self) {
        let Borrowed { call, loan, .. } = self.borrowed;
        let bytes = self.bytes.take();
        self.link.with(|state| {
            state.machine.borrowed(call, loan, bytes);
            state.write();
        });
    }
}
