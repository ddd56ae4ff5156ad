//! Bytes that a read of the soft provider returns before the message that tells of them, with a raw socket as the peer.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use common::life::{Log, poll_once, poll_with};
use common::raw::{READ_RESPONSE, REPLY_KEY, REQUEST_KEY, Raw, Start, fpdu, read_request, send, write};
use common::stream::{listening, pattern, streams, streams_with};
use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio_rdma::{RdmaStream, StreamConfig};

use crate::stream::soft::hello;

/// The length of a frame that is large.
const LARGE: usize = 20_000;
/// A message that says nothing.
const KEEPALIVE: u32 = 7 << 29 | 1;
/// The flag of a hello that grants the whole ring.
const GRANTS_RING: u8 = 4;
/// The peer sends no more.
const SHUTDOWN: u32 = 7 << 29 | 2;

/// A raw peer, which has sent a large frame, and a stream that has read it.
struct Ends {
    raw: Raw,
    stream: RdmaStream,
    /// The key and the address of the stream's ring.
    ring: (u32, u64),
    sends: u32,
}

impl Ends {
    async fn new() -> Self {
        let listener = listening(&adapter(), &StreamConfig::default());
        let mut raw = Raw::dial(listener.local_addr().expect("an address")).await;
        raw.say(&Start::peer_to_peer(16, 16).data(&hello()).encode(REQUEST_KEY)).await;
        let Start { data, .. } = raw.start_frame(REPLY_KEY).await;
        let address = u64::from_be_bytes(data[24..32].try_into().expect("8 bytes"));
        let key = u32::from_be_bytes(data[32..36].try_into().expect("4 bytes"));
        // An empty message: a keepalive.
        raw.post(&send(1, &KEEPALIVE.to_le_bytes())).await;
        let (stream, _) = within(listener.accept()).await.expect("accepted");
        let mut ends = Self { raw, stream, ring: (key, address), sends: 1 };
        ends.write(0, &[1; LARGE]).await;
        ends.announce(LARGE).await;
        let mut bytes = vec![0; LARGE];
        within(ends.stream.read_exact(&mut bytes)).await.expect("read");
        assert!(bytes == [1; LARGE]);
        ends
    }

    /// Writes to a place of the ring.
    async fn write(&mut self, place: usize, bytes: &[u8]) {
        let (key, address) = self.ring;
        self.raw.post(&write(key, address + place as u64, bytes)).await;
    }

    /// Tells of so many bytes.
    async fn announce(&mut self, length: usize) {
        self.sends += 1;
        let word = u32::try_from(length).expect("short").to_le_bytes();
        self.raw.post(&send(self.sends, &word)).await;
    }

    /// Waits until the stream's end has handled all frames before this.
    async fn handled(&mut self) {
        self.raw.post(&read_request(1, (7, 0), 0, (0, 0))).await;
        while self.raw.message().await.expect("an answer").opcode() != READ_RESPONSE {}
    }
}

#[tokio::test]
async fn a_read_does_not_wait_for_the_message() {
    let Ends { mut raw, mut stream, ring: (key, address), .. } = Ends::new().await;
    let reading = tokio::spawn(async move {
        let mut bytes = vec![0; LARGE];
        stream.read_exact(&mut bytes).await.map(|_| (stream, bytes))
    });
    tokio::task::yield_now().await;
    raw.post(&write(key, address + LARGE as u64, &[2; LARGE])).await;
    let (mut stream, bytes) = within(reading).await.expect("no panic").expect("no message is needed");
    assert!(bytes == [2; LARGE]);
    // The message tells of what was read, and of as much again.
    raw.post(&write(key, address + 2 * LARGE as u64, &[3; 7])).await;
    raw.post(&send(3, &(LARGE as u32 + 7).to_le_bytes())).await;
    let mut rest = [0; 7];
    within(stream.read_exact(&mut rest)).await.expect("read");
    assert_eq!(rest, [3; 7]);
}

// A peer may write its memory in any order: nothing is read before what comes before it.
#[tokio::test]
async fn bytes_for_another_place_wait() {
    let mut ends = Ends::new().await;
    ends.write(LARGE + 100, &[3; LARGE]).await;
    ends.handled().await;
    ends.write(LARGE, &[2; 100]).await;
    ends.announce(LARGE + 100).await;
    let mut bytes = vec![0; LARGE + 100];
    within(ends.stream.read_exact(&mut bytes)).await.expect("read");
    assert!(bytes[..100] == [2; 100] && bytes[100..] == [3; LARGE]);
}

// What arrived before a loss is delivered before the error, also of a message that never ends, and of a frame (IO-02).
#[tokio::test]
async fn unfinished_message_is_delivered_before_the_loss() {
    for waits in [false, true] {
        let mut ends = Ends::new().await;
        ends.write(LARGE, &pattern(0, LARGE)).await;
        ends.write(2 * LARGE, &pattern(LARGE, 100)).await;
        ends.handled().await;
        let (key, address) = ends.ring;
        let frame =
            fpdu(&write(key, address + (2 * LARGE + 100) as u64, &pattern(LARGE + 100, LARGE)), false);
        let Ends { mut raw, mut stream, .. } = ends;
        let mut bytes = vec![0; 2 * LARGE];
        if waits {
            within(stream.read_exact(&mut bytes[..LARGE + 100])).await.expect("arrived");
        }
        raw.say(&frame[..10_000]).await;
        if waits {
            within(stream.read_exact(&mut bytes[LARGE + 100..LARGE + 5000])).await.expect("arrived");
        }
        raw.reset();
        let mut all = if waits { bytes[..LARGE + 5000].to_vec() } else { Vec::new() };
        within(stream.read_to_end(&mut all)).await.expect_err("lost");
        assert!(all.len() >= LARGE + 100 && all == pattern(0, all.len()), "{} bytes", all.len());
    }
}

// A reader is woken for the part of a frame that has come.
#[tokio::test]
async fn a_frame_is_read_as_it_comes() {
    let Ends { mut raw, mut stream, ring: (key, address), .. } = Ends::new().await;
    let frame = fpdu(&write(key, address + LARGE as u64, &pattern(0, LARGE)), false);
    for (part, read) in [(&frame[..8000], 0..5000), (&frame[8000..12_000], 5000..10_000)] {
        let mut bytes = vec![0; 5000];
        let mut reading = Box::pin(stream.read_exact(&mut bytes));
        assert!(poll_once(&mut reading).is_pending(), "not there yet");
        raw.say(part).await;
        within(reading).await.expect("read");
        assert!(bytes == pattern(read.start, 5000));
    }
}

// A message tells of bytes that were written before it.
#[tokio::test]
async fn message_without_its_bytes_ends_the_stream() {
    let mut ends = Ends::new().await;
    ends.write(LARGE, &[2; 10]).await;
    ends.announce(11).await;
    let mut bytes = Vec::new();
    let error = within(ends.stream.read_to_end(&mut bytes)).await.expect_err("a violation");
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
}

// Between ends that both say so, the hello grants the whole ring, and no message has to.
#[tokio::test]
async fn hello_may_grant_the_whole_ring() {
    for grants_ring in [false, true] {
        let listener = listening(&adapter(), &StreamConfig::default());
        let mut raw = Raw::dial(listener.local_addr().expect("an address")).await;
        let mut hello = hello();
        hello[4] = if grants_ring { GRANTS_RING } else { 0 };
        raw.say(&Start::peer_to_peer(16, 16).data(&hello).encode(REQUEST_KEY)).await;
        let Start { data, .. } = raw.start_frame(REPLY_KEY).await;
        assert!(data[4] & GRANTS_RING > 0, "it says so to everyone");
        raw.post(&send(1, &KEEPALIVE.to_le_bytes())).await;
        let (mut stream, _) = within(listener.accept()).await.expect("accepted");
        let mut writing = Box::pin(stream.write_all(&[7; 129]));
        assert!(poll_once(&mut writing).is_pending(), "no ring has room for this");
        let mut written = Vec::new();
        while written.len() < 2 {
            let frame = raw.message().await.expect("a frame");
            written.extend(frame.is_tagged().then(|| (frame.long(6), frame.payload().len())));
        }
        // Otherwise an entry of the list of targets comes first.
        assert_eq!(written, if grants_ring { [(0, 64), (64, 64)] } else { [(16, 16), (0, 64)] });
    }
}

// A peer that announces nothing is held to what it was granted all the same.
#[tokio::test]
async fn bytes_without_messages_end_the_stream() {
    const RING: usize = 4 << 20;
    let mut ends = Ends::new().await;
    let (mut place, mut bytes) = (LARGE, vec![0; LARGE]);
    let mut total = 0;
    let error = loop {
        let length = LARGE.min(RING - place);
        ends.write(place, &bytes[..length]).await;
        if let Err(error) = within(ends.stream.read_exact(&mut bytes[..length])).await {
            break error;
        }
        (place, total) = ((place + length) % RING, total + length);
        assert!(total <= RING + LARGE, "more than the ring");
    };
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
    let mut rest = Vec::new();
    within(ends.stream.read_to_end(&mut rest)).await.expect_err("it has ended");
    assert!(rest.is_empty(), "nothing behind a violation");
}

// A wait for an error alone is not woken by bytes that are unread.
#[tokio::test]
async fn a_wait_for_an_error_leaves_bytes_unread() {
    let mut ends = Ends::new().await;
    ends.write(LARGE, &[5]).await;
    ends.announce(1).await;
    within(ends.stream.readable()).await.expect("a byte");
    {
        let (woken, mut waiting) = (Log::default(), Box::pin(ends.stream.ready(Interest::ERROR)));
        assert!(poll_with(&mut waiting, &woken.waker(())).is_pending());
        assert!(woken.lines().is_empty(), "nothing has come");
        ends.raw.reset();
        assert!(within(waiting).await.expect("ready").is_error());
    }
    assert_eq!(within(ends.stream.read_u8()).await.expect("it is there"), 5);
}

// What is not free is refused: behind the ring, across its end, over bytes that are unread, and with gaps without end.
#[tokio::test]
async fn writes_beyond_the_grant_end_the_connection() {
    let ring = 4 << 20;
    for place in [ring - 1, ring, LARGE + 1] {
        let mut ends = Ends::new().await;
        ends.write(LARGE, &[2; 2]).await;
        ends.write(place, &[2; 2]).await;
        assert_eq!(ends.raw.last_words().await, Some((1, 1, 1)), "at {place}");
    }
    let mut ends = Ends::new().await;
    for gap in 0..200 {
        ends.write(LARGE + 1 + 2 * gap, &[2]).await;
    }
    assert_eq!(ends.raw.last_words().await, Some((1, 1, 1)), "gaps");
}

// The reader goes first, and is not waited for when it does not come.
#[tokio::test]
async fn a_read_that_was_dropped_delays_nothing() {
    let mut ends = Ends::new().await;
    let mut bytes = vec![0; LARGE];
    for _ in 0..2 {
        assert!(futures::poll!(std::pin::pin!(ends.stream.read(&mut bytes))).is_pending());
    }
    ends.write(LARGE, &[2; LARGE]).await;
    ends.announce(LARGE).await;
    ends.handled().await;
    within(ends.stream.read_exact(&mut bytes)).await.expect("read");
    assert!(bytes == [2; LARGE]);
}

// The reader may meet the end of the connection before the task of the connection does. A disconnect right behind must not
// say that all is well.
#[tokio::test]
async fn a_disconnect_knows_what_a_read_has_met() {
    let Ends { mut raw, mut stream, .. } = Ends::new().await;
    let connection = stream.connection().clone();
    let task = tokio::spawn(async move {
        let mut bytes = vec![0; LARGE];
        let mut polls = 0;
        std::future::poll_fn(|cx| {
            polls += 1;
            let pending = Future::poll(std::pin::pin!(stream.read(&mut bytes)), cx).is_pending();
            assert!(pending || polls > 2, "the requests have not been flushed");
            if polls < 2 { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
        })
        .await;
        (connection.disconnect().await, stream)
    });
    tokio::task::yield_now().await;
    while raw.has_bytes() {
        raw.message().await;
    }
    raw.reset();
    let (outcome, _stream) = within(task).await.expect("no panic");
    assert!(outcome.is_err(), "the connection was lost: {outcome:?}");
}

// A peer that has said that it sends no more has said so.
#[tokio::test]
async fn nothing_is_read_behind_the_end() {
    let Ends { mut raw, mut stream, ring: (key, address), .. } = Ends::new().await;
    raw.post(&send(3, &SHUTDOWN.to_le_bytes())).await;
    let reading = tokio::spawn(async move {
        let mut bytes = vec![0; LARGE];
        let mut read = 0;
        for _ in 0..2000 {
            read += stream.read(&mut bytes).await.expect("the end");
            tokio::task::yield_now().await;
        }
        (read, stream)
    });
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    raw.post(&write(key, address + LARGE as u64, &[2; LARGE])).await;
    let (read, _stream) = within(reading).await.expect("no panic");
    assert_eq!(read, 0);
}

// The task that `block_on` runs is no task of the scheduler's, which polls it in turns of its own.
#[tokio::test]
async fn main_task_reads_without_a_message() {
    let Ends { mut raw, mut stream, ring: (key, address), .. } = Ends::new().await;
    let mut bytes = vec![0; LARGE];
    let writing = tokio::spawn(async move {
        tokio::task::yield_now().await;
        raw.post(&write(key, address + LARGE as u64, &[2; LARGE])).await;
        raw
    });
    within(stream.read_exact(&mut bytes)).await.expect("no message is needed");
    assert!(bytes == [2; LARGE]);
    writing.await.expect("no panic");
}

/// The frames of a message of one large one and the rest.
const SHORTEST: [(usize, usize); 2] = [(0, LARGE), (LARGE, 100)];
/// The frames of a message of four large ones and the rest: the place and the length of each.
const MESSAGE: [(usize, usize); 5] =
    [(0, LARGE), (LARGE, LARGE), (2 * LARGE, LARGE), (3 * LARGE, LARGE), (4 * LARGE, 100)];

impl Ends {
    /// The frames of a message whose first byte is for this place of the ring, and the Send behind them. `more` goes before the
    /// frame with its number.
    fn frames(
        &mut self,
        place: usize,
        frames: &[(usize, usize)],
        more: Option<(usize, Vec<u8>)>,
    ) -> (Vec<u8>, Vec<u8>) {
        let length = frames.iter().map(|(_, length)| length).sum();
        let bytes: Vec<u8> = (0..length).map(|byte| ((place + byte) * 7 / 5) as u8).collect();
        let (key, address) = self.ring;
        let mut wire = Vec::new();
        for (index, &(from, length)) in frames.iter().enumerate() {
            if let Some((_, more)) = more.as_ref().filter(|(before, _)| *before == index) {
                wire.extend(fpdu(more, false));
            }
            let to = address + (place + from) as u64;
            wire.extend(fpdu(&write(key, to, &bytes[from..from + length]), false));
        }
        self.sends += 1;
        let word = u32::try_from(length).expect("short").to_le_bytes();
        wire.extend(fpdu(&send(self.sends, &word), false));
        (wire, bytes)
    }

    /// Has the stream read these bytes, which come in two parts, and compares them.
    async fn reads(&mut self, (first, second): (&[u8], &[u8]), expected: &[u8]) {
        let mut bytes = vec![0; expected.len()];
        let Self { raw, stream, .. } = self;
        let writing = async {
            raw.say(first).await;
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            raw.say(second).await;
        };
        let (read, ()) = within(async { tokio::join!(stream.read_exact(&mut bytes), writing) }).await;
        read.expect("read");
        assert!(bytes == expected);
    }
}

// The frames of a message are expected where those of the last one were. They come so, cut anywhere, or they do not.
#[tokio::test]
async fn a_message_is_read_however_its_frames_come() {
    let (long, short) = (LARGE + 400, LARGE - 400);
    let mut ends = Ends::new().await;
    let nothing = read_request(1, (7, 0), 0, (0, 0));
    let longer = [MESSAGE, [(4 * LARGE + 100, LARGE); 5]].concat();
    let others: [(&[_], bool); 8] = [
        (&MESSAGE, false),
        (&MESSAGE, true),
        (&MESSAGE[..2], false),
        (&longer[..6], false),
        (&[(0, LARGE), (2 * LARGE, LARGE), (LARGE, LARGE), (3 * LARGE, LARGE)], false),
        (&[(0, LARGE), (LARGE, short), (LARGE + short, LARGE)], false),
        (&[(0, LARGE), (LARGE, LARGE), (2 * LARGE, long), (2 * LARGE + long, 8)], false),
        (&[(0, LARGE), (LARGE, 100), (LARGE + 100, LARGE), (2 * LARGE + 100, LARGE)], false),
    ];
    for (frames, asks) in others {
        let stride = LARGE + 20;
        let cuts = [1, 3, 4].map(|frame| [0, 1, 4, 5, 16, 20, 21, 4000].map(|byte| frame * stride + byte));
        for (cut, usual) in cuts.as_flattened().iter().flat_map(|cut| [(cut, &MESSAGE[..]), (cut, &SHORTEST)])
        {
            ends = Ends::new().await;
            let (wire, expected) = ends.frames(LARGE, usual, None);
            ends.reads((&wire, &[]), &expected).await;
            let place = LARGE + expected.len();
            let (mut wire, mut expected) = ends.frames(place, frames, asks.then(|| (2, nothing.clone())));
            // One more message behind it, of the usual kind.
            let (next, bytes) = ends.frames(place + expected.len(), usual, None);
            wire.extend(next);
            expected.extend(bytes);
            ends.reads(wire.split_at(wire.len().min(*cut)), &expected).await;
        }
    }
    drop(ends);
}

// A frame that ends with padding, as one of HTTP/2 does, is expected where the last one was. It comes so, cut anywhere, or it does not.
#[tokio::test]
async fn a_padded_frame_is_read_however_it_comes() {
    const PADDED: usize = 16 * 1024 + 9;
    let usual = [(0, PADDED)];
    let others: [&[_]; 4] = [&usual, &[(0, PADDED), (PADDED, PADDED)], &[(0, 100)], &[(0, LARGE)]];
    let cuts =
        [1, 15, 16, 17, 4096, 8216, 8217, PADDED + 15, PADDED + 16, PADDED + 19, PADDED + 23, PADDED + 40];
    for (frames, cut) in others.iter().flat_map(|frames| cuts.map(|cut| (*frames, cut))) {
        let mut ends = Ends::new().await;
        let mut place = LARGE;
        for frames in [&usual, &usual, frames, &usual] {
            let (wire, expected) = ends.frames(place, frames, None);
            place += expected.len();
            // Two rooms for a frame.
            let Ends { raw, stream, .. } = &mut ends;
            let (first, second) = wire.split_at(wire.len().min(cut));
            let writing = async {
                raw.say(first).await;
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
                raw.say(second).await;
            };
            let reading = async {
                let mut bytes = vec![0; expected.len()];
                for room in bytes.chunks_mut(PADDED.div_ceil(2)) {
                    stream.read_exact(room).await.expect("read");
                }
                bytes
            };
            let (bytes, ()) = within(async { tokio::join!(reading, writing) }).await;
            assert!(bytes == expected, "{frames:?}, cut at {cut}");
        }
    }
}

// A frame with another key is none of those that are expected.
#[tokio::test]
async fn expected_frame_with_wrong_key_ends_connection() {
    let mut ends = Ends::new().await;
    let (wire, expected) = ends.frames(LARGE, &MESSAGE, None);
    ends.reads((&wire, &[]), &expected).await;
    let place = LARGE + expected.len();
    let (wire, _) = ends.frames(place, &[(0, LARGE)], None);
    let (frame, _send) = wire.split_at(LARGE + 20);
    let (key, address) = ends.ring;
    let wrong = fpdu(&write(key ^ 1, address + (place + LARGE) as u64, &[0; LARGE]), false);
    ends.raw.say(&[frame, &wrong].concat()).await;
    let mut bytes = vec![0; 2 * LARGE];
    within(ends.stream.read_exact(&mut bytes)).await.expect_err("there is no such key");
    assert_eq!(ends.raw.last_words().await, Some((1, 1, 0)));
}

/// Panics when it is woken.
struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        panic!("a waker of the test panics");
    }
}

// The thread that reports the sockets of all streams goes on.
#[tokio::test]
async fn panicking_waker_ends_its_stream_alone() {
    let adapter = adapter();
    let [(mut left, mut right), (mut other_left, mut other_right)] =
        [streams(&adapter).await, streams(&adapter).await];
    assert!(poll_with(&mut Box::pin(right.read(&mut [0])), &Waker::from(Arc::new(Bomb))).is_pending());
    within(left.write_all(b"x")).await.expect("written");
    within(left.read(&mut [0])).await.expect_err("the connection has ended");
    assert_eq!(within(right.read_u8()).await.expect("it had arrived"), b'x');
    within(right.read_u8()).await.expect_err("the connection has ended");
    within(other_left.write_all(b"y")).await.expect("written");
    assert_eq!(within(other_right.read_u8()).await.expect("read"), b'y');
}

/// The reads that wait and sleep before the first ones that poll.
const SLEEPS: usize = 31;

fn polling() -> StreamConfig {
    StreamConfig::default().spin(Duration::from_secs(3600))
}

// IO-17: a reader that polls reads its socket itself.
#[tokio::test]
async fn a_polling_reader_needs_no_other_task() {
    for length in [1, 64, 1000] {
        let (left, mut right) = streams_with(&adapter(), &StreamConfig::default(), &polling()).await;
        let mut bytes = vec![0; length];
        let mut read = Box::pin(right.read_exact(&mut bytes));
        assert!((0..=SLEEPS).all(|_| poll_once(&mut read).is_pending()), "nothing has been written");
        assert_eq!(left.try_write(&pattern(0, length)).expect("there is room"), length);
        let start = Instant::now();
        // No other task has a turn in between.
        while poll_once(&mut read).is_pending() {
            assert!(start.elapsed() < patience(), "{length} bytes are there");
        }
        drop(read);
        assert!(bytes == pattern(0, length));
    }
}

// IO-17: a reader that polls comes behind the tasks of its runtime, sockets and timers.
#[tokio::test]
async fn a_polling_reader_keeps_no_other_waiting() {
    let adapter = adapter();
    let (mut left, mut right) = streams_with(&adapter, &StreamConfig::default(), &polling()).await;
    let reader = tokio::spawn(async move {
        let mut byte = [0];
        let mut read = Box::pin(right.read(&mut byte));
        assert!((0..SLEEPS).all(|_| poll_once(&mut read).is_pending()));
        read.await.expect("read");
        byte
    });
    let (mut here, mut there) = streams(&adapter).await;
    for number in 0..100 {
        within(here.write_u8(number)).await.expect("written");
        assert_eq!(within(there.read_u8()).await.expect("read"), number);
    }
    within(tokio::time::sleep(Duration::from_millis(1))).await;
    assert!(!reader.is_finished(), "nothing has been written");
    within(left.write_all(b"x")).await.expect("written");
    assert_eq!(within(reader).await.expect("no panic"), *b"x");
}
