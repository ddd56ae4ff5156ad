//! Sessions with peers that speak rsocket and the messages of sessions by hand, valid and invalid.

use std::collections::VecDeque;
use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use common::session_peer::*;
use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};
use tokio_rdma::error::{ProtocolError, StreamBroken};
use tokio_rdma::io::RdmaConnector;
use tokio_rdma::sim::{self, Host, Network};
use tokio_rdma::{Adapter, RdmaStream, SessionConfig};

use crate::sessions::{broken, config, connect, exchange, listen, provider};
use crate::{PORT, SECOND, hosts};

/// The kind of the answer to what a peer asks, and to nothing if the connection ends.
async fn answer(adapter: &Adapter, address: SocketAddr, ask: &[u8]) -> Option<u8> {
    let mut peer = Peer::asking(adapter, address, ask).await;
    let answer = peer.answer().await;
    let answer = answer.map(|answer| kind(&answer));
    if answer != Some(GRANTED) {
        peer.connection.disconnected().await;
    }
    answer
}

/// Checks that bytes go both ways over the connection of before.
async fn undisturbed(ours: &mut RdmaStream, theirs: &mut RdmaStream, resumes: u64) {
    exchange(ours, theirs).await;
    for stream in [&*ours, &*theirs] {
        let path = stream.session().expect("a session");
        assert!(path.resumes == resumes && !path.is_lost && !path.is_over, "{path:?}");
    }
}

/// The messages of sessions that have been captured, in their order.
fn captured(network: &Network) -> Vec<Greeting> {
    let file = network.pcap();
    let places = file.windows(4).enumerate().filter(|(_, bytes)| *bytes == b"RdSe");
    places.map(|(place, _)| file[place..][..LENGTH].try_into().expect("in one segment")).collect()
}

fn random<const N: usize>(network: &Network) -> [u8; N] {
    std::array::from_fn(|_| network.random(0..=255) as u8)
}

fn address(server: &Host) -> SocketAddr {
    (server.address(), PORT).into()
}

fn adapter(host: &Host) -> Adapter {
    provider(host).open(host.address()).expect("opened")
}

// Whoever has seen all of a session's greetings but does not know its secret neither goes on with it nor ends it, and a thousand
// attempts take no more of the server than one (SES-03).
#[test]
fn a_thousand_strangers_disturb_no_session() {
    sim::check(0..1, async |network: Network| {
        let (server, client) = hosts(&network);
        let stranger = adapter(&network.host("10.0.0.3"));
        network.capture();
        let (_listener, mut ours, mut theirs) = connect(&server, &client, &config()).await;
        undisturbed(&mut ours, &mut theirs, 0).await;
        network.reset(&server, &client);
        ours.write_all(b"over another").await.expect("written");
        theirs.read_exact(&mut [0; 12]).await.expect("read");
        undisturbed(&mut ours, &mut theirs, 1).await;
        let [open, granted, resume, resumed] = captured(&network)[..] else { panic!("four greetings") };
        assert_eq!(
            [open, granted, resume, resumed].map(|bytes| kind(&bytes)),
            [OPEN, GRANTED, RESUME, GRANTED]
        );
        let known = id(&granted);
        assert_eq!(id(&resume), known);
        // Two streams more, and a few sockets.
        server.limit_memory(Some(3 * (4 << 20)));
        server.limit_sockets(Some(16));
        let server = address(&server);
        for round in 0..1000 {
            let high = network.random(2..=u64::MAX);
            let few = network.random(0..=20);
            let (ask, expected) = match round % 9 {
                0 => (greeting(RESUME, random(&network), 1, 0, &random(&network)), Some(UNKNOWN)),
                1 => (greeting(RESUME, known, high, few, &random(&network)), Some(UNKNOWN)),
                2 => (greeting(OVER, known, high, few, &random(&network)), Some(UNKNOWN)),
                // The genuine one, again and with a change.
                3 => (resume, Some(REFUSED)),
                4 => {
                    let mut changed = resume;
                    changed[network.random(32..=47) as usize] ^= network.random(1..=255) as u8;
                    (changed, Some(UNKNOWN))
                }
                // What only a passive end says.
                5 => (resumed, None),
                6 => (greeting(ABANDONED, known, high, few, &random(&network)), Some(UNKNOWN)),
                7 => (greeting(network.random(8..=255) as u8, known, high, few, &random(&network)), None),
                _ => (random(&network), None),
            };
            assert_eq!(answer(&stranger, server, &ask).await, expected, "round {round}");
            if round % 50 == 0 {
                undisturbed(&mut ours, &mut theirs, 1).await;
            }
        }
        undisturbed(&mut ours, &mut theirs, 1).await;
    });
}

// The greeting comes within the time of the handshake, or the connection ends; meanwhile others come and go.
#[test]
fn greeting_that_does_not_come_is_not_waited_for() {
    sim::check(0..5, async |network: Network| {
        let (server, client) = hosts(&network);
        let stranger = adapter(&network.host("10.0.0.3"));
        let config = config().handshake_timeout(3 * SECOND);
        let (listener, mut ours, mut theirs) = connect(&server, &client, &config).await;
        let place = address(&server);
        let silent = async |length: usize| {
            let mut peer = Peer::with_session(&stranger, place).await;
            match length {
                0 => peer.word(KEEPALIVE).await,
                _ => peer.write(&greeting(OPEN, [0; 16], 0, 0, &[0; 16])[..length]).await,
            }
            assert_eq!(peer.answer().await, None);
            peer.connection.disconnected().await;
        };
        let slow = async |pause: Duration| {
            let mut peer = Peer::with_session(&stranger, place).await;
            for byte in greeting(OPEN, [0; 16], 0, 0, &[0; 16]) {
                peer.write(&[byte]).await;
                sleep(pause).await;
            }
            peer.answer().await
        };
        let others = async {
            undisturbed(&mut ours, &mut theirs, 0).await;
            let connector = RdmaConnector::new().provider(provider(&client)).config(config);
            let (mut more, accepted) = tokio::join!(connector.connect(place), listener.accept());
            let (more, mut accepted) = (more.as_mut().expect("connected"), accepted.expect("accepted").0);
            undisturbed(more, &mut accepted, 0).await;
        };
        let lengths = [0, 1, 79].into_iter().cycle().take(60);
        tokio::join!(join_all(lengths.map(silent)), others, async {
            assert_eq!(slow(SECOND / 10).await, None, "it takes eight seconds");
        });
        let (answer, accepted) = tokio::join!(slow(SECOND / 100), listener.accept());
        assert_eq!(kind(&answer.expect("in time")), GRANTED);
        assert!(accepted.expect("accepted").0.session().is_some());
        undisturbed(&mut ours, &mut theirs, 0).await;
    });
}

// A peer that knows the secret is refused all the same if its counts or its epoch cannot be, and the present connection stays (SES-03).
#[test]
fn peer_that_lies_about_its_counts_is_refused() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let (listener, mut ours, mut theirs) = connect(&server, &client, &config()).await;
        let (active, place) = (adapter(&client), address(&server));
        let (mut peer, id, secret, mut stream) = Peer::open(&active, &listener).await;
        stream.write_all(b"0123456789").await.expect("written");
        assert_eq!(peer.read(10).await.as_deref(), Some(&b"0123456789"[..]));
        peer.word(READ << 29 | 4).await;
        // What follows it is behind it.
        peer.write(b"abc").await;
        stream.read_exact(&mut [0; 3]).await.expect("read");
        for read in [0, 3, 30, 1 << 29 | 4, u64::MAX] {
            let ask = greeting(RESUME, id, 5, read, &secret);
            assert_eq!(answer(&active, place, &ask).await, Some(REFUSED), "{read}");
            stream.write_all(b"!").await.expect("written");
            assert_eq!(peer.read(1).await.as_deref(), Some(&b"!"[..]), "the connection is the same");
        }
        // The truth, in the same epoch: what is unacknowledged comes again, and what was sent again is not taken twice.
        let mut peer = Peer::asking(&active, place, &greeting(RESUME, id, 5, 7, &secret)).await;
        let granted = peer.answer().await.expect("an answer");
        assert_eq!((kind(&granted), read(&granted)), (GRANTED, 3));
        assert_eq!(peer.read(8).await.as_deref(), Some(&b"789!!!!!"[..]));
        assert_eq!(stream.session().expect("a session").resumes, 1);
        for epoch in [0, 4, 5] {
            let ask = greeting(RESUME, id, epoch, 15, &secret);
            assert_eq!(answer(&active, place, &ask).await, Some(REFUSED), "epoch {epoch}");
            assert_eq!(answer(&active, place, &greeting(OVER, id, epoch, 15, &secret)).await, Some(REFUSED));
        }
        peer.write(b"more").await;
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).await.expect("read");
        assert_eq!(&bytes, b"more");
        // An end that is true.
        assert_eq!(answer(&active, place, &greeting(OVER, id, 6, 15, &secret)).await, Some(OVER));
        assert_eq!(stream.read(&mut bytes).await.expect("an end of file"), 0);
        undisturbed(&mut ours, &mut theirs, 0).await;
    });
}

#[test]
fn acknowledgement_of_unsent_bytes_breaks_the_stream() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let (listener, mut ours, mut theirs) = connect(&server, &client, &config()).await;
        let active = adapter(&client);
        let (peer, id, secret, mut stream) = Peer::open(&active, &listener).await;
        stream.write_all(b"0123456789").await.expect("written");
        peer.word(READ << 29 | 11).await;
        let error = stream.read(&mut [0]).await.expect_err("it cannot have read as much");
        let lie = ProtocolError::Value { what: "read bytes", value: 11 };
        assert_eq!(broken(&error), StreamBroken::Protocol(lie));
        // Nothing goes on with it.
        let ask = greeting(RESUME, id, 1, 10, &secret);
        let answer = answer(&active, address(&server), &ask).await;
        assert_eq!(answer, Some(UNKNOWN));
        undisturbed(&mut ours, &mut theirs, 0).await;
    });
}

// A peer that takes nothing, and never says that it has read anything, costs no more than the window (SES-02).
#[test]
fn window_bounds_what_a_silent_peer_costs() {
    sim::check(0..3, async |network: Network| {
        let (server, client) = hosts(&network);
        let session = SessionConfig::default().window(2500).give_up_after(600 * SECOND);
        let listener = listen(&server, &config().session(session)).await;
        let (active, place) = (adapter(&client), address(&server));
        let (mut peer, id, secret, mut stream) = Peer::open(&active, &listener).await;
        let bytes: Vec<u8> = (0..7500).map(|place| (place % 251) as u8).collect();
        let writing = async {
            stream.write_all(&bytes).await.expect("written");
            pending::<()>().await;
        };
        let reading = async {
            for (epoch, read) in [(1, 0), (2, 0), (3, 1000), (4, 3500)] {
                let expected = &bytes[read as usize..read as usize + 2500];
                if epoch > 1 {
                    peer = Peer::asking(&active, place, &greeting(RESUME, id, epoch, read, &secret)).await;
                    assert_eq!(peer.answer().await.map(|answer| kind(&answer)), Some(GRANTED));
                }
                assert_eq!(peer.read(2500).await.as_deref(), Some(expected));
                timeout(20 * SECOND, peer.read(1)).await.expect_err("the window is full");
            }
        };
        tokio::select! {
            () = reading => {}
            () = writing => unreachable!("it goes on"),
        }
    });
}

// A report that was due when the connection was lost does not keep the next one back (SES-02).
#[test]
fn reports_go_on_behind_a_loss() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let listener = listen(&server, &config()).await;
        let (active, place) = (adapter(&client), address(&server));
        let (mut peer, id, secret, mut stream) = Peer::open(&active, &listener).await;
        peer.write(b"abc").await;
        stream.read_exact(&mut [0; 3]).await.expect("read");
        for epoch in 1..4 {
            let before = u32::try_from(4 * epoch - 1).expect("few");
            peer = Peer::asking(&active, place, &greeting(RESUME, id, epoch, 0, &secret)).await;
            let granted = peer.answer().await.expect("an answer");
            assert_eq!((kind(&granted), read(&granted)), (GRANTED, before.into()));
            peer.write(b"more").await;
            stream.read_exact(&mut [0; 4]).await.expect("read");
            if epoch > 1 {
                let report = timeout(SECOND, peer.report()).await.expect("soon");
                assert_eq!(report, before + 4);
            }
        }
    });
}

// The flag is answered only if it was said, and nothing else is on the wire then (SES-05).
#[test]
fn peer_without_sessions_gets_a_plain_stream() {
    sim::check(0..3, async |network: Network| {
        let (server, client) = hosts(&network);
        let listener = listen(&server, &config()).await;
        let (active, place) = (adapter(&client), address(&server));
        for (flags, word) in [(0, READ << 29 | 1), (SAYS_ITS_END, ABANDON)] {
            let connect = async {
                let mut peer = Peer::connect(&active, place, flags).await;
                peer.write(b"RdSe is text here").await;
                peer
            };
            let (mut peer, accepted) = tokio::join!(connect, listener.accept());
            let mut stream = accepted.expect("accepted").0;
            assert!(stream.session().is_none());
            let mut bytes = [0; 17];
            stream.read_exact(&mut bytes).await.expect("read");
            assert_eq!(&bytes, b"RdSe is text here");
            stream.write_all(b"as ever").await.expect("written");
            assert_eq!(peer.read(7).await.as_deref(), Some(&b"as ever"[..]));
            // A message of sessions is none here.
            peer.word(word).await;
            stream.read(&mut bytes).await.expect_err("a violation");
        }
    });
}

// A peer that opens sessions and goes leaves as many behind as the listener keeps without a connection.
#[test]
fn sessions_that_are_left_behind_are_few() {
    sim::check(0..1, async |network: Network| {
        let (server, client) = hosts(&network);
        let stranger = adapter(&network.host("10.0.0.3"));
        let session = SessionConfig::default().give_up_after(600 * SECOND).lost_sessions(2);
        let config = config().session(session).receive_buffer(1 << 16).send_buffer(1 << 16);
        let (listener, mut ours, mut theirs) = connect(&server, &client, &config).await;
        // Those of five streams more.
        server.limit_memory(Some(6 * (1 << 18)));
        server.limit_sockets(Some(16));
        let mut held = VecDeque::new();
        for round in 0..200 {
            let (peer, _, _, mut stream) = Peer::open(&stranger, &listener).await;
            stream.write_all(b"for nobody").await.expect("written");
            drop(peer);
            held.push_back(stream);
            if held.len() > 2 {
                let mut oldest = held.pop_front().expect("three");
                let error = oldest.read_u8().await.expect_err("it makes room");
                let reason = broken(&error);
                let is_early = matches!(&reason, StreamBroken::NoPath { after, .. } if *after < 600 * SECOND);
                assert!(is_early, "round {round}: {error:?}");
            }
        }
        undisturbed(&mut ours, &mut theirs, 0).await;
    });
}

// A peer that has closed the stream, and does not know whether that has arrived, hears that it has; the program need not have seen it.
#[test]
fn stream_that_the_peer_has_closed_is_over() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let listener = listen(&server, &config()).await;
        let (active, place) = (adapter(&client), address(&server));
        let (mut peer, id, secret, mut stream) = Peer::open(&active, &listener).await;
        peer.write(b"the last").await;
        peer.word(DISCONNECT).await;
        sleep(SECOND).await;
        for epoch in [1, 2] {
            let ask = greeting(RESUME, id, epoch, 0, &secret);
            assert_eq!(answer(&active, place, &ask).await, Some(OVER), "epoch {epoch}");
        }
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.expect("an end of file");
        assert_eq!(bytes, b"the last");
        drop(stream);
        sleep(SECOND).await;
        // It is remembered.
        assert_eq!(answer(&active, place, &greeting(RESUME, id, 3, 0, &secret)).await, Some(OVER));
        assert_eq!(answer(&active, place, &greeting(OVER, id, 3, 0, &[7; 16])).await, Some(UNKNOWN));
    });
}
