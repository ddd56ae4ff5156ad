//! A byte stream with a session: it goes on over another connection after a loss.

use std::io;
use std::time::Duration;

use tokio::time::sleep;
use tokio_rdma::sim::Host;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{Provider, RdmaConnector, RdmaListener, RdmaStream, SessionConfig, StreamConfig};

use crate::streams::Load;
use crate::world::{PATH_TIMEOUT, World};

/// The time for which a stream goes without a connection, and without progress when it closes. Both together are over before the
/// world looks for what is left.
const PATIENCE: Duration = Duration::from_secs(100);

/// The most time of faults that a stream outlives in any case: a connection attempt under way takes 10 s more.
const OUTLIVED: Duration = Duration::from_secs(50);

/// How the stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// Both ends write everything, and read everything.
    Complete,
    /// The same without a listener for other connections.
    Deaf,
    /// An end is dropped meanwhile.
    Drop,
    /// An end is dropped meanwhile, without lingering.
    Abandon,
}

/// The writing and the reading of an end.
type Outcome = (io::Result<()>, (usize, io::Result<()>));

fn provider(world: &World, host: &Host) -> Provider {
    host.provider_with(SoftConfig::default().path_timeout(Some(PATH_TIMEOUT)).crc(world.once_in(2)))
}

/// A stream, from its beginning to its end.
pub(crate) async fn session(world: &World, port: u16) {
    let (server, client) = world.two_hosts();
    let buffer = || *world.pick(&[2048, 4096, 65_536]);
    let session = SessionConfig::default().give_up_after(PATIENCE).window(buffer());
    let config = StreamConfig::default().send_buffer(buffer()).receive_buffer(buffer());
    let config = config.session(session).close_timeout(PATIENCE);
    let (passive, active) = (provider(world, server), provider(world, client));
    let Ok(adapter) = passive.open(server.address()).inspect_err(|error| assert!(!world.calm, "{error:?}"))
    else {
        return;
    };
    let listener = match RdmaListener::bind_on(&adapter, (server.address(), port).into(), &config) {
        Ok(listener) => listener,
        Err(error) => {
            assert!(!world.calm, "{error:?}");
            return;
        }
    };
    world.count();
    let connector = RdmaConnector::new().provider(active).config(config);
    let connected = async {
        let connecting = connector.connect((server.address(), port));
        let connected = world.within("a stream to connect", connecting).await;
        assert!(connected.is_ok() || !world.calm, "{connected:?}");
        connected.ok()
    };
    let (ours, theirs) = tokio::select! {
        biased;
        both = async { tokio::join!(connected, listener.accept()) } => both,
        () = sleep(world.patience()) => return,
    };
    let (Some(ours), Ok((theirs, _))) = (ours, theirs) else { return };
    assert!(ours.session().is_some() && theirs.session().is_some());
    let ending =
        *world.pick(&[Ending::Complete, Ending::Complete, Ending::Deaf, Ending::Drop, Ending::Abandon]);
    // Others need not lose the connections of a calm world.
    if !world.calm && world.once_in(2) {
        tokio::join!(live(world, [ours, theirs], listener, ending), resets(world, server, client));
    } else {
        live(world, [ours, theirs], listener, ending).await;
    }
}

/// Loses the connections several times.
async fn resets(world: &World, server: &Host, client: &Host) {
    for _ in 0..world.draw(1..=5) {
        sleep(world.time(2000)).await;
        world.network.reset(server, client);
    }
}

/// Moves bytes both ways until the stream ends.
async fn live(world: &World, ends: [RdmaStream; 2], listener: RdmaListener, ending: Ending) {
    let _listener = (ending != Ending::Deaf).then_some(listener);
    let loads = [Load::draw(world), Load::draw(world)];
    let [ours, theirs] = ends;
    if matches!(ending, Ending::Complete | Ending::Deaf) {
        let [ours, theirs] = [(ours, 0), (theirs, 1)].map(|(end, own)| exchange(world, end, loads, own));
        let ((our_writes, our_reads), (their_writes, their_reads)) = tokio::join!(ours, theirs);
        let outlives = ending == Ending::Complete && world.disturbed() <= OUTLIVED;
        let holds = world.calm || outlives;
        loads[0].check(&our_writes, &their_reads, holds);
        loads[1].check(&their_writes, &our_reads, holds);
        return;
    }
    let (closed, open, own) = if world.once_in(2) { (ours, theirs, 0) } else { (theirs, ours, 1) };
    if ending == Ending::Abandon {
        closed.set_zero_linger().expect("set");
    }
    let time = world.time(*world.pick(&[10, 500, 20_000]));
    let closing = async {
        tokio::select! {
            biased;
            _ = exchange(world, closed, loads, own) => {}
            () = sleep(time) => {}
        }
    };
    // Each of its calls ends in time, whatever the outcome is.
    let _ = tokio::join!(closing, exchange(world, open, loads, 1 - own));
}

/// Writes the bytes of an end, and reads those of the other.
async fn exchange(world: &World, end: RdmaStream, loads: [Load; 2], own: usize) -> Outcome {
    let (reader, writer) = end.into_split();
    tokio::join!(loads[own].write(world, writer), loads[1 - own].read(world, reader))
}
