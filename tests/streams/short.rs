//! Short messages between ends of this crate over soft: one Send contains the word and the bytes. The peer is a raw socket.

use std::io::ErrorKind;

use common::raw::{CRC, REPLY_KEY, REQUEST_KEY, Raw, SEND, Start, fpdu, send, untagged, write};
use common::stream::{listening, pattern};
use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{RdmaStream, StreamConfig};

use crate::stream::soft::hello;

/// Flags of a hello: its end grants the whole ring, and takes bytes behind the word of a Send.
const GRANTS_RING: u8 = 4;
const TAKES_BYTES: u8 = 16;
/// The most bytes in such a Send of this crate.
const SHORT: usize = 1024;
/// A message that says nothing.
const KEEPALIVE: u32 = 7 << 29 | 1;
/// The end of the peer's direction.
const SHUTDOWN: u32 = 7 << 29 | 2;
/// The length of a frame that is large.
const LARGE: usize = 20_000;
/// The ring of a stream with the usual settings.
const RING: usize = 4 << 20;

/// The Send of a message of so many bytes, with these.
fn message(msn: u32, length: usize, bytes: &[u8]) -> Vec<u8> {
    send(msn, &body(length, bytes))
}

/// The payload of such a Send.
fn body(length: usize, bytes: &[u8]) -> Vec<u8> {
    let word = u32::try_from(length).expect("short").to_le_bytes();
    [&word[..], bytes].concat()
}

/// A raw peer that has taken credit, a stream, and the key and the address of the stream's ring.
struct Ends {
    raw: Raw,
    stream: RdmaStream,
    ring: (u32, u64),
}

impl Ends {
    async fn new(own: u8, crc: bool) -> Self {
        let adapter = adapter_with(SoftConfig::default().crc(crc));
        let listener = listening(&adapter, &StreamConfig::default());
        let mut raw = Raw::dial(listener.local_addr().expect("an address")).await;
        let mut hello = hello();
        hello[4] = own;
        // Room for more than a short message: 4 KiB.
        hello[38] = 16;
        let ask = Start::peer_to_peer(16, 16).flag(if crc { CRC } else { 0 });
        raw.say(&ask.data(&hello).encode(REQUEST_KEY)).await;
        let Start { data, .. } = raw.start_frame(REPLY_KEY).await;
        raw.crc = crc;
        assert!(data[4] & TAKES_BYTES > 0, "it says so to everyone");
        let address = u64::from_be_bytes(data[24..32].try_into().expect("8 bytes"));
        let key = u32::from_be_bytes(data[32..36].try_into().expect("4 bytes"));
        raw.post(&send(1, &KEEPALIVE.to_le_bytes())).await;
        let (stream, _) = within(listener.accept()).await.expect("accepted");
        Self { raw, stream, ring: (key, address) }
    }

    /// Writes to a place of the ring.
    async fn write(&mut self, place: usize, bytes: &[u8]) {
        let (key, address) = self.ring;
        self.raw.post(&write(key, address + place as u64, bytes)).await;
    }

    /// Reads so many bytes.
    async fn read(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        within(self.stream.read_exact(&mut bytes)).await.expect("read");
        bytes
    }
}

// IO-19: few bytes go with their word, and more, or to a peer that has not said that it takes them, go before it.
#[tokio::test]
async fn short_message_is_one_send() {
    for (own, length) in
        [(0, 1), (TAKES_BYTES, 1), (TAKES_BYTES, 2), (TAKES_BYTES, SHORT), (TAKES_BYTES, SHORT + 1)]
    {
        for crc in [false, true] {
            let mut ends = Ends::new(own, crc).await;
            let (bytes, is_one) = (pattern(0, length), own > 0 && length <= SHORT);
            within(ends.stream.write_all(&bytes)).await.expect("written");
            let expected = if is_one { body(length, &bytes) } else { bytes };
            // Credits, and the memory of the ring, come first.
            let mut frame = ends.raw.message().await.expect("a frame");
            while frame.payload() != expected {
                frame = ends.raw.message().await.expect("a frame");
            }
            assert_eq!(frame.is_tagged(), !is_one);
            if !is_one {
                let frame = ends.raw.message().await.expect("a frame");
                assert_eq!((frame.opcode(), frame.payload()), (SEND, &body(length, &[])[..]));
            }
        }
    }
}

// IO-19: however the frame arrives, the bytes are the next ones of the stream.
#[tokio::test]
async fn bytes_behind_the_word_are_read() {
    for crc in [false, true] {
        for length in [1, 2, SHORT, 3 * LARGE] {
            for piece in [1, 7, usize::MAX] {
                let mut ends = Ends::new(TAKES_BYTES, crc).await;
                let bytes = pattern(0, length);
                let frames =
                    [message(2, length, &bytes), message(3, 1, b"x")].map(|ulpdu| fpdu(&ulpdu, crc)).concat();
                let say = async {
                    for piece in frames.chunks(piece.max(frames.len() / 200)) {
                        ends.raw.say(piece).await;
                        tokio::task::yield_now().await;
                    }
                };
                let mut read = vec![0; length + 1];
                let (_, outcome) =
                    within(async { tokio::join!(say, ends.stream.read_exact(&mut read)) }).await;
                outcome.expect("read");
                assert!(
                    read[..length] == bytes && read[length] == b'x',
                    "{length} bytes in pieces of {piece}"
                );
            }
        }
    }
}

// IO-19: a reader that waits for large frames has room of its own, which such bytes may fill in part.
#[tokio::test]
async fn bytes_behind_the_word_fill_the_room_of_a_reader() {
    for room in [10, LARGE] {
        let mut ends = Ends::new(TAKES_BYTES, false).await;
        ends.write(0, &pattern(0, LARGE)).await;
        ends.raw.post(&message(2, LARGE, &[])).await;
        assert!(ends.read(LARGE).await == pattern(0, LARGE));
        let (raw, stream) = (&mut ends.raw, &mut ends.stream);
        let mut read = vec![0; room];
        let mut reading = Box::pin(stream.read(&mut read));
        assert!(futures::poll!(&mut reading).is_pending());
        raw.post(&message(3, 100, &pattern(0, 100))).await;
        let length = within(reading).await.expect("read");
        let rest = ends.read(100 - length).await;
        assert!([&read[..length], &rest].concat() == pattern(0, 100), "with room for {room}");
        // What follows is for the place behind them.
        ends.raw.post(&message(4, 5, &pattern(100, 5))).await;
        ends.write(LARGE + 105, &pattern(105, 7)).await;
        ends.raw.post(&message(5, 7, &[])).await;
        assert!(ends.read(12).await == pattern(100, 12));
    }
}

// IO-19: a message may have more than one segment, and its bytes come before those that were written ahead.
#[tokio::test]
async fn bytes_behind_the_word_come_in_their_order() {
    let mut ends = Ends::new(TAKES_BYTES, false).await;
    ends.write(5, &pattern(5, 10)).await;
    let payload = body(5, &pattern(0, 5));
    for (last, from, to) in [(false, 0, 3), (false, 3, 6), (true, 6, 9)] {
        ends.raw.post(&untagged(SEND, last, 0, 2, from as u32, &payload[from..to])).await;
    }
    ends.raw.post(&message(3, 10, &[])).await;
    assert!(ends.read(15).await == pattern(0, 15));
}

// IO-19: bytes behind a word that tells of none are as if they had been written ahead: they are read, and the next message counts them.
#[tokio::test]
async fn bytes_behind_other_words_are_written_ahead() {
    for crc in [false, true] {
        let mut ends = Ends::new(TAKES_BYTES, crc).await;
        ends.raw.post(&send(2, &[&KEEPALIVE.to_le_bytes()[..], &pattern(0, 5)].concat())).await;
        assert!(ends.read(5).await == pattern(0, 5));
        ends.raw.post(&message(3, 7, &pattern(5, 2))).await;
        ends.write(7, &pattern(7, 3)).await;
        ends.raw.post(&message(4, 3, &[])).await;
        ends.raw.post(&send(5, &SHUTDOWN.to_le_bytes())).await;
        let mut rest = Vec::new();
        within(ends.stream.read_to_end(&mut rest)).await.expect("an end of file");
        assert!(rest == pattern(5, 5));
    }
}

// IO-19: a word that tells of more bytes than have come ends the stream.
#[tokio::test]
async fn message_of_too_few_bytes_ends_the_stream() {
    let mut ends = Ends::new(TAKES_BYTES, false).await;
    ends.raw.post(&message(2, 5, &pattern(0, 4))).await;
    let mut read = Vec::new();
    let error = within(ends.stream.read_to_end(&mut read)).await.expect_err("a violation");
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
}

// IO-19: a peer that sends more than the ring has room for is answered with a Terminate, whole frames or not.
#[tokio::test]
async fn bytes_beyond_the_ring_end_the_connection() {
    const EACH: usize = 32 << 10;
    for piece in [1000, usize::MAX] {
        let mut ends = Ends::new(TAKES_BYTES | GRANTS_RING, false).await;
        let bytes = pattern(0, RING + EACH / 2);
        // The ring has room for half of the last one, of which nothing is taken.
        let fits = RING - EACH / 2;
        let messages = bytes[..fits].chunks(EACH).chain([&bytes[fits..]]);
        for (msn, bytes) in (2..).zip(messages) {
            for piece in fpdu(&message(msn, bytes.len(), bytes), false).chunks(piece) {
                ends.raw.try_say(piece).await;
            }
        }
        assert_eq!(ends.raw.last_words().await, Some((1, 2, 5)));
        let mut read = Vec::new();
        within(ends.stream.read_to_end(&mut read)).await.expect_err("lost");
        assert!(read == bytes[..fits], "{} bytes", read.len());
    }
}
