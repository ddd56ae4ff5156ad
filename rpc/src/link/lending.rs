//! Long bodies one-sidedly, on devices: the memory that this end lends, and the reads of what the peer lends.

use std::fmt::Display;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;
use tokio_rdma::io::OneSided;
use tokio_rdma::{Access, Pool, PoolConfig, RdmaStream, Region, RemoteRegion};

use super::Link;
use crate::error::Error;
use crate::machine::{Borrowed, Checked, LONGEST_LOAN, Lender, MOST_LOANS};

/// The places in the memory that an end lends: 4 MiB, which it has while it is in use.
const PLACES: usize = 16;
const _: () = assert!(PLACES <= MOST_LOANS);
/// The buffers for what the peer lends. Half of them may be in the hands of the program.
const BUFFERS: usize = 16;
/// The time between two checks of the loans. Memory that was not used between two is given back.
const CHECKED: Duration = Duration::from_secs(10);

/// The means of a connection to read memory of the peer.
pub(crate) struct Lending {
    one_sided: OneSided,
    buffers: OnceLock<Pool>,
}

impl Lending {
    /// Returns that of a stream, `None` if it has none: the soft provider reads into the memory of the reader anyway. An
    /// adapter of iWARP that names its buffers to the peer is left out: they would be writable while the program has them.
    pub(crate) fn of(stream: &dyn std::any::Any) -> Option<Self> {
        let one_sided = stream.downcast_ref::<RdmaStream>()?.one_sided()?;
        let is_named = one_sided.adapter().info().read_sink_required;
        (!is_named).then(|| Self { one_sided, buffers: OnceLock::new() })
    }

    /// Reads memory of the peer.
    async fn read(&self, borrowed: &Borrowed) -> Result<Bytes, String> {
        let text = |error: &dyn Display| error.to_string();
        let pool = match self.buffers.get() {
            Some(pool) => pool,
            None => {
                let config = PoolConfig::new(LONGEST_LOAN, BUFFERS);
                let pool = self.one_sided.adapter().pool(config).map_err(|error| text(&error))?;
                self.buffers.get_or_init(|| pool)
            }
        };
        let buffer = pool.get().await.map_err(|error| text(&error))?;
        let remote = RemoteRegion::from_bytes(borrowed.memory);
        let part = self.one_sided.read(buffer.part(0..borrowed.length), &remote).await;
        let buffer = part.map_err(|error| text(&error))?.into_buffer();
        // The others go on if the program keeps what it has been given.
        let is_scarce = pool.in_use() > BUFFERS / 2;
        Ok(if is_scarce {
            Bytes::copy_from_slice(&buffer[..borrowed.length])
        } else {
            buffer.freeze(borrowed.length)
        })
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
                Err(error) => tracing::debug!(call = guard.borrowed.call, error, "no body read"),
            }
        });
    }

    /// Keeps memory for loans while it is in use. Ends the connection if the peer keeps a loan. Resolves when there can be no
    /// more loans.
    pub(super) async fn keep_memory(&self) {
        let Some(lending) = &self.lending else { return };
        loop {
            std::future::poll_fn(|cx| {
                let is_wanted = self.with(|state| state.machine.wants_memory(cx.waker()));
                if is_wanted { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
            let length = PLACES * LONGEST_LOAN;
            let region = match lending.one_sided.adapter().register(length, Access::REMOTE_READ).await {
                Ok(region) => region,
                // Bodies go in frames.
                Err(error) => return tracing::debug!(%error, "no memory for long bodies"),
            };
            let places = Places { region, is_lent: [false; PLACES] };
            self.with(|state| state.machine.lend_from(Box::new(places)));
            loop {
                sleep(CHECKED).await;
                match self.with(|state| state.machine.check_loans()) {
                    Checked::InUse => {}
                    Checked::Idle(memory) => break drop(memory),
                    Checked::Overdue => {
                        return self.fail(Error::Protocol("it keeps memory that it was lent"));
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
