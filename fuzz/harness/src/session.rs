//! A stream with a session against a peer that the input controls: it knows the secret, connects again as it likes, and says anything.
//!
//! The peer judges what it reads: behind each connection that the listener grants, the bytes go on where the peer has said. The
//! stream of another peer is beside it, and is not disturbed.

use std::time::Duration;

use common::session_peer::{ABANDONED, GRANTED, Number, OPEN, OVER, Peer, RESUME, greeting, kind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};
use tokio_rdma::{Adapter, RdmaConnector, RdmaListener, RdmaStream, SessionConfig, StreamConfig};

use crate::input::Input;
use crate::stage::{Stage, run, within};

/// The most commands of one run.
const COMMANDS: usize = 40;
/// The time without a connection, and that of a close.
const GIVE_UP: Duration = Duration::from_secs(5);
/// Longer than everything takes for which nothing is missing: there is no latency.
const SOON: Duration = Duration::from_millis(20);

/// Runs one stream.
///
/// # Panics
/// When our end does anything that it must not.
pub fn session(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    run(execute(&mut input));
}

async fn execute(input: &mut Input<'_>) {
    let stage = Stage::new(false);
    let session = SessionConfig::default().give_up_after(GIVE_UP).window(4096);
    let config = StreamConfig::default().session(session).close_timeout(GIVE_UP);
    let ours = stage.adapter(false);
    let listener = RdmaListener::bind_on(&ours, stage.address(), &config).expect("listening");
    let adapter = stage.peer.adapter().expect("opened");
    let connector = RdmaConnector::new().adapter(&adapter).config(config);
    let both = async { tokio::join!(connector.connect(stage.address()), listener.accept()) };
    let (witness, accepted) = within("a stream begins", both).await;
    let mut witness = [witness.expect("connected"), accepted.expect("accepted").0];
    let (peer, id, secret, stream) = within("a stream begins", Peer::open(&adapter, &listener)).await;
    let mut other = Other {
        stage,
        adapter,
        peer: Some(peer),
        id,
        secret,
        epoch: 0,
        stream: Some(stream),
        written: Vec::new(),
        read: 0,
    };
    for _ in 0..COMMANDS {
        if input.is_empty() {
            break;
        }
        within("a command ends", other.obey(input)).await;
    }
    let [one, another] = &mut witness;
    for _ in 0..2 {
        within("a byte arrives elsewhere", one.write_u8(7)).await.expect("written");
        assert_eq!(within("a byte arrives elsewhere", another.read_u8()).await.expect("read"), 7);
        std::mem::swap(one, another);
    }
    for end in &witness {
        let path = end.session().expect("a session");
        assert!(path.resumes == 0 && !path.is_lost && !path.is_over, "{path:?}");
    }
}

/// The peer that the input controls, and the stream that it has.
struct Other {
    stage: Stage,
    adapter: Adapter,
    /// The connection that was granted last.
    peer: Option<Peer>,
    id: Number,
    secret: Number,
    /// The epoch that was granted last.
    epoch: u64,
    stream: Option<RdmaStream>,
    /// The bytes that the program of our end has written.
    written: Vec<u8>,
    /// The number of them that the peer has read.
    read: usize,
}

impl Other {
    /// Carries out the next command.
    async fn obey(&mut self, input: &mut Input<'_>) {
        match input.below(10) {
            0 | 1 => self.ask(input).await,
            2 => {
                let length = 1 + input.below(200);
                let bytes = input.bytes(length);
                if let Some(peer) =
                    self.peer.as_mut().filter(|peer| peer.room() >= bytes.len() && !bytes.is_empty())
                {
                    peer.write(bytes).await;
                }
            }
            3 => {
                let word = u32::from_be_bytes([input.byte(), 0, input.byte(), input.byte()]);
                if let Some(peer) = &self.peer {
                    peer.word(word).await;
                }
            }
            4 | 5 => {
                let bytes: Vec<u8> =
                    (0..8 * input.below(128)).map(|place| (self.written.len() + place) as u8).collect();
                if let Some(stream) = &mut self.stream
                    && let Ok(Ok(count)) = timeout(SOON, stream.write(&bytes)).await
                {
                    self.written.extend(&bytes[..count]);
                }
            }
            6 => {
                if let Some(stream) = &mut self.stream {
                    let _ = timeout(SOON, stream.read(&mut [0; 100])).await;
                }
            }
            7 => self.read(1 + input.below(200)).await,
            8 => sleep(Duration::from_millis([1, 300, 3000, 6000][input.below(4)])).await,
            _ => match input.below(6) {
                0 => self.peer = None,
                1 => self.stream = None,
                2 => {
                    if let Some(stream) = self.stream.take() {
                        stream.set_zero_linger().expect("set");
                    }
                }
                _ => {
                    if let Some(stream) = &mut self.stream {
                        let _ = timeout(SOON, stream.shutdown()).await;
                    }
                }
            },
        }
    }

    /// Reads bytes, if there are as many.
    async fn read(&mut self, length: usize) {
        let Some(peer) = &mut self.peer else { return };
        if let Ok(Some(bytes)) = timeout(SOON, peer.read(length)).await {
            let expected = self.written.get(self.read..self.read + length);
            assert_eq!(Some(&bytes[..]), expected, "the bytes from {} on", self.read);
            self.read += length;
        }
    }

    /// Connects again, with a message that may be a lie.
    async fn ask(&mut self, input: &mut Input<'_>) {
        let kind_asked =
            [RESUME, RESUME, RESUME, RESUME, OVER, ABANDONED, GRANTED, input.byte()][input.below(8)];
        let epoch = match input.below(4) {
            0 => input.number(self.epoch),
            _ => self.epoch + 1,
        };
        let read = match input.below(4) {
            0 => input.number(self.written.len() as u64),
            _ => self.read as u64,
        };
        let mut ask = greeting(kind_asked, self.id, epoch, read, &self.secret);
        let is_changed = input.below(4) == 0;
        if is_changed {
            ask[input.below(ask.len())] ^= input.byte() | 1;
        }
        let length = if input.below(8) == 0 { input.below(ask.len()) } else { ask.len() };
        let mut peer = Peer::with_session(&self.adapter, self.stage.address()).await;
        if length > 0 {
            peer.write(&ask[..length]).await;
        }
        let answer = timeout(SOON, peer.answer()).await.ok().flatten();
        // One that opens another session is no concern of this one.
        if answer.map(|answer| kind(&answer)) != Some(GRANTED) || kind(&ask) == OPEN {
            return;
        }
        assert!(!is_changed && length == ask.len() && kind_asked == RESUME, "granted to {ask:?}");
        assert!(epoch > self.epoch, "granted to epoch {epoch} behind {}", self.epoch);
        self.read = usize::try_from(read).expect("a count");
        assert!(self.read <= self.written.len(), "granted to a count of {read}");
        (self.epoch, self.peer) = (epoch, Some(peer));
    }
}
