//! Stories that everybody expects, at both ends: slow users, small segments, failures that are followed by a success.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_rdma::error::{BindError, ConnectError, DisconnectError};
use tokio_rdma::sim::{self, Host, Network};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Connector, QueuePair};

use crate::tools::ms;
use crate::{End, PORT, SECOND, adapter, connect, connected, exchange, hosts, listening, queue_pair};

const HOUR: Duration = Duration::from_secs(3600);

/// The longest private data of a request, an accept and a reject.
const LONGEST: usize = 252;

/// The sizes of segments that cut frames at every place, at some, and nowhere.
const SEGMENTS: [usize; 3] = [1, 19, 4096];

/// Bytes that differ from length to length.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|place| (place * 31 + length) as u8).collect()
}

/// A server and a client whose segments have this size.
fn cut_to(network: &Network, segment: usize) -> (Host, Host) {
    let (server, client) = hosts(network);
    network.link(&server, &client).segments(segment..=segment);
    (server, client)
}

// CM-08, CM-09, LS-12, LS-13, LS-24: nobody is hurried. The accept resolves when the peer has completed, and not before.
#[test]
fn each_user_thinks_for_an_hour() {
    sim::check(0..3, async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (adapter(&server), adapter(&client));
        let (listener, address) = listening(&passive, &server);
        let (theirs, ours, connector) = (queue_pair(&passive), queue_pair(&active), active.connector());
        let accepting = async {
            sleep(HOUR).await;
            let request = listener.request().await.expect("a request");
            sleep(HOUR).await;
            request.accept(&theirs, AcceptParams::default()).await.expect("accepted")
        };
        let completing = async {
            let asking = connector.connect(&ours, address, ConnectParams::default());
            let reply = asking.await.expect("a reply");
            assert!(network.elapsed() >= 2 * HOUR && network.elapsed() < 2 * HOUR + SECOND);
            sleep(HOUR).await;
            reply.complete().await.expect("connected")
        };
        let (theirs_up, ours_up) = tokio::join!(accepting, completing);
        assert!(network.elapsed() >= 3 * HOUR && network.elapsed() < 3 * HOUR + SECOND);
        let end = |adapter, queue_pair, connection| End { adapter, queue_pair, connection };
        exchange(&end(passive, theirs, theirs_up), &end(active, ours, ours_up)).await;
    });
}

// PD-01, PD-02, PD-03: data of every length crosses in pieces of every size, with a request, an accept and a reject.
#[test]
fn private_data_crosses_in_pieces() {
    for segment in SEGMENTS {
        sim::check(0..=LONGEST as u64, async |network: Network| {
            let (server, client) = cut_to(&network, segment);
            let (passive, active) = (adapter(&server), adapter(&client));
            let (listener, address) = listening(&passive, &server);
            let (theirs, ours) = (queue_pair(&passive), queue_pair(&active));
            assert_eq!(active.info().max_request_data, LONGEST);
            let length = usize::try_from(network.seed()).expect("a length");
            let (question, answer) = (pattern(length), pattern(LONGEST - length));
            for accepts in [false, true] {
                let connector = active.connector();
                let params = ConnectParams::default().private_data(&question);
                let asking = connector.connect(&ours, address, params);
                let deciding = async {
                    let request = listener.request().await.expect("a request");
                    assert_eq!(&request.private_data()[..], question);
                    if !accepts {
                        request.reject(&answer).await.expect("rejected");
                        return;
                    }
                    let params = AcceptParams::default().private_data(&answer);
                    request.accept(&theirs, params).await.map(drop).expect_err("the reply is dropped");
                };
                let checking = async {
                    match asking.await {
                        Ok(reply) => assert!(accepts && reply.private_data()[..] == answer),
                        Err(error) => {
                            assert!(!accepts && matches!(error, ConnectError::Rejected { .. }), "{error:?}");
                            assert_eq!(error.private_data(), answer);
                        }
                    }
                };
                tokio::join!(deciding, checking);
            }
        });
    }
}

// X1, CM-24, LS-15: a no of the active side is a refusal also if it comes byte by byte, and silence is none.
#[test]
fn the_active_side_says_no_in_pieces() {
    for segment in SEGMENTS {
        sim::check(0..4, async |network: Network| {
            let (server, client) = cut_to(&network, segment);
            let (passive, active) = (adapter(&server), adapter(&client));
            let (listener, address) = listening(&passive, &server);
            let (theirs, ours, connector) = (queue_pair(&passive), queue_pair(&active), active.connector());
            let asking = connector.connect(&ours, address, ConnectParams::default());
            let accepting = listener.accept_next(&theirs, AcceptParams::default());
            let leaving = async {
                let reply = asking.await.expect("a reply");
                match network.seed() {
                    0 => reply.reject(b"").await.expect("rejected"),
                    1 => drop(reply),
                    2 => connector.cancel(),
                    _ => {
                        client.crash();
                        sleep(HOUR).await;
                    }
                }
            };
            let (accepted, ()) = tokio::join!(accepting, leaving);
            let error = accepted.expect_err("nobody completes");
            let refused = matches!(error, tokio_rdma::error::AcceptError::Refused { .. });
            assert_eq!(refused, network.seed() < 3, "{error:?}");
        });
    }
}

/// Asks once, with a connector and a queue pair that are used again.
async fn ask(connector: &Connector, queue_pair: &QueuePair, server: &Host) -> Result<(), ConnectError> {
    let params = ConnectParams::default().timeout(SECOND);
    connector.connect(queue_pair, (server.address(), PORT).into(), params).await.map(drop)
}

/// Fails in every way after which a connector can be used again.
async fn turn_away(
    network: &Network,
    connector: &Connector,
    ours: &QueuePair,
    (server, client): (&Host, &Host),
) {
    let nowhere = "10.0.0.9:1".parse().expect("an address");
    let error =
        connector.connect(ours, nowhere, ConnectParams::default()).await.map(drop).expect_err("no such host");
    assert!(matches!(error, ConnectError::NetworkUnreachable { .. }), "{error:?}");
    let error = ask(connector, ours, server).await.expect_err("nobody listens");
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");

    let passive = adapter(server);
    let (listener, _) = listening(&passive, server);
    let error = ask(connector, ours, server).await.expect_err("nobody decides");
    assert!(matches!(error, ConnectError::TimedOut { limit: Some(SECOND), .. }), "{error:?}");
    drop(listener.request().await.expect("the one that has given up"));
    network.partition(server, client, 2 * SECOND);
    let error = ask(connector, ours, server).await.expect_err("nobody hears it");
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
    network.heal(server, client);

    let rejecting =
        async { listener.request().await.expect("a request").reject(b"not you").await.expect("rejected") };
    let (error, ()) = tokio::join!(ask(connector, ours, server), rejecting);
    assert_eq!(error.expect_err("rejected").private_data(), b"not you");
    let dropping = async { drop(listener.request().await.expect("a request")) };
    let (error, ()) = tokio::join!(ask(connector, ours, server), dropping);
    assert!(matches!(error, Err(ConnectError::Refused { .. })), "{error:?}");
    let closing = async {
        sleep(ms(500)).await;
        drop(listener);
    };
    let (error, ()) = tokio::join!(ask(connector, ours, server), closing);
    assert!(matches!(error, Err(ConnectError::Refused { .. })), "{error:?}");
}

/// The backlog has one place, and somebody else has it.
async fn find_the_backlog_full(network: &Network, connector: &Connector, ours: &QueuePair, server: &Host) {
    let passive = adapter(server);
    let listener = passive.listener();
    listener.bind((server.address(), PORT).into()).expect("bound");
    listener.listen(1).expect("listening");
    let other = adapter(&network.host("10.0.0.3"));
    let others = queue_pair(&other);
    let first = other.connector();
    let address = listener.local_addr().expect("it listens");
    let mut waiting = Box::pin(first.connect(&others, address, ConnectParams::default()));
    assert!(timeout(SECOND, &mut waiting).await.is_err());
    let error = ask(connector, ours, server).await.expect_err("no place is left");
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    // One that has gone makes room: the next one waits.
    drop(waiting);
    sleep(SECOND).await;
    let error = ask(connector, ours, server).await.expect_err("nobody decides");
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
}

// CM-12, CM-15, CM-16, CM-17, CM-18, CM-19, CM-21, LS-04, LS-17, LS-22, PD-03: every way to be turned away, one after the other,
// and then a success; with one connector, bound or not, one queue pair, and the receive that was posted at the start.
#[test]
fn turned_away_and_tried_again() {
    for bound in [false, true] {
        sim::check(0..5, async |network: Network| {
            let (server, client) = hosts(&network);
            // With a bound connector the only port is free after each attempt.
            let active = if bound { with_port(&client) } else { adapter(&client) };
            let (connector, ours) = (active.connector(), queue_pair(&active));
            if bound {
                connector.bind((client.address(), 0).into()).expect("bound");
            }
            let received = ours.receive(active.buffer(8).expect("memory")).expect("posted");
            turn_away(&network, &connector, &ours, (&server, &client)).await;
            find_the_backlog_full(&network, &connector, &ours, &server).await;

            let passive = adapter(&server);
            let (listener, _) = listening(&passive, &server);
            let theirs = queue_pair(&passive);
            let (_accepted, connection) =
                connect((&listener, &theirs), (&connector, &ours), ConnectParams::default()).await;
            if bound {
                assert_eq!(connection.local_addr().port(), 5000);
                let another = active.connector().bind((client.address(), 0).into());
                assert!(matches!(another, Err(BindError::TooManyAddresses(_))), "{another:?}");
            }
            theirs
                .send(passive.buffer_from(b"welcome").expect("memory"))
                .expect("posted")
                .await
                .0
                .expect("sent");
            let (result, buffer) = received.await;
            assert_eq!(&buffer[..result.expect("received").bytes], b"welcome");
        });
    }
}

/// An adapter with one ephemeral port.
fn with_port(host: &Host) -> Adapter {
    let config = SoftConfig::default().ephemeral_ports(5000..=5000);
    host.provider_with(config).open(host.address()).expect("opened")
}

// DIS-14: a disconnect that nobody answers ends with its limit, to the millisecond. The peer has not heard of it.
#[test]
fn an_unanswered_disconnect() {
    for place in [0, 1] {
        sim::check(0..3, async |network: Network| {
            let (server, client) = hosts(&network);
            let (passive, active) = connected(&server, &client).await;
            let both = [passive, active];
            network.partition(&server, &client, HOUR);
            let begin = network.elapsed();
            let error = both[place].connection.disconnect().await.expect_err("no answer");
            assert_eq!(error, DisconnectError::TimedOut { limit: 5 * SECOND });
            assert_eq!(network.elapsed() - begin, 5 * SECOND);
            assert!(!both[place].connection.is_connected() && both[1 - place].connection.is_connected());
        });
    }
}
