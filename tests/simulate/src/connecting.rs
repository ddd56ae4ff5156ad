//! Connecting: both users do what the seed draws, until they are connected or give up.

use std::cell::RefCell;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_rdma::error::{AcceptError, ConnectError};
use tokio_rdma::sim::Host;
use tokio_rdma::{
    AcceptParams, ConnectParams, Connection, Connector, Listener, QueuePair, ReadLimits, Reply, Request,
};

use crate::end::End;
use crate::world::World;

/// The most attempts.
const ATTEMPTS: u8 = 4;

/// Something that a user does in an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// It does its part.
    Honest,
    /// It drops the future of connect or accept.
    DropCall,
    /// It drops the reply or the request.
    DropHandle,
    /// It rejects.
    Reject,
    /// It drops the future of complete.
    DropComplete,
    /// It takes its time.
    Slow,
    /// The passive end closes its listener, with whatever has come.
    Close,
}

impl Manner {
    fn draw(world: &World) -> Self {
        use Manner::*;
        *world.pick(&[
            Honest,
            Honest,
            Honest,
            Honest,
            DropCall,
            DropHandle,
            Reject,
            DropComplete,
            Slow,
            Close,
        ])
    }

    /// Returns whether it leads to a connection.
    fn connects(self) -> bool {
        matches!(self, Self::Honest | Self::Slow)
    }
}

/// An attempt as it is drawn.
struct Attempt<'a> {
    world: &'a World,
    /// The first byte of all private data.
    number: u8,
    active: Manner,
    passive: Manner,
    request: Vec<u8>,
    reply: Vec<u8>,
    reject: Vec<u8>,
    limits: [ReadLimits; 2],
    /// It has to succeed.
    forced: bool,
    /// The active end is done with connecting: no request comes any more.
    over: Notify,
}

impl<'a> Attempt<'a> {
    fn draw(world: &'a World, end: &End, number: u8) -> Self {
        let info = end.adapter.info();
        let limit = || *world.pick(&[0, 1, 2, 16, 16, u32::MAX]);
        let (active, passive) = (Manner::draw(world), Manner::draw(world));
        // The last one of a calm network always succeeds.
        let forced = world.calm && number == ATTEMPTS;
        Self {
            world,
            number,
            // Only the passive end has a listener, and only the active one a second step that could be dropped.
            active: if forced || active == Manner::Close { Manner::Honest } else { active },
            passive: if forced || passive == Manner::DropComplete { Manner::Honest } else { passive },
            request: world.data(number, info.max_request_data),
            reply: world.data(number + 100, info.max_reply_data),
            reject: world.data(number + 200, info.max_reject_data),
            limits: [(); 2].map(|()| ReadLimits::new(limit(), limit())),
            forced,
            over: Notify::new(),
        }
    }

    /// The active end.
    async fn connect(
        &self,
        connector: &Connector,
        queue_pair: &QueuePair,
        server: (&Host, u16),
    ) -> Option<Connection> {
        let world = self.world;
        let timeout = if self.forced { 60_000 } else { *world.pick(&[50, 20_000, 60_000, 60_000]) };
        let timeout = Duration::from_millis(timeout);
        let params = ConnectParams::default().private_data(&self.request).read_limits(self.limits[0]);
        let connect =
            connector.connect(queue_pair, (server.0.address(), server.1).into(), params.timeout(timeout));
        world.count();
        let outcome = match self.active {
            Manner::DropCall => world.cut("connect", connect).await,
            _ => Some(world.within("connect", connect).await),
        };
        self.over.notify_one();
        let reply = match outcome? {
            Ok(reply) => reply,
            Err(error) => {
                self.check_refusal(&error, timeout);
                return None;
            }
        };
        assert_eq!(reply.private_data()[..], self.reply[..]);
        self.reply(reply).await
    }

    /// The active end completes, rejects or drops a reply.
    async fn reply(&self, reply: Reply) -> Option<Connection> {
        let world = self.world;
        world.count();
        match self.active {
            Manner::DropHandle => return None,
            Manner::Reject => {
                let outcome = world.within("reject", reply.reject(&[])).await;
                let gone = outcome.as_ref().is_err_and(|refused| is_gone(&refused.error));
                assert!(outcome.is_ok() || gone && !self.is_calm(), "reject: {outcome:?}");
                return None;
            }
            Manner::Slow => sleep(world.time(5000)).await,
            _ => {}
        }
        let outcome = match self.active {
            Manner::DropComplete => world.cut("complete", reply.complete()).await?,
            _ => world.within("complete", reply.complete()).await,
        };
        match outcome {
            Ok(connection) => Some(connection),
            Err(error) => {
                assert!(is_gone(&error) && !self.is_calm(), "complete: {error:?}");
                None
            }
        }
    }

    /// Returns whether nothing happens to a passive end that has accepted.
    fn is_calm(&self) -> bool {
        self.world.calm && self.passive.connects()
    }

    /// Checks why a connect failed.
    fn check_refusal(&self, error: &ConnectError, timeout: Duration) {
        match error {
            ConnectError::Rejected { private_data, .. } => {
                let data = private_data.as_deref().unwrap_or_default();
                assert!(self.passive == Manner::Reject && *data == self.reject[..], "{error:?}");
            }
            ConnectError::TimedOut { .. } if timeout < Duration::from_secs(1) => {}
            ConnectError::Refused { .. } if self.passive != Manner::Honest => {}
            ConnectError::Refused { .. }
            | ConnectError::TimedOut { .. }
            | ConnectError::HostUnreachable { .. }
            | ConnectError::NetworkUnreachable { .. }
            | ConnectError::DeviceRemoved
            | ConnectError::Bind(_)
            | ConnectError::Other { .. }
                if !self.world.calm => {}
            _ => panic!("{:?} and {:?}: {error:?}", self.active, self.passive),
        }
    }

    /// The passive end: waits for the request of this attempt, and answers it.
    async fn accept(
        &self,
        listener: &RefCell<Option<Listener>>,
        queue_pair: &QueuePair,
    ) -> Option<Connection> {
        if self.passive == Manner::Close {
            sleep(self.world.time(500)).await;
            listener.take();
            return None;
        }
        let listener = &listener.borrow().clone()?;
        let request = loop {
            let request = tokio::select! {
                biased;
                request = self.request(listener) => request?,
                () = self.over.notified() => return None,
            };
            // One of an earlier attempt, which nobody waits for any more.
            let number = request.private_data().first().expect("a request has its private data");
            if *number == self.number {
                break request;
            }
        };
        assert_eq!(request.private_data()[..], self.request[..]);
        self.answer(request, queue_pair).await
    }

    /// The next request. A wait that is dropped loses none.
    async fn request(&self, listener: &Listener) -> Option<Request> {
        loop {
            self.world.count();
            let request = listener.request();
            let outcome = match self.world.once_in(3) {
                true => self.world.cut("request", request).await,
                false => Some(request.await),
            };
            match outcome {
                None => {}
                Some(Ok(request)) => return Some(request),
                Some(Err(AcceptError::DeviceRemoved)) if !self.world.calm => return None,
                Some(Err(error)) => panic!("{error:?}"),
            }
        }
    }

    /// The passive end accepts, rejects or drops a request.
    async fn answer(&self, request: Request, queue_pair: &QueuePair) -> Option<Connection> {
        let world = self.world;
        world.count();
        match self.passive {
            Manner::DropHandle => return None,
            Manner::Reject => {
                let outcome = world.within("reject", request.reject(&self.reject)).await;
                // The active end may have given up before.
                let listed = outcome.as_ref().err().is_none_or(|refused| {
                    matches!(refused.error, AcceptError::Aborted { .. } | AcceptError::DeviceRemoved)
                });
                assert!(listed, "reject: {outcome:?}");
                return None;
            }
            Manner::Slow => sleep(world.time(5000)).await,
            _ => {}
        }
        let params = AcceptParams::default().private_data(&self.reply).read_limits(self.limits[1]);
        let accept = request.accept(queue_pair, params);
        let outcome = match self.passive {
            Manner::DropCall => world.cut("accept", accept).await?,
            _ => world.within("accept", accept).await,
        };
        match outcome {
            Ok(connection) => Some(connection),
            Err(refused) => {
                let is_listed = matches!(
                    refused.error,
                    AcceptError::Refused { .. }
                        | AcceptError::Aborted { .. }
                        | AcceptError::TimedOut { .. }
                        | AcceptError::DeviceRemoved
                );
                assert!(is_listed, "accept: {:?}", refused.error);
                None
            }
        }
    }
}

/// Returns whether the peer, or the adapter, went away behind its reply.
fn is_gone(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Aborted { .. } | ConnectError::DeviceRemoved)
}

/// Listens, unless a fault prevents it.
fn listen(world: &World, (host, port): (&Host, u16), passive: &End) -> Option<Listener> {
    world.count();
    let listener = passive.adapter.listener();
    let bound = listener.bind((host.address(), port).into()).and_then(|()| listener.listen(0));
    assert!(bound.is_ok() || !world.calm, "{bound:?}");
    bound.ok().map(|()| listener)
}

/// Connects two ends, unless a fault prevents it. The ends get their connections.
pub(crate) async fn connect(world: &World, server: (&Host, u16), passive: &End, active: &End) -> Option<()> {
    let listener = RefCell::new(None::<Listener>);
    for number in 1..=ATTEMPTS {
        if listener.borrow().is_none() {
            listener.replace(Some(listen(world, server, passive)?));
        }
        let attempt = Attempt::draw(world, active, number);
        let (ours, theirs) = (active.queue_pair()?, passive.queue_pair()?);
        let connector = active.adapter.connector();
        let (active_end, passive_end) =
            tokio::join!(attempt.connect(&connector, &ours, server), attempt.accept(&listener, &theirs));
        if let (Some(active_end), Some(passive_end)) = (&active_end, &passive_end) {
            assert_eq!(active_end.read_limits(), passive_end.read_limits().swapped());
            let within = |limits: ReadLimits, asked: ReadLimits| {
                limits.inbound <= asked.inbound && limits.outbound <= asked.outbound
            };
            assert!(within(active_end.read_limits(), attempt.limits[0]));
            assert!(within(passive_end.read_limits(), attempt.limits[1]));
            active.connection.replace(Some(active_end.clone()));
            passive.connection.replace(Some(passive_end.clone()));
            return Some(());
        }
        assert!(!attempt.forced, "it is calm, and nobody has refused");
        // A queue pair that was connected cannot be used again.
        if let Some(half) = active_end.or(passive_end) {
            world.within("the end of half a connection", half.disconnected()).await;
            return None;
        }
    }
    None
}
