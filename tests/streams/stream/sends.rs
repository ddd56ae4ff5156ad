//! The Sends of a peer of a stream over the soft provider, segment by segment.

use std::io::ErrorKind;

use common::raw::{REPLY_KEY, REQUEST_KEY, Raw, Start, send, untagged};
use common::stream::listening;
use common::*;
use tokio::io::AsyncReadExt;
use tokio_rdma::error::{ProtocolError, StreamBroken};
use tokio_rdma::{RdmaStream, StreamConfig};

use super::soft::hello;

/// The opcodes of a Send and of Immediate Data (RFC 5040 section 4.3, RFC 7306 section 6.1).
const SEND: u8 = 3;
const IMMEDIATE: u8 = 8;
const KEEPALIVE: u32 = 7 << 29 | 1;
const SHUTDOWN: u32 = 7 << 29 | 2;

/// A stream with this many receives, and its peer, which has sent one message.
async fn accepted(receives: usize) -> (RdmaStream, Raw) {
    let listener = listening(&adapter(), &StreamConfig::default().receive_depth(receives));
    let mut raw = Raw::dial(listener.local_addr().expect("an address")).await;
    raw.say(&Start::peer_to_peer(16, 16).data(&hello()).encode(REQUEST_KEY)).await;
    raw.start_frame(REPLY_KEY).await;
    raw.post(&send(1, &KEEPALIVE.to_le_bytes())).await;
    let (stream, _) = within(listener.accept()).await.expect("accepted");
    (stream, raw)
}

async fn broken(mut stream: RdmaStream) -> StreamBroken {
    let error = within(stream.read_u8()).await.expect_err("it is broken");
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<StreamBroken>()).cloned();
    inner.unwrap_or_else(|| panic!("{error:?}"))
}

// RFC 5041 section 5.2: a message may come in segments of any length.
#[tokio::test]
async fn a_message_in_two_segments_is_one() {
    let (mut stream, mut raw) = accepted(16).await;
    let [first, second, rest @ ..] = SHUTDOWN.to_le_bytes();
    raw.post(&untagged(SEND, false, 0, 2, 0, &[first, second])).await;
    raw.post(&untagged(SEND, true, 0, 2, 2, &rest)).await;
    let end = within(stream.read_u8()).await.expect_err("the peer has ended its direction");
    assert_eq!(end.kind(), ErrorKind::UnexpectedEof);
}

// Bytes behind a word do not make it valid.
#[tokio::test]
async fn bytes_behind_an_invalid_word_break_the_stream() {
    // Of one segment, and of two.
    for (first, second) in [(vec![0; 5], None), (vec![0; 2], Some(vec![0; 3]))] {
        let (stream, mut raw) = accepted(16).await;
        raw.post(&untagged(SEND, second.is_none(), 0, 2, 0, &first)).await;
        if let Some(second) = second {
            raw.post(&untagged(SEND, true, 0, 2, 2, &second)).await;
        }
        assert_eq!(broken(stream).await, StreamBroken::Protocol(ProtocolError::Message(0)));
    }
}

#[tokio::test]
async fn undersized_message_breaks_the_stream() {
    let (stream, mut raw) = accepted(16).await;
    raw.post(&untagged(SEND, false, 0, 2, 0, &[1, 2])).await;
    raw.post(&untagged(SEND, true, 0, 2, 2, &[3])).await;
    assert_eq!(broken(stream).await, StreamBroken::Protocol(ProtocolError::Length(3)));
}

#[tokio::test]
async fn immediate_data_breaks_the_stream() {
    let (stream, mut raw) = accepted(16).await;
    raw.post(&untagged(IMMEDIATE, true, 0, 2, 0, &[0, 0, 0, 0, 0, 0, 0, 1])).await;
    assert_eq!(broken(stream).await, StreamBroken::Protocol(ProtocolError::Length(0)));
}

// A stream that is not read keeps as many messages as it has said that it would, and no more.
#[tokio::test]
async fn excess_messages_end_the_connection() {
    const RECEIVES: u32 = 16;
    let (stream, mut raw) = accepted(RECEIVES as usize).await;
    // `accept` has taken the first.
    for msn in 2..RECEIVES + 3 {
        raw.post(&send(msn, &KEEPALIVE.to_le_bytes())).await;
    }
    // RFC 5041 section 7.2: DDP, untagged buffer, no buffer available.
    assert_eq!(raw.last_words().await, Some((1, 2, 2)));
    assert!(matches!(broken(stream).await, StreamBroken::Connection(_)));
}
