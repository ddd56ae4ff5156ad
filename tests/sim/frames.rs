//! Frames of `LengthDelimitedCodec` in a byte stream, over the simulated network.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use common::frames::{Frames, codec, flush};
use futures::{SinkExt, StreamExt};
use tokio::time::{sleep, timeout};
use tokio_rdma::error::StreamBroken;
use tokio_rdma::sim::{self, Host, Network};
use tokio_rdma::{DisconnectReason, RdmaListener, RdmaStream, Status, StreamConfig};
use tokio_util::codec::Framed;

use crate::{NOTICED, PORT, SECOND, adapter, hosts};

/// The longest message.
const LONGEST: usize = 5000;

/// The two ends, that of the server first.
async fn ends(server: &Host, client: &Host, config: StreamConfig) -> [Frames; 2] {
    let (passive, active) = (adapter(server), adapter(client));
    let address = (server.address(), PORT).into();
    let listener = RdmaListener::bind_on(&passive, address, &config).expect("bound");
    let (accepted, connected) =
        tokio::join!(listener.accept(), RdmaStream::connect_on(&active, address, &config));
    [accepted.expect("accepted").0, connected.expect("connected")]
        .map(|stream| Framed::new(stream, codec(LONGEST)))
}

fn message(number: usize, length: usize) -> Bytes {
    (0..length).map(|place| (place * 7 + number * 31) as u8).collect()
}

async fn next(frames: &mut Frames) -> BytesMut {
    frames.next().await.expect("no end").expect("a message")
}

// IO-15: boundaries, over a link that has none, in both directions at once.
#[test]
fn messages_arrive_as_they_were_sent() {
    sim::check(0..20, async |network: Network| {
        let (server, client) = hosts(&network);
        let latency = Duration::ZERO..=Duration::from_millis(network.random(1..=30));
        network.link(&server, &client).latency(latency).segments(1..=network.random(1..=3000) as usize);
        let config = StreamConfig::default().receive_buffer(network.random(2048..=100_000) as usize);
        let both = ends(&server, &client, config).await;
        let lengths: Vec<_> = (0..100).map(|_| network.random(0..=LONGEST as u64) as usize).collect();
        network.at(network.elapsed() + SECOND / 4, move |network| {
            network.partition(&server, &client, 3 * SECOND)
        });
        let both = both.map(async |frames| {
            let (mut sink, mut stream) = frames.split();
            let sending = async {
                for (number, length) in lengths.iter().enumerate() {
                    sink.send(message(number, *length)).await.expect("sent");
                }
                sink.close().await.expect("closed");
            };
            let receiving = async {
                for (number, length) in lengths.iter().enumerate() {
                    let came = stream.next().await.expect("no end").expect("a message");
                    assert_eq!(came, message(number, *length));
                }
                assert!(stream.next().await.is_none(), "the end");
            };
            tokio::join!(sending, receiving);
        });
        futures::future::join_all(both).await;
    });
}

// IO-15: back-pressure. A peer that does not read stops who writes, and nobody else.
#[test]
fn back_pressure_stops_only_the_writer() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let config = StreamConfig::default().receive_buffer(2048);
        let [mut sleeper, mut writer] = ends(&server, &client, config).await;
        let patience = network.random(1..=1000) as u32 * SECOND;
        timeout(patience, writer.send(message(0, LONGEST))).await.expect_err("nobody reads");
        for number in 0..30 {
            sleeper.send(message(number, 50)).await.expect("sent");
            assert_eq!(next(&mut writer).await, message(number, 50));
        }
        let (flushed, came) = tokio::join!(flush(&mut writer), next(&mut sleeper));
        flushed.expect("flushed");
        assert_eq!(came, message(0, LONGEST));
    });
}

// IO-15: drop of either end, and loss: what has come first, and then the end or how it broke.
#[test]
fn the_end_of_a_peer_follows_its_messages() {
    sim::check(0..20, async |network: Network| {
        let (server, client) = hosts(&network);
        let [mut theirs, mut ours] = ends(&server, &client, StreamConfig::default()).await;
        for number in 0..3 {
            ours.send(message(number, 1000)).await.expect("sent");
        }
        sleep(SECOND).await;
        let begin = network.elapsed();
        let crash = network.random(0..=1) == 0;
        if crash {
            client.crash();
        } else {
            drop(ours);
        }
        for number in 0..3 {
            assert_eq!(next(&mut theirs).await, message(number, 1000));
        }
        match theirs.next().await {
            None => assert!(!crash, "a loss is no end"),
            Some(Ok(message)) => panic!("{message:?}"),
            Some(Err(error)) => {
                let broken = error.get_ref().and_then(|error| error.downcast_ref::<StreamBroken>());
                let lost = matches!(
                    broken,
                    Some(StreamBroken::Connection(DisconnectReason::Lost { status: Status::IO_TIMEOUT, .. }))
                );
                assert!(crash && lost, "{error:?}");
            }
        }
        assert!(network.elapsed() - begin <= NOTICED);
    });
}
