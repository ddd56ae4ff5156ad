//! Two ends of a connection on one thread: what each of them does is counted apart.

use std::hint::black_box;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use futures::future::{MaybeDone, maybe_done};
use futures::poll;
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;

/// How often an end waits for events before it is the turn of the other one, while a connection is made. It is no time, which
/// would have both make a connection in another order in each run.
const TURN: usize = 4;

pub(crate) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// A runtime for each end, as if each had a process. One runs at a time, so that the order of events is always the same:
/// an end waits only for what its peer has sent already.
pub(crate) struct Ends {
    active: Runtime,
    passive: Runtime,
}

impl Ends {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { active: runtime()?, passive: runtime()? })
    }

    /// Runs both futures in turns until both have ended. Neither is counted.
    pub(crate) fn prepare<A, P>(
        &self,
        active: impl Future<Output = io::Result<A>>,
        passive: impl Future<Output = io::Result<P>>,
    ) -> io::Result<(A, P)> {
        self.alternate(active, passive, [|work| work(); 2])
    }

    /// Runs both futures in turns until both have ended, each on its end. Bytes that a socket has no room for are written when
    /// the other end has read.
    pub(crate) fn both<A, P>(
        &self,
        active: impl Future<Output = io::Result<A>>,
        passive: impl Future<Output = io::Result<P>>,
    ) -> io::Result<(A, P)> {
        self.alternate(active, passive, [active_end, passive_end])
    }

    fn alternate<A, P>(
        &self,
        active: impl Future<Output = io::Result<A>>,
        passive: impl Future<Output = io::Result<P>>,
        [as_active, as_passive]: [fn(&mut dyn FnMut()); 2],
    ) -> io::Result<(A, P)> {
        let (mut active, mut passive) = (pin!(maybe_done(active)), pin!(maybe_done(passive)));
        while matches!(*active, MaybeDone::Future(_)) || matches!(*passive, MaybeDone::Future(_)) {
            as_active(&mut || self.active.block_on(turn(&mut active)));
            as_passive(&mut || self.passive.block_on(turn(&mut passive)));
        }
        let ended = || io::Error::from(io::ErrorKind::BrokenPipe);
        let (active, passive) = (active.take_output(), passive.take_output());
        Ok((active.ok_or_else(ended)??, passive.ok_or_else(ended)??))
    }

    /// Runs this on the active end.
    pub(crate) fn active<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let (mut work, mut result) = (Some(work), None);
        active_end(&mut || result = work.take().map(|work| self.active.block_on(work)));
        result.ok_or(io::ErrorKind::BrokenPipe)?
    }

    /// Runs this on the passive end.
    pub(crate) fn passive<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let (mut work, mut result) = (Some(work), None);
        passive_end(&mut || result = work.take().map(|work| self.passive.block_on(work)));
        result.ok_or(io::ErrorKind::BrokenPipe)?
    }
}

/// Runs both ends, each as a task of a runtime that has a thread of its own, so that every wait is a real one. The passive end sends
/// the address on which it listens.
pub(crate) fn tasks<P, A>(
    passive: impl FnOnce(Sender<SocketAddr>) -> P,
    active: impl FnOnce(SocketAddr) -> A,
) -> io::Result<()>
where
    P: Future<Output = io::Result<()>> + Send + 'static,
    A: Future<Output = io::Result<()>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel();
    let passive = spawn(passive(sender));
    let active = spawn(active(receiver.recv().map_err(io::Error::other)?));
    let join = |end: JoinHandle<_>| end.join().unwrap_or(Err(io::ErrorKind::BrokenPipe.into()));
    [active, passive].into_iter().try_for_each(join)
}

/// Runs this as a task, on a thread and a runtime of its own.
fn spawn(work: impl Future<Output = io::Result<()>> + Send + 'static) -> JoinHandle<io::Result<()>> {
    thread::spawn(|| runtime()?.block_on(async { tokio::spawn(work).await? }))
}

/// Runs this until it has ended, or until it has waited several times.
async fn turn(mut work: impl Future<Output = ()> + Unpin) {
    for _ in 0..TURN {
        if poll!(&mut work).is_ready() {
            return;
        }
        yield_now().await;
    }
}

/// The function by whose name callgrind's figures of the active end are found.
#[inline(never)]
fn active_end(work: &mut dyn FnMut()) {
    work();
    // With another value than in the next function, so that the compiler does not make one of both.
    black_box("active");
}

/// The same for the passive end.
#[inline(never)]
fn passive_end(work: &mut dyn FnMut()) {
    work();
    black_box("passive");
}
