//! Both sides act at the same time, or nearly so: one comes so much later than the other, before, with and after the news of it.

use std::cmp::Ordering;
use std::ops::RangeInclusive;

use futures::FutureExt;
use futures::future::join_all;
use tokio::time::{sleep, timeout};
use tokio_rdma::error::{AcceptError, ConnectError};
use tokio_rdma::sim::{self, Host, Network};
use tokio_rdma::{AcceptParams, ConnectParams, DisconnectReason};

use crate::story::LATENCY;
use crate::tools::{close, ms};
use crate::{End, SECOND, adapter, connected, hosts, listening, queue_pair};

/// The instant at which a request arrives that is made at the start.
const REQUEST: u64 = 3 * LATENCY;
/// The instant at which its reply arrives if it is accepted at once.
const REPLY: u64 = 4 * LATENCY;

/// Runs a test for each of these times, in milliseconds, which it has as its seed, and fails one that does not end.
fn check<F: Future<Output = ()>>(times: RangeInclusive<u64>, test: impl Fn(Network) -> F) {
    sim::check(times, |network| {
        timeout(600 * SECOND, test(network)).map(|ended| ended.expect("somebody waits for ever"))
    });
}

/// A server and a client, with the latency of these tests between them.
fn near(network: &Network) -> (Host, Host) {
    let (server, client) = hosts(network);
    network.link(&server, &client).latency(ms(LATENCY)..=ms(LATENCY));
    (server, client)
}

/// Both ends of a connection, the active one first.
async fn ends(server: &Host, client: &Host) -> [End; 2] {
    let (passive, active) = connected(server, client).await;
    [active, passive]
}

// C9; DIS-02, DIS-07: both have agreed to the end, and each is told.
#[test]
fn both_sides_disconnect() {
    for first in [0, 1] {
        check(0..=3 * LATENCY, async |network: Network| {
            let (server, client) = near(&network);
            let both = ends(&server, &client).await;
            let [first, second] = [&both[first].connection, &both[1 - first].connection];
            let told = join_all([first.disconnected(), second.disconnected()]);
            let later = async {
                sleep(ms(network.seed())).await;
                second.disconnect().await
            };
            let (one, other, told) = tokio::join!(first.disconnect(), later, told);
            assert_eq!((one, other), (Ok(()), Ok(())));
            assert_eq!(told[0], DisconnectReason::Local);
            match network.seed().cmp(&LATENCY) {
                Ordering::Less => assert_eq!(told[1], DisconnectReason::Local),
                Ordering::Equal => {}
                Ordering::Greater => assert_eq!(told[1], DisconnectReason::Peer),
            }
            assert!(first.disconnect().await.is_err() && second.disconnect().await.is_err());
        });
    }
}

/// A way to leave a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Leaving {
    Disconnect,
    Drop,
    DropQueuePair,
    Reset,
    Crash,
    LoseInterface,
}

// Race 4; DIS-02, DIS-03, DIS-11, DIS-13: this side asks before or after it could know. It is told whenever it asks, and
// still owes a disconnect.
#[test]
fn one_side_leaves_and_the_other_asks() {
    use Leaving::{Crash, Disconnect, Drop, DropQueuePair, LoseInterface, Reset};
    for leaving in [Disconnect, Drop, DropQueuePair, Reset, Crash, LoseInterface] {
        for leaves in [0, 1] {
            check(0..=2 * LATENCY, async |network: Network| {
                let (server, client) = near(&network);
                let host = [&client, &server][leaves];
                let [active, passive] = ends(&server, &client).await;
                let (gone, stays) = if leaves == 0 { (active, passive) } else { (passive, active) };
                let End { connection, queue_pair, .. } = gone;
                let _kept = match leaving {
                    Disconnect => {
                        // It goes on without its future.
                        assert!(Box::pin(connection.disconnect()).now_or_never().is_none());
                        Some((connection, Some(queue_pair)))
                    }
                    Drop => {
                        drop((connection, queue_pair));
                        None
                    }
                    DropQueuePair => {
                        drop(queue_pair);
                        Some((connection, None))
                    }
                    _ => Some((connection, Some(queue_pair))),
                };
                match leaving {
                    Reset => assert_eq!(network.reset(&server, &client), 1),
                    Crash => host.crash(),
                    LoseInterface => host.remove_interface(),
                    Disconnect | Drop | DropQueuePair => {}
                }
                sleep(ms(network.seed())).await;
                let asked = [stays.connection.disconnected(), stays.connection.disconnected()];
                let orderly = matches!(leaving, Disconnect | Drop | DropQueuePair);
                for reason in join_all(asked).await {
                    let lost = matches!(reason, DisconnectReason::Lost { .. });
                    assert!(
                        if orderly { reason == DisconnectReason::Peer } else { lost },
                        "{leaving:?}: {reason:?}"
                    );
                }
                assert!(stays.connection.disconnected().now_or_never().is_some(), "at once");
                let owed = stays.connection.disconnect().await;
                assert_eq!(owed.is_ok(), orderly, "{leaving:?}: {owed:?}");
            });
        }
    }
}

// CM-12, CM-21: the limit of the caller ends before, with or after the reply. Without any time nothing is sent. Connector and queue
// pair can be used again.
#[test]
fn a_limit_against_the_reply() {
    check(0..=REPLY + LATENCY, async |network: Network| {
        let (server, client) = near(&network);
        let (passive, active) = (adapter(&server), adapter(&client));
        let (listener, address) = listening(&passive, &server);
        let (theirs, ours, connector) = (queue_pair(&passive), queue_pair(&active), active.connector());
        let accept = || listener.accept_next(&theirs, AcceptParams::default());
        let limit = ms(network.seed());
        let mut accepting = Box::pin(accept());
        let asking = connector.connect(&ours, address, ConnectParams::default().timeout(limit));
        let asked = tokio::select! {
            biased;
            accepted = &mut accepting => panic!("{accepted:?}"),
            asked = asking => asked,
        };
        let error = match asked {
            Ok(reply) => {
                assert!(limit >= ms(REPLY) && network.elapsed() == ms(REPLY));
                let (completed, accepted) = tokio::join!(reply.complete(), accepting);
                assert!(completed.is_ok() && accepted.is_ok());
                return;
            }
            Err(error) => error,
        };
        assert!(limit <= ms(REPLY) && network.elapsed() == limit);
        let ConnectError::TimedOut { limit: Some(said), .. } = error else { panic!("{error:?}") };
        assert_eq!(said, limit);
        // A peer to which the request is on its way finds that nobody waits for the reply.
        let found = timeout(SECOND, accepting).await;
        let sent = ms(2 * LATENCY);
        assert!(limit == sent || found.is_ok() == (limit > sent), "{found:?}");
        assert!(found.is_err() || matches!(found, Ok(Err(AcceptError::Aborted { .. }))), "{found:?}");
        let again = connector.connect_and_complete(&ours, address, ConnectParams::default());
        let (completed, accepted) = tokio::join!(again, accept());
        assert!(completed.is_ok() && accepted.is_ok());
    });
}

// Race 7; CM-29: two connects that cross, one so much later than the other, are two connections, or one if a side declines.
#[test]
fn both_sides_connect() {
    for both in [true, false] {
        check(0..=REPLY + LATENCY, async |network: Network| {
            let hosts = near(&network);
            let hosts = [hosts.0, hosts.1];
            let adapters = hosts.each_ref().map(adapter);
            let [(one, there), (other, here)] =
                [0, 1].map(|place| listening(&adapters[place], &hosts[place]));
            let pairs = adapters.each_ref().map(|adapter| [queue_pair(adapter), queue_pair(adapter)]);
            let connectors = adapters.each_ref().map(tokio_rdma::Adapter::connector);
            let first = connectors[0].connect_and_complete(&pairs[0][0], here, ConnectParams::default());
            let second = async {
                sleep(ms(network.seed())).await;
                connectors[1].connect_and_complete(&pairs[1][0], there, ConnectParams::default()).await
            };
            let declining = async {
                let request = one.request().await.expect("a request");
                if both {
                    return Some(
                        request.accept(&pairs[0][1], AcceptParams::default()).await.expect("accepted"),
                    );
                }
                request.reject(b"ours is first").await.expect("rejected");
                None
            };
            let accepting = other.accept_next(&pairs[1][1], AcceptParams::default());
            let (first, second, kept, accepted) = tokio::join!(first, second, declining, accepting);
            let (first, accepted) = (first.expect("connected"), accepted.expect("accepted"));
            match second {
                Ok(second) if both => {
                    first.disconnect().await.expect("disconnected");
                    assert!(
                        second.is_connected() && kept.is_some_and(|kept| kept.is_connected()),
                        "independent"
                    );
                }
                Err(error) if !both => {
                    assert_eq!(error.private_data(), b"ours is first");
                    assert!(first.is_connected() && accepted.is_connected());
                }
                second => panic!("{second:?}"),
            }
        });
    }
}

// Race 5; LS-07, LS-22: the listener closes before, with or after the request, and before, with or after somebody fetches it.
// A request that nobody fetched is refused, and one that was fetched can be accepted.
#[test]
fn a_listener_closes_around_a_request() {
    let fetched = REQUEST + LATENCY;
    check(0..=fetched + LATENCY, async |network: Network| {
        let (server, client) = near(&network);
        let (passive, active) = (adapter(&server), adapter(&client));
        let (listener, address) = listening(&passive, &server);
        let (theirs, ours, connector) = (queue_pair(&passive), queue_pair(&active), active.connector());
        let asking = connector.connect_and_complete(&ours, address, ConnectParams::default());
        let handle = listener.clone();
        let closing = async {
            sleep(ms(network.seed())).await;
            close(Some(handle));
        };
        let accepting = async {
            sleep(ms(fetched)).await;
            listener.accept_next(&theirs, AcceptParams::default()).await
        };
        let (asked, accepted, ()) = tokio::join!(asking, accepting, closing);
        match (asked, accepted) {
            (Ok(asked), Ok(accepted)) => {
                assert!(network.seed() >= fetched && asked.is_connected() && accepted.is_connected());
            }
            (Err(ConnectError::Refused { .. }), Err(error)) => {
                assert!(network.seed() <= fetched, "{error:?}");
                assert!(matches!(error, AcceptError::NotListening | AcceptError::Canceled), "{error:?}");
            }
            other => panic!("{other:?}"),
        }
    });
}

// Race 6; LS-15, LS-18: the peer gives its request up, and this side decides before or after the news. A decision that comes too
// early for the news finds out when nobody completes.
#[test]
fn a_peer_is_gone_before_the_decision() {
    for accepts in [true, false] {
        check(REQUEST..=REQUEST + 3 * LATENCY, async |network: Network| {
            let (server, client) = near(&network);
            let (passive, active) = (adapter(&server), adapter(&client));
            let (listener, address) = listening(&passive, &server);
            let (theirs, ours, connector) = (queue_pair(&passive), queue_pair(&active), active.connector());
            let params = ConnectParams::default();
            let asking = timeout(ms(REQUEST), connector.connect(&ours, address, params));
            let (asked, request) = tokio::join!(asking, listener.request());
            assert!(asked.is_err(), "its future is dropped");
            let request = request.expect("a request");
            sleep(ms(network.seed() - REQUEST)).await;
            if accepts {
                let outcome = request.accept(&theirs, AcceptParams::default()).await;
                let error = outcome.expect_err("nobody completes").error;
                assert!(matches!(error, AcceptError::Aborted { .. }), "{error:?}");
                return;
            }
            match request.reject(b"no").await {
                Ok(()) => assert!(network.seed() <= REPLY),
                Err(rejected) => {
                    let error = rejected.error;
                    assert!(
                        matches!(error, AcceptError::Aborted { .. }) && network.seed() >= REPLY,
                        "{error:?}"
                    );
                }
            }
        });
    }
}

// Race 3; LS-14: what the active side sends right behind its first frame is received, before or after the accept resolves.
#[test]
fn data_right_behind_the_first_frame() {
    check(1..=100, async |network: Network| {
        let (server, client) = near(&network);
        let segment = usize::try_from(network.seed()).expect("a size");
        network.link(&server, &client).segments(segment..=segment);
        let (passive, active) = (adapter(&server), adapter(&client));
        let (listener, address) = listening(&passive, &server);
        let (theirs, ours, connector) = (queue_pair(&passive), queue_pair(&active), active.connector());
        let received = theirs.receive(passive.buffer(64).expect("memory")).expect("posted");
        let sending = async {
            let connection = connector
                .connect_and_complete(&ours, address, ConnectParams::default())
                .await
                .expect("connected");
            let sent = ours.send(active.buffer_from(b"at once").expect("memory")).expect("posted");
            sent.await.0.expect("sent");
            connection
        };
        let accepting = listener.accept_next(&theirs, AcceptParams::default());
        let (connection, accepted, (received, buffer)) = tokio::join!(sending, accepting, received);
        assert_eq!(&buffer[..received.expect("received").bytes], b"at once");
        assert!(connection.is_connected() && accepted.expect("accepted").is_connected());
    });
}
