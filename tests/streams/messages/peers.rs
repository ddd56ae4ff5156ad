//! Messages with peers that send invalid data, nothing, or another protocol.
//!
//! Runs on: soft, sim, rxe, siw
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::net::SocketAddr;
use std::time::Duration;

use common::deviation::{assert_rejected, lacks_buffer_sinks};
use common::messages::{ByHand, START, broken, data, hello, listening_for_messages, next, send};
use common::*;
use futures::{SinkExt, StreamExt};
use tokio_rdma::error::{ProtocolError, StreamBroken, StreamError};
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Messages, MessagesConfig, QueuePair, Reply, Status};

fn small() -> MessagesConfig {
    MessagesConfig::default().max_message(100).receive_depth(4)
}

#[tokio::test]
async fn the_wire_format_is_the_documented_one() {
    let adapter = adapter();
    let (mut peer, mut messages) = ByHand::active(&adapter, &small(), hello(3, 50)).await;
    assert_eq!((&peer.private_data[..12], messages.max_message()), (&hello(4, 100)[..], 50));
    // Nothing is said before the active side has spoken.
    let (sent, ()) = within(async {
        tokio::join!(messages.send("hi".into()), async {
            peer.send(&START).await;
            assert_eq!(peer.receive().await, data(b"hi"));
        })
    })
    .await;
    sent.expect("sent");
    peer.send(&data(b"one")).await;
    peer.send(&data(b"")).await;
    assert_eq!(next(&mut messages).await, &b"one"[..]);
    assert_eq!(next(&mut messages).await, &b""[..]);
    assert_eq!(peer.receive().await, [3, 0, 0, 2], "half of the credits");
    peer.send(&data(b"two")).await;
    assert_eq!(next(&mut messages).await, &b"two"[..]);
    send(&mut messages, "with one").await;
    assert_eq!(peer.receive().await, [&[2, 0, 0, 1], &b"with one"[..]].concat());
    within(messages.close()).await.expect("closed");
    assert_eq!(peer.receive().await, [4, 0, 0, 0]);
    // Credits that nobody needs are taken all the same.
    peer.send(&[3, 0, 0, 1]).await;
    peer.send(&[4, 0, 0, 1]).await;
    assert!(within(messages.next()).await.is_none());

    let (mut peer, mut messages) = ByHand::passive(&adapter, &small(), hello(1, 50)).await;
    assert_eq!(peer.private_data[..12], hello(4, 100));
    assert_eq!(peer.receive().await, START);
    send(&mut messages, "hi").await;
    assert_eq!(peer.receive().await, data(b"hi"));
    // One message more, not two.
    peer.send(&[3, 0, 0, 1]).await;
    send(&mut messages, "more").await;
    assert_eq!(peer.receive().await, data(b"more"));
    peer.send(&[4, 0, 0, 0]).await;
    assert!(within(messages.next()).await.is_none());
    let mut waits = messages.send("no room".into());
    assert!(futures::poll!(&mut waits).is_pending());
}

#[tokio::test]
async fn a_peer_is_not_believed_to_take_what_the_adapter_cannot_carry() {
    let adapter = adapter();
    let info = adapter.info();
    let longest = info.max_transfer.min(info.max_registration) - 4;
    let (peer, mut messages) = ByHand::active(&adapter, &small(), hello(3, u32::MAX)).await;
    assert_eq!(messages.max_message(), longest.min(u32::MAX as usize));
    peer.send(&START).await;
    // More than this side takes itself.
    send(&mut messages, vec![1; 5000]).await;
}

/// A lie: what the peer sends, and what that is.
type Lie = (Vec<Vec<u8>>, ProtocolError);

#[tokio::test]
async fn a_peer_that_breaks_the_protocol_breaks_the_stream() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let message = |header: [u8; 4]| ProtocolError::Message(u32::from_be_bytes(header));
    let start = || START.to_vec();
    let lies: Vec<Lie> = vec![
        (vec![vec![]], ProtocolError::Length(0)),
        (vec![vec![1, 0, 0]], ProtocolError::Length(3)),
        (vec![vec![0; 4]], message([0; 4])),
        (vec![data(b"too early")], message([2, 0, 0, 0])),
        (vec![vec![1, 0, 0, 1]], message([1, 0, 0, 1])),
        (vec![start(), start()], message(START)),
        (vec![start(), vec![9, 0, 0, 0]], message([9, 0, 0, 0])),
        (vec![start(), vec![2, 7, 0, 0]], message([2, 7, 0, 0])),
        (vec![start(), vec![3, 0, 0, 0]], ProtocolError::Value { what: "credits", value: 0 }),
        (vec![start(), vec![3, 0, 0, 1]], ProtocolError::Overrun("credits")),
        (vec![start(), vec![2, 0, 255, 255]], ProtocolError::Overrun("credits")),
        (vec![start(), vec![4, 0, 0, 0, 0]], ProtocolError::Length(5)),
        // Longer than any receive.
        (vec![start(), data(&[1; 101])], ProtocolError::Overrun("bytes")),
        ([vec![start()], vec![data(b"x"); 5]].concat(), ProtocolError::Overrun("messages")),
    ];
    for (lie, what) in lies {
        let (peer, mut messages) = ByHand::active(&adapter, &small(), hello(3, 50)).await;
        let good = lie.iter().filter(|message| **message == data(b"x")).take(4).count();
        let posted: Vec<_> = lie.iter().map(|message| peer.post(message)).collect();
        if good > 0 {
            // Whoever reads before the last has come grants more, and then the last is none too many.
            peer.arrived().await;
        }
        for _ in 0..good {
            // What was good is still to be had.
            assert_eq!(next(&mut messages).await, &b"x"[..]);
        }
        let error = within(messages.next()).await.expect("no end").expect_err("a lie");
        assert_eq!(*broken(&error), StreamBroken::Protocol(what), "{lie:?}");
        assert_eq!(Status::from_io(&error), Status::DATA_ERROR);
        assert!(within(messages.next()).await.is_none());
        let error = within(messages.send("?".into())).await.expect_err("broken");
        assert_eq!(*broken(&error), StreamBroken::Protocol(what));
        // The peer is not left waiting.
        within(peer.connection.disconnected()).await;
        drop(posted);
    }
}

#[tokio::test]
async fn messages_before_a_loss_come_before_its_error() {
    let adapter = adapter();
    for passive in [false, true] {
        let (peer, mut messages) = if passive {
            ByHand::passive(&adapter, &small(), hello(3, 50)).await
        } else {
            let (peer, messages) = ByHand::active(&adapter, &small(), hello(3, 50)).await;
            peer.send(&START).await;
            (peer, messages)
        };
        peer.send(&data(b"first")).await;
        peer.send(&data(b"second")).await;
        assert_eq!(next(&mut messages).await, &b"first"[..]);
        // Not in good order: the connection of a queue pair that is flushed is lost.
        peer.queue_pair.flush();
        within(messages.connection().disconnected()).await;
        assert_eq!(next(&mut messages).await, &b"second"[..]);
        let error = within(messages.next()).await.expect("no end").expect_err("it is lost");
        let StreamBroken::Connection(reason) = broken(&error).clone() else { panic!("{error}") };
        assert_eq!(reason, within(messages.connection().disconnected()).await, "it says why");
    }
}

#[tokio::test]
async fn messages_after_the_end_are_a_violation() {
    let adapter = adapter();
    for second in [vec![4, 0, 0, 0], data(b"")] {
        let (peer, mut messages) = ByHand::active(&adapter, &small(), hello(3, 50)).await;
        for message in [&START[..], &[4, 0, 0, 0]] {
            peer.send(message).await;
        }
        assert!(within(messages.next()).await.is_none(), "the end");
        let after = peer.post(&second);
        let error = within(async {
            loop {
                if let Err(error) = messages.flush().await {
                    return error;
                }
                tokio::task::yield_now().await;
            }
        });
        assert!(matches!(*broken(&error.await), StreamBroken::Protocol(ProtocolError::Message(_))));
        assert!(within(messages.next()).await.is_none(), "the end, as before");
        drop(after);
    }
}

#[tokio::test]
async fn a_listener_refuses_who_speaks_something_else() {
    let adapter = adapter();
    let listener = listening_for_messages(&adapter, &small());
    let mut version = hello(1, 1);
    version[4] = 9;
    for data in [
        Vec::new(),
        b"GET / HTTP/1.1".to_vec(),
        version,
        hello(0, 1),
        hello(1, 0),
        hello(1, 1)[..11].to_vec(),
    ] {
        // Padding would make what is too short as long as it should be.
        if data.len() == 11 && !adapter.info().exact_private_data {
            continue;
        }
        let queue_pair = queue_pair(&adapter);
        let params = ConnectParams::default().private_data(data);
        let connecting = adapter.connector();
        let outcome =
            within(connecting.connect(&queue_pair, listener.local_addr().expect("an address"), params)).await;
        let error = outcome.expect_err("refused");
        assert_rejected(&adapter, &error);
    }
    // And goes on.
    let peer = ByHand::connected(&adapter, listener.local_addr().expect("an address"), hello(1, 1)).await;
    let (mut messages, address) = within(listener.accept()).await.expect("accepted");
    assert_eq!(address, peer.connection.local_addr());
    peer.send(&START).await;
    send(&mut messages, "x").await;
}

#[tokio::test]
async fn a_listener_that_speaks_something_else_is_not_believed() {
    let adapter = adapter();
    for (data, expected) in [
        (Vec::new(), ProtocolError::Foreign),
        (b"HTTP/1.1 200 OK".to_vec(), ProtocolError::Foreign),
        (hello(0, 1), ProtocolError::Value { what: "credits", value: 0 }),
    ] {
        let (listener, address) = listening(&adapter);
        let queue_pair = queue_pair(&adapter);
        let accept = listener.accept_next(&queue_pair, AcceptParams::default().private_data(data));
        let config = small();
        let connect = Messages::connect_on(&adapter, address, &config);
        let (_accepted, connected) = within(async { tokio::join!(accept, connect) }).await;
        let error = connected.expect_err("not what it asked for");
        assert!(
            matches!(error, StreamError::Protocol { peer, error: what } if (peer, what) == (address, expected)),
            "{error}"
        );
    }
    let nobody = device::nobody(v4());
    let error = within(Messages::connect_on(&adapter, nobody, &small())).await.expect_err("nobody is there");
    assert!(matches!(error, StreamError::Connect(_)), "{error}");
}

/// A peer that has been accepted, and does not say so.
async fn undecided(adapter: &Adapter, address: SocketAddr) -> (QueuePair, Reply) {
    let queue_pair = queue_pair(adapter);
    let params = ConnectParams::default().private_data(hello(1, 1));
    let connector = adapter.connector();
    let reply = within(connector.connect(&queue_pair, address, params)).await.expect("accepted");
    (queue_pair, reply)
}

#[tokio::test]
async fn peers_that_never_complete_hold_up_nobody() {
    let adapter = adapter();
    if !adapter.info().three_phase {
        return eprintln!("skipped: the passive side does not wait for the third step of the active one");
    }
    let listener = listening_for_messages(&adapter, &small());
    let slow = undecided(&adapter, listener.local_addr().expect("an address")).await;
    let peer = ByHand::connected(&adapter, listener.local_addr().expect("an address"), hello(1, 1)).await;
    let (_messages, address) = within(listener.accept()).await.expect("accepted");
    assert_eq!(address, peer.connection.local_addr());
    drop(slow);

    // It is dropped when its time is up: sooner or later it has lost before it decides.
    let listener = listening_for_messages(&adapter, &small().handshake_timeout(Duration::from_millis(500)));
    let mut patience = Duration::from_millis(250);
    within(async {
        while {
            let (_queue_pair, reply) = undecided(&adapter, listener.local_addr().expect("an address")).await;
            tokio::time::sleep(patience).await;
            patience *= 2;
            reply.complete().await.is_ok()
        } {}
    })
    .await;
}

#[tokio::test]
async fn a_listener_is_a_stream_of_who_has_come() {
    let adapter = adapter();
    let mut listener = listening_for_messages(&adapter, &small());
    let address = listener.local_addr().expect("an address");
    let mut connected = Vec::new();
    for number in 0..5_u8 {
        let mut messages =
            within(Messages::connect_on(&adapter, address, &small())).await.expect("connected");
        send(&mut messages, vec![number]).await;
        connected.push(messages);
    }
    let mut came = Vec::new();
    for _ in 0..5 {
        let mut messages = within(listener.next()).await.expect("no end").expect("no error");
        came.push(next(&mut messages).await[0]);
    }
    came.sort_unstable();
    assert_eq!(came, [0, 1, 2, 3, 4]);
    // Who has not been taken is disconnected with the listener.
    let mut late = within(Messages::connect_on(&adapter, address, &small())).await.expect("connected");
    drop(listener);
    let error = within(late.next()).await.expect("no end").expect_err("nobody is there");
    assert!(matches!(broken(&error), StreamBroken::Connection(_)));
}
