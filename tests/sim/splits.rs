//! What a peer sends has the same effect whether its frames arrive as a whole, many at once, or in pieces.

use std::time::Duration;

use common::raw::{REPLY_KEY, REQUEST_KEY, Start, fpdu, read_request, tagged, untagged, write};
use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};
use tokio_rdma::sim::{self, Host, Network};
use tokio_rdma::{AcceptParams, Access, Adapter, QueuePairConfig, Region};

use crate::{SECOND, adapter, hosts, listening};

/// The length of the region that the peer may access.
const REGION: usize = 4096;
/// The length of each receive.
const RECEIVE: usize = 64;
/// Opcodes of RDMAP.
const SOLICITED: u8 = 5;
const IMMEDIATE: u8 = 8;

/// The frames that a peer sends, with the key of the region left out.
struct Talk {
    frames: Vec<Frame>,
    receives: usize,
    /// Bytes of the last frame that are not sent.
    missing: usize,
}

#[derive(Clone, Copy, Debug)]
enum Frame {
    Send { opcode: u8, length: usize, parts: bool, msn: u32 },
    Write { key: u32, to: u64, length: usize },
    Read { length: u32, to: u64 },
    Immediate { msn: u32 },
    Bytes([u8; 4]),
}

impl Talk {
    /// Draws the frames. The last one may be a mistake.
    fn draw(network: &Network) -> Self {
        let below = |limit: usize| network.random(0..=limit as u64) as usize;
        let (mut frames, mut msn) = (Vec::new(), 0);
        for _ in 0..below(40) {
            frames.push(match below(5) {
                0 => Frame::Write { key: 0, to: below(REGION - 300) as u64, length: below(300) },
                1 => Frame::Read { length: below(300) as u32, to: below(REGION - 300) as u64 },
                kind => {
                    msn += 1;
                    let opcode = if kind == 2 { SOLICITED } else { common::raw::SEND };
                    let parts = kind == 3;
                    match kind {
                        4 => Frame::Immediate { msn },
                        _ => Frame::Send { opcode, length: below(RECEIVE), parts, msn },
                    }
                }
            });
        }
        let opcode = common::raw::SEND;
        frames.extend(match below(8) {
            0 => Some(Frame::Send { opcode, length: RECEIVE + 1, parts: false, msn: msn + 1 }),
            1 => Some(Frame::Send { opcode, length: 4, parts: false, msn: msn + 2 }),
            2 => Some(Frame::Write { key: 0, to: REGION as u64 - 3, length: 4 }),
            3 => Some(Frame::Write { key: 77, to: 0, length: 4 }),
            4 => Some(Frame::Send { opcode: 14, length: 4, parts: false, msn: msn + 1 }),
            5 => Some(Frame::Bytes([0, 3, 0x41, 0x43])),
            _ => None,
        });
        // One too few now and then.
        let receives = (msn as usize).saturating_sub(below(20) / 20) + below(3);
        Self { frames, receives, missing: below(40).saturating_sub(30) }
    }

    /// Returns the bytes of the frames, for a region with this key.
    fn bytes(&self, key: u32) -> Vec<u8> {
        let (mut bytes, mut reads) = (Vec::new(), 0);
        let content = |length: usize, seed: u32| -> Vec<u8> {
            (0..length).map(|place| (place as u32 * 7 + seed * 31 + 1) as u8).collect()
        };
        for frame in &self.frames {
            let mut add = |ulpdu: &[u8]| bytes.extend(fpdu(ulpdu, false));
            match *frame {
                Frame::Send { opcode, length, parts: false, msn } => {
                    add(&untagged(opcode, true, 0, msn, 0, &content(length, msn)));
                }
                Frame::Send { opcode, length, msn, .. } => {
                    let whole = content(length, msn);
                    let (first, second) = whole.split_at(length / 2);
                    add(&untagged(opcode, false, 0, msn, 0, first));
                    add(&untagged(opcode, true, 0, msn, first.len() as u32, second));
                }
                Frame::Write { key: other, to, length } => {
                    add(&write(key ^ other, to, &content(length, to as u32)));
                }
                Frame::Read { length, to } => {
                    reads += 1;
                    add(&read_request(reads, (9, 0), length, (key, to)));
                }
                Frame::Immediate { msn } => add(&untagged(IMMEDIATE, true, 0, msn, 0, &content(8, msn))),
                Frame::Bytes(wrong) => bytes.extend(wrong),
            }
        }
        bytes.truncate(bytes.len().saturating_sub(self.missing));
        bytes
    }
}

/// What can be seen of a talk: the receives with their content, the region, the way in which the connection
/// ended, and what this end has sent.
#[derive(Debug, PartialEq)]
struct Effect {
    receives: Vec<String>,
    region: Vec<u8>,
    ended: String,
    sent: Vec<u8>,
}

/// Sends the frames in pieces of these lengths, again and again.
async fn effect(
    (server, client): (&Host, &Host),
    (passive, region): (&Adapter, &Region),
    talk: &Talk,
    pieces: &[usize],
) -> Effect {
    let (listener, address) = listening(passive, server);
    region.write(0, &[0; REGION]).expect("as long");
    let config = QueuePairConfig::default().receive_depth(64);
    let queue_pair = passive.queue_pair(config).expect("a queue pair");
    let receives: Vec<_> = (0..talk.receives)
        .map(|_| queue_pair.receive(passive.buffer(RECEIVE).expect("memory")).expect("posted"))
        .collect();
    let mut peer = client.tcp_connect(address).await.expect("connected");
    peer.write_all(&Start::peer_to_peer(16, 16).encode(REQUEST_KEY)).await.expect("written");
    let request = listener.request().await.expect("a request");
    let accepting = request.accept(&queue_pair, AcceptParams::default());
    let beginning = async {
        let mut reply = [0; 24];
        peer.read_exact(&mut reply).await.expect("a reply");
        assert!(reply.starts_with(REPLY_KEY));
        peer.write_all(&fpdu(&tagged(common::raw::WRITE, true, 0, 0, &[]), false)).await.expect("written");
        peer
    };
    let (accepted, mut peer) = tokio::join!(accepting, beginning);
    let connection = accepted.expect("accepted");
    let bytes = talk.bytes(region.remote().key().0);
    let talking = async {
        let (mut rest, mut lengths) = (&bytes[..], pieces.iter().cycle());
        while !rest.is_empty() {
            let length = *lengths.next().expect("some");
            let (piece, behind) = rest.split_at(length.min(rest.len()));
            // The connection may have ended.
            if peer.write_all(piece).await.is_err() {
                break;
            }
            sleep(Duration::from_millis(2)).await;
            rest = behind;
        }
        let _ = peer.shutdown().await;
        let mut sent = Vec::new();
        let _ = peer.read_to_end(&mut sent).await;
        sent
    };
    let (sent, ended, receives) = tokio::join!(talking, connection.disconnected(), join_all(receives));
    let receives = receives.into_iter().map(|(outcome, buffer)| format!("{outcome:?} {:?}", &buffer[..]));
    let mut content = vec![0; REGION];
    region.read(0, &mut content).expect("as long");
    Effect { receives: receives.collect(), region: content, ended: format!("{ended:?}"), sent }
}

#[test]
fn frames_in_pieces_have_the_same_effect() {
    sim::check(0..60, async |network: Network| {
        let (server, client) = hosts(&network);
        let talk = Talk::draw(&network);
        let (hosts, passive) = ((&server, &client), adapter(&server));
        // One region for all, as a Terminate contains the key.
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = passive.register(REGION, access).await.expect("registered");
        let whole = effect(hosts, (&passive, &region), &talk, &[usize::MAX]).await;
        let drawn: Vec<_> = (0..20).map(|_| network.random(1..=100) as usize).collect();
        for pieces in [&[1][..], &[19, 1], &[28], &drawn] {
            let split = effect(hosts, (&passive, &region), &talk, pieces);
            let split = timeout(1000 * SECOND, split).await.expect("it ends");
            assert_eq!(split, whole, "in pieces of {pieces:?}: {:?}", talk.frames);
        }
    });
}
