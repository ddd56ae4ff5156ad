//! Lanes over a device that misbehaves: whose the memory of a slot is, at every end that there is.

mod end;
mod idle;
mod posts;
mod walk;

use std::net::SocketAddr;
use std::time::Duration;

use common::verbs::fake;
use common::*;
use tokio_rdma::qp::{Done, Lane, LaneConfig, LaneQueuePair, LaneState, QueuePairId, Slot};
use tokio_rdma::verbs::VerbsConfig;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Connection, Provider, QueuePair};

/// A lane with one connection to a queue pair of the same adapter.
struct Joined {
    lane: Lane,
    id: QueuePairId,
    end: LaneQueuePair,
    connection: Connection,
    peer: QueuePair,
    other: Connection,
}

/// Opens an adapter with this path timeout.
fn open(path_timeout: Option<Duration>) -> Adapter {
    let provider =
        Provider::verbs_with(VerbsConfig::default().path_timeout(path_timeout)).expect("a provider");
    provider.open(provider.resolve(v4()).expect("the device has the address")).expect("opened")
}

fn lane(adapter: &Adapter, config: LaneConfig) -> Lane {
    adapter.lane(&config).expect("a lane")
}

/// Connects a queue pair of a lane to one of the adapter.
async fn connect(adapter: &Adapter, end: &LaneQueuePair) -> (Connection, QueuePair, Connection) {
    let (listener, address) = listening(adapter);
    let peer = queue_pair(adapter);
    let (connection, other) =
        joined(connecting(adapter, end, address), listener.accept_next(&peer, AcceptParams::default())).await;
    (connection, peer, other)
}

async fn connecting(
    adapter: &Adapter,
    end: &LaneQueuePair,
    address: SocketAddr,
) -> Result<Connection, impl std::fmt::Debug + use<>> {
    adapter.connector().connect_and_complete(end, address, ConnectParams::default()).await
}

/// Connects two queue pairs of lanes. A message that finds no receive is repeated soon.
async fn connect_lanes(adapter: &Adapter, one: &LaneQueuePair, other: &LaneQueuePair) -> [Connection; 2] {
    let (listener, address) = listening(adapter);
    let accepting = listener.accept_next(other, AcceptParams::default().rnr_timer(1));
    let connector = adapter.connector();
    let params = ConnectParams::default().rnr_timer(1);
    joined(connector.connect_and_complete(one, address, params), accepting).await.into()
}

/// Makes a lane, posts as many receives, and connects it.
async fn join(adapter: &Adapter, config: LaneConfig, receives: usize) -> Joined {
    let mut lane = lane(adapter, config);
    let (id, end) = lane.queue_pair().expect("a queue pair");
    let slots: Vec<Slot> = (0..receives).map(|_| lane.take().expect("a slot")).collect();
    assert_eq!(lane.receive_all(id, slots).expect("posted"), receives);
    let (connection, peer, other) = connect(adapter, &end).await;
    assert_eq!(lane.state(id), LaneState::Connected);
    Joined { lane, id, end, connection, peer, other }
}

/// Waits for as many completions.
async fn completions(lane: &mut Lane, count: usize) -> Vec<Done> {
    let (mut all, mut room) = (Vec::new(), [Done::EMPTY; 7]);
    while all.len() < count {
        all.extend_from_slice(within(lane.ready(&mut room)).await.expect("the lane lives"));
    }
    assert_eq!(all.len(), count);
    all
}

/// Polls until a queue pair is gone, with room for so many completions. Returns those that have come by then.
async fn until_gone(lane: &mut Lane, id: QueuePairId, room: usize) -> Vec<Done> {
    let (mut all, mut room) = (Vec::new(), vec![Done::EMPTY; room]);
    within(async {
        while lane.state(id) != LaneState::Gone {
            all.extend_from_slice(lane.poll(&mut room).expect("the lane lives"));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    all
}

/// Fills a free slot with this byte.
fn filled(lane: &mut Lane, byte: u8) -> Slot {
    let slot = lane.take().expect("a free slot");
    lane.bytes_mut(slot).fill(byte);
    slot
}

/// Returns how many objects of this kind the device has.
fn count(kind: &str) -> i64 {
    fake(&format!("count {kind}")).expect("a number")
}
