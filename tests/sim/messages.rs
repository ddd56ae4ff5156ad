//! Messages over the simulated network.

use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, StreamExt, poll};
use tokio::time::{sleep, timeout};
use tokio_rdma::error::StreamBroken;
use tokio_rdma::sim::{self, Host, Network};
use tokio_rdma::{DisconnectReason, MessageListener, Messages, MessagesConfig, Status};

use crate::{NOTICED, PORT, SECOND, adapter, hosts};

/// The two ends, that of the server first.
async fn ends(server: &Host, client: &Host, config: MessagesConfig) -> [Messages; 2] {
    let (passive, active) = (adapter(server), adapter(client));
    let address = (server.address(), PORT).into();
    let listener = MessageListener::bind_on(&passive, address, &config).expect("bound");
    let (accepted, connected) =
        tokio::join!(listener.accept(), Messages::connect_on(&active, address, &config));
    [accepted.expect("accepted").0, connected.expect("connected")]
}

fn message(number: usize, length: usize) -> Bytes {
    (0..length).map(|place| (place * 7 + number * 31) as u8).collect()
}

async fn next(messages: &mut Messages) -> Bytes {
    messages.next().await.expect("no end").expect("a message")
}

// IO-15: boundaries, over a link that has none, in both directions at once.
#[test]
fn messages_arrive_as_they_were_sent() {
    sim::check(0..20, async |network: Network| {
        let (server, client) = hosts(&network);
        let latency = Duration::ZERO..=Duration::from_millis(network.random(1..=30));
        network.link(&server, &client).latency(latency).segments(1..=network.random(1..=3000) as usize);
        let [theirs, ours] = ends(&server, &client, MessagesConfig::default().max_message(5000)).await;
        let lengths: Vec<_> = (0..100).map(|_| network.random(0..=5000) as usize).collect();
        network.at(network.elapsed() + SECOND / 4, move |network| {
            network.partition(&server, &client, 3 * SECOND)
        });
        let both = [theirs, ours].map(async |messages| {
            let (mut sink, mut stream) = messages.split();
            let sending = async {
                for (number, length) in lengths.iter().enumerate() {
                    sink.send(message(number, *length)).await.expect("sent");
                }
                sink.close().await.expect("closed");
            };
            let receiving = async {
                for (number, length) in lengths.iter().enumerate() {
                    assert_eq!(
                        stream.next().await.expect("no end").expect("a message"),
                        message(number, *length)
                    );
                }
                assert!(stream.next().await.is_none(), "the end");
            };
            tokio::join!(sending, receiving);
        });
        futures::future::join_all(both).await;
    });
}

// IO-15: limits and credits. A peer that does not read stops who writes, and nobody else.
#[test]
fn a_peer_that_does_not_read_stops_who_writes() {
    sim::check(0..10, async |network: Network| {
        let (server, client) = hosts(&network);
        let config = MessagesConfig::default().max_message(100).receive_depth(5).send_depth(3);
        let [mut sleeper, mut writer] = ends(&server, &client, config).await;
        let error = writer.send(message(0, 101)).await.expect_err("too long");
        assert_eq!(Status::from_io(&error), Status::BUFFER_OVERFLOW);
        for number in 0..5 {
            timeout(SECOND, writer.send(message(number, 100))).await.expect("there is room").expect("sent");
        }
        assert!(poll!(writer.feed(message(5, 1))).is_ready());
        timeout(network.random(1..=1000) as u32 * SECOND, writer.flush()).await.expect_err("nobody reads");
        for number in 0..30 {
            sleeper.send(message(number, 50)).await.expect("sent");
            assert_eq!(next(&mut writer).await, message(number, 50));
        }
        for number in 0..5 {
            assert_eq!(next(&mut sleeper).await, message(number, 100));
        }
        writer.flush().await.expect("flushed");
        assert_eq!(next(&mut sleeper).await, message(5, 1));
    });
}

// IO-15: drop of either end, and loss: what has come first, and then how it broke.
#[test]
fn the_end_of_a_peer_follows_its_messages() {
    sim::check(0..20, async |network: Network| {
        let (server, client) = hosts(&network);
        let [mut theirs, mut ours] = ends(&server, &client, MessagesConfig::default()).await;
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
        let error = theirs.next().await.expect("no end").expect_err("it is gone");
        let broken = error.get_ref().and_then(|error| error.downcast_ref::<StreamBroken>()).expect("ours");
        let lost = matches!(
            broken,
            StreamBroken::Connection(DisconnectReason::Lost { status: Status::IO_TIMEOUT, .. })
        );
        assert!(matches!(broken, StreamBroken::Connection(_)) && lost == crash, "{broken:?}");
        assert!(network.elapsed() - begin <= NOTICED);
        assert!(theirs.next().await.is_none(), "it is said once");
        theirs.send(Bytes::new()).await.expect_err("broken");
    });
}
