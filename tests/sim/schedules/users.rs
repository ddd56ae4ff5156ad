//! Both users: what they do, and when, is drawn from the seed.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_rdma::error::ConnectError;
use tokio_rdma::sim::{Host, Network};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{
    AcceptParams, Adapter, Buffer, ConnectParams, Connection, Connector, Listener, Op, QueuePair, ReadLimits,
    Reply, Request,
};

use super::checks::{Facts, Terms, number_in};
use crate::tools::{Call, PORTS, Side, close, ms};
use crate::{PORT, queue_pair};
use Side::{Active, Passive};

/// The handles of a side, which somebody else may use at any time.
#[derive(Default)]
pub(super) struct Handles {
    pub(super) connector: RefCell<Option<Connector>>,
    pub(super) listener: RefCell<Option<Listener>>,
    pub(super) connection: RefCell<Option<Connection>>,
    pub(super) queue_pair: RefCell<Option<QueuePair>>,
}

/// Both users, on their hosts.
pub(super) struct Users {
    pub(super) network: Network,
    /// The hosts of the active and of the passive side.
    pub(super) hosts: [Host; 2],
    pub(super) configs: [SoftConfig; 2],
    pub(super) facts: Facts,
    pub(super) handles: [Handles; 2],
    /// The receives that were posted: each has a result at the end.
    pub(super) receives: RefCell<Vec<Op<Buffer>>>,
    attempts: Cell<u16>,
    /// The active user has come to the end.
    done: Cell<bool>,
}

impl Users {
    pub(super) fn new(network: &Network, hosts: [Host; 2]) -> Self {
        let facts = Facts::default();
        let config = || {
            let patience = network.random(0..=1000);
            // The answer may come later than that.
            facts.faulty.set(facts.faulty.get() || patience < 100);
            SoftConfig::default()
                .crc(network.random(0..=1) == 1)
                .path_timeout(Some(ms(network.random(1000..=30_000))))
                .disconnect_timeout(ms(patience))
                .ephemeral_ports(PORTS)
        };
        let configs = [config(), config()];
        Self {
            network: network.clone(),
            hosts,
            configs,
            facts,
            handles: Default::default(),
            receives: RefCell::default(),
            attempts: Cell::new(0),
            done: Cell::new(false),
        }
    }

    /// Whether something happens that does so many times out of a hundred.
    fn chance(&self, percent: u64) -> bool {
        self.network.random(1..=100) <= percent
    }

    /// A time of up to so many milliseconds, often none.
    fn time(&self, most: u64) -> Duration {
        if self.chance(20) { Duration::ZERO } else { ms(self.network.random(0..=most)) }
    }

    async fn think(&self) {
        sleep(self.time(60)).await;
    }

    /// Terms for an attempt, seldom too long.
    fn terms(&self, number: u16) -> Terms {
        let length = match self.network.random(0..=9) {
            0 => 0,
            1 => 252,
            2 => 253,
            _ => self.network.random(2..=252),
        };
        let mut data: Vec<u8> = (0..length).map(|place| (place * 31 + length) as u8).collect();
        if let Some(start) = data.first_chunk_mut() {
            *start = number.to_be_bytes();
        }
        let limit = || match self.network.random(0..=4) {
            0 => 0,
            1 => u32::MAX,
            _ => u32::try_from(self.network.random(1..=140)).unwrap_or(0),
        };
        Terms { data, limits: ReadLimits::new(limit(), limit()) }
    }

    /// The adapter of a side, once its host has an interface.
    async fn open(&self, side: Side) -> Adapter {
        let (host, config) = (&self.hosts[side as usize], &self.configs[side as usize]);
        loop {
            match host.provider_with(config.clone()).open(host.address()) {
                Ok(adapter) => return adapter,
                Err(_) => sleep(ms(50)).await,
            }
        }
    }

    /// A new queue pair with a receive.
    fn pair(&self, side: Side, adapter: &Adapter) -> Option<QueuePair> {
        if adapter.is_removed() {
            return None;
        }
        let pair = queue_pair(adapter);
        let posted = adapter.buffer(16).ok().and_then(|buffer| pair.receive(buffer).ok());
        self.receives.borrow_mut().extend(posted);
        *self.handles[side as usize].queue_pair.borrow_mut() = Some(pair.clone());
        Some(pair)
    }

    /// Makes some connectors, each with some attempts.
    pub(super) async fn active(&self) {
        for _ in 0..self.network.random(1..=2) {
            let adapter = self.open(Active).await;
            let connector = adapter.connector();
            let bound = self.chance(30);
            if bound && connector.bind((self.hosts[0].address(), 0).into()).is_err() {
                continue;
            }
            *self.handles[0].connector.borrow_mut() = Some(connector);
            for _ in 0..3 {
                self.think().await;
                if !self.attempt(&adapter).await {
                    break;
                }
            }
            self.handles[0].connector.take();
        }
        self.done.set(true);
    }

    /// Makes an attempt. Whether the connector can be used again.
    async fn attempt(&self, adapter: &Adapter) -> bool {
        let number = self.attempts.get();
        self.attempts.set(number + 1);
        let Some(pair) = self.pair(Active, adapter) else { return false };
        let terms = self.terms(number);
        let mut params = ConnectParams::default().private_data(&terms.data).read_limits(terms.limits);
        let limit = self.chance(30).then(|| self.time(200));
        if let Some(limit) = limit {
            params = params.timeout(limit);
        }
        self.facts.of(number, |attempt| attempt.request = Some(terms));
        let address = (self.hosts[1].address(), PORT).into();
        let asking = self.handles[0].connector.borrow().as_ref().map(|it| it.connect(&pair, address, params));
        drop(pair);
        let Some(asking) = asking else { return false };
        let begun = Instant::now();
        let asking = self.facts.call(Call::Connect, asking);
        let patience = if self.chance(10) { self.time(200) } else { Duration::from_secs(1000) };
        match timeout(patience, asking).await {
            Ok(Ok(reply)) => {
                self.answer(number, adapter, reply).await;
                false
            }
            Ok(Err(error)) => {
                self.facts.check_connect(number, &error, begun, limit);
                error.is_connector_usable() && !matches!(error, ConnectError::Bind(_))
            }
            // Its future is dropped.
            Err(_) => false,
        }
    }

    /// Completes a reply, or says no.
    async fn answer(&self, number: u16, adapter: &Adapter, reply: Reply) {
        if !adapter.is_removed() {
            self.facts.check_reply(number, reply.private_data(), reply.read_limits());
        }
        let decline = || self.facts.of(number, |attempt| attempt.declined = true);
        self.think().await;
        let reply = match self.network.random(0..=9) {
            0 => {
                decline();
                return drop(reply);
            }
            1 => {
                decline();
                return drop(reply.reject(b"").await);
            }
            2 => match reply.reject(b"there is no place for it").await {
                Err(retained) => match retained.handle {
                    Some(reply) => reply,
                    None => return,
                },
                Ok(()) => panic!("there is no place for it"),
            },
            _ => reply,
        };
        self.facts.of(number, |attempt| attempt.completed = true);
        match self.facts.call(Call::Complete, reply.complete()).await {
            Ok(connection) => {
                self.facts.check_connected(number, Active, connection.read_limits());
                self.live(number, Active, connection).await;
            }
            Err(error) => self.facts.check_complete(&error),
        }
    }

    /// Listens, and serves one request after the other.
    pub(super) async fn passive(&self) {
        while !self.done.get() {
            let adapter = self.open(Passive).await;
            let listener = adapter.listener();
            let backlog = usize::try_from(self.network.random(0..=2)).unwrap_or(0);
            let bound = listener.bind((self.hosts[1].address(), PORT).into());
            if bound.and_then(|()| listener.listen(backlog)).is_err() {
                sleep(ms(10)).await;
                continue;
            }
            *self.handles[1].listener.borrow_mut() = Some(listener.clone());
            while !self.done.get() && listener.local_addr().is_ok() {
                // Seldom it closes the listener, with the requests that have come meanwhile.
                if self.chance(10) {
                    self.think().await;
                    break;
                }
                let waiting = self.facts.call(Call::Request, listener.request());
                // Nothing is lost with a future that is dropped.
                if let Ok(Ok(request)) = timeout(self.time(300), waiting).await {
                    self.decide(&adapter, request).await;
                } else {
                    sleep(ms(1)).await;
                }
            }
            self.handles[1].listener.take();
            close(Some(listener));
        }
    }

    /// Accepts a request, or says no.
    async fn decide(&self, adapter: &Adapter, request: Request) {
        let number = number_in(request.private_data());
        if !adapter.is_removed() {
            self.facts.check_request(request.private_data(), request.read_limits());
        }
        self.think().await;
        let terms = self.terms(number.unwrap_or(u16::MAX));
        let note = |change: &dyn Fn(&mut super::checks::Attempt)| {
            if let Some(number) = number {
                self.facts.of(number, change);
            }
        };
        match self.network.random(0..=9) {
            0 => return drop(request),
            1 => {
                note(&|attempt| attempt.reject = Some(terms.data.clone()));
                if let Err(retained) = request.reject(&terms.data).await {
                    self.facts.check_accept(number, &retained.error);
                }
                return;
            }
            _ => {}
        }
        let Some(pair) = self.pair(Passive, adapter) else { return };
        let params = AcceptParams::default().private_data(&terms.data).read_limits(terms.limits);
        note(&|attempt| attempt.reply = Some(terms.clone()));
        let accepting = async { request.accept(&pair, params).await.map_err(|retained| retained.error) };
        let accepting = self.facts.call(Call::Accept, accepting);
        let patience = if self.chance(10) { self.time(200) } else { Duration::from_secs(1000) };
        let accepted = timeout(patience, accepting).await;
        drop(pair);
        match accepted {
            Ok(Ok(connection)) => {
                if let Some(number) = number {
                    self.facts.check_connected(number, Passive, connection.read_limits());
                }
                self.live(number.unwrap_or(u16::MAX), Passive, connection).await;
            }
            Ok(Err(error)) => self.facts.check_accept(number, &error),
            // Its future is dropped.
            Err(_) => note(&|attempt| attempt.abrupt = true),
        }
    }

    /// Does some things with a connection, and drops it.
    async fn live(&self, number: u16, side: Side, connection: Connection) {
        *self.handles[side as usize].connection.borrow_mut() = Some(connection.clone());
        for _ in 0..self.network.random(0..=4) {
            match self.network.random(0..=5) {
                0 | 1 => {
                    let waiting = self
                        .facts
                        .call(Call::Disconnected, async { Err::<(), _>(connection.disconnected().await) });
                    if let Ok(Err(reason)) = timeout(self.time(300), waiting).await {
                        self.facts.check_reason(number, side, &reason);
                    }
                }
                2 | 3 => {
                    let begun = Instant::now();
                    let leaving = self.facts.call(Call::Disconnect, connection.disconnect());
                    // It goes on without its future.
                    if let Ok(Err(error)) = timeout(self.time(2000), leaving).await {
                        self.facts.check_disconnect(number, side, &error, begun);
                    }
                }
                _ => sleep(self.time(60)).await,
            }
        }
        self.handles[side as usize].connection.take();
        self.handles[side as usize].queue_pair.take();
    }
}
