//! Both ends up to the point where the input takes over.

use common::raw::{
    self, CRC, OFFERS_ANNOUNCEMENTS, PEER_TO_PEER, REJECT, REPLY_KEY, REQUEST_KEY, RTR_READ, RTR_SEND,
    RTR_WRITE, Start, TAKES_ANNOUNCEMENTS,
};
use futures::FutureExt;
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, QueuePair, ReadLimits};

use super::Session;
use crate::input::Input;
use crate::peer::Peer;
use crate::reader::{Asked, Awaited};
use crate::stage::{Stage, within};

/// The most reads that a word of a start-up frame says, and its mask.
const LIMIT: u16 = 0x3fff;

/// The first bytes of the input.
pub(crate) struct Options {
    pub(crate) active: bool,
    pub(crate) ask_crc: bool,
    pub(crate) own_crc: bool,
    pub(crate) peer_to_peer: bool,
    /// Which of the RTR frames: Send, Write, Read.
    pub(crate) rtr: [bool; 3],
    pub(crate) enhanced: bool,
    /// The peer's first frame is not the RTR frame but what the input says.
    pub(crate) silent: bool,
    pub(crate) watch: bool,
    pub(crate) piece: usize,
    pub(crate) offered: ReadLimits,
    pub(crate) hard: bool,
    /// The stream holds little.
    pub(crate) narrow: bool,
    /// The peer announces how many segments follow.
    pub(crate) announces: bool,
}

impl Options {
    pub(crate) fn new(input: &mut Input<'_>) -> Self {
        let (a, b, c, d) = (input.byte(), input.byte(), input.byte(), input.byte());
        let bit = |byte: u8, bit: u8| byte >> bit & 1 != 0;
        Self {
            active: bit(a, 0),
            ask_crc: bit(a, 1),
            own_crc: bit(a, 2),
            peer_to_peer: !bit(a, 3),
            rtr: [bit(a, 4), bit(a, 5), bit(a, 6)],
            enhanced: !bit(a, 7),
            silent: bit(b, 0),
            watch: !bit(b, 1),
            hard: bit(b, 2),
            narrow: bit(d, 4),
            announces: bit(d, 5),
            piece: if bit(b, 3) { usize::from(b >> 4) + 1 } else { 0 },
            offered: ReadLimits::new((c & 15).into(), (c >> 4).into())
                .capped_to(ReadLimits::new(8, (d & 15).into())),
        }
    }

    /// The frame of the peer. `announcing` is its bit for announced segments.
    fn start(&self, announcing: u16) -> Start {
        let [send, write, read] = self.rtr;
        let ReadLimits { inbound, outbound } = self.offered.swapped();
        let bit = |set: bool, bit: u16| if set { bit } else { 0 };
        let ird = inbound as u16 | bit(self.peer_to_peer, PEER_TO_PEER) | bit(send, RTR_SEND);
        let ord = outbound as u16 | bit(write, RTR_WRITE) | bit(read, RTR_READ);
        let start = if self.enhanced { Start::enhanced(ird, ord) } else { Start::plain(1) };
        start.flag(bit(self.ask_crc, CRC) | bit(self.announces, announcing))
    }
}

/// The read limits that our stack says in its frame.
fn limits(words: (u16, u16)) -> ReadLimits {
    ReadLimits::new((words.0 & LIMIT).into(), (words.1 & LIMIT).into())
}

/// Our end accepts.
pub(super) async fn accept(
    stage: &Stage,
    adapter: Adapter,
    queue_pair: QueuePair,
    options: Options,
) -> Session {
    let listener = stage.listener(&adapter);
    let stream = stage.peer.tcp_connect(stage.address()).await.expect("our stack listens");
    let mut peer = Peer::new(stream, 0);
    peer.queue(&options.start(OFFERS_ANNOUNCEMENTS).encode(REQUEST_KEY));
    peer.transfer();
    let request = within("a request comes", listener.request()).await.expect("a request");
    let params = AcceptParams::default().read_limits(options.offered);
    let taken = queue_pair.clone();
    let accepting = async move { request.accept(&taken, params).await.ok() };
    let mut session = Session::new(adapter, options, queue_pair, peer, accepting.boxed_local());
    let reply = session.start_frame(REPLY_KEY).await;
    assert_eq!(reply.flags & REJECT, 0, "our own accept");
    let crc = reply.flags & CRC != 0;
    let announces = reply.flags & TAKES_ANNOUNCEMENTS != 0;
    assert_eq!(announces, session.options.announces && !crc, "an offer is taken");
    session.begin(crc, announces, reply.words.map_or(session.options.offered, limits));
    let Some((ird, ord)) = reply.words.filter(|(ird, _)| ird & PEER_TO_PEER != 0) else { return session };
    if session.options.silent {
        return session;
    }
    let rtr = if ord & RTR_WRITE != 0 {
        raw::write(0, 0, &[])
    } else if ord & RTR_READ != 0 {
        let awaited = Awaited::Read { sink: 0, length: 0, received: 0 };
        session.reader.reads.push_back(Asked { awaited, wanted: None });
        session.read_msn += 1;
        raw::read_request(1, (0, 0), 0, (0, 0))
    } else {
        assert_ne!(ird & RTR_SEND, 0, "one of the three");
        Vec::new()
    };
    let rtr = raw::fpdu(&rtr, crc);
    session.peer.queue(&rtr);
    session.reader.sent.push(rtr);
    session.until("it accepts", |session| session.establishing.is_none()).await;
    assert!(session.established, "the start-up of a good peer");
    session
}

/// Our end connects.
pub(super) async fn connect(
    stage: &Stage,
    adapter: Adapter,
    queue_pair: QueuePair,
    options: Options,
) -> Session {
    let foreign = stage.peer.tcp_listener(stage.peer_address().port()).expect("listening");
    let (connector, taken, address) = (adapter.connector(), queue_pair.clone(), stage.peer_address());
    let params = ConnectParams::default().read_limits(options.offered);
    let mut connecting =
        async move { connector.connect_and_complete(&taken, address, params).await.ok() }.boxed_local();
    assert!((&mut connecting).now_or_never().is_none(), "it connects to nobody");
    let (stream, _) = within("it connects", foreign.accept()).await.expect("accepted");
    let mut session = Session::new(adapter, options, queue_pair, Peer::new(stream, 0), connecting);
    let request = session.start_frame(REQUEST_KEY).await;
    let said = request.words.expect("our own request");
    assert_ne!(said.0 & PEER_TO_PEER, 0);
    let answer = if session.options.enhanced { session.options.offered } else { ReadLimits::default() };
    let crc = request.flags & CRC != 0 || session.options.ask_crc;
    let announces = session.options.announces && !crc;
    assert_eq!(request.flags & OFFERS_ANNOUNCEMENTS == 0, request.flags & CRC != 0, "an offer");
    session.begin(crc, announces, limits(said).capped_to(answer));
    // A peer that asks for nothing that was offered is not served.
    let [_, write, read] = session.options.rtr;
    let good = !session.options.enhanced || !session.options.peer_to_peer || write || read;
    session.reader.clean = good;
    let reply = session.options.start(TAKES_ANNOUNCEMENTS).encode(REPLY_KEY);
    session.peer.queue(&reply);
    if !session.options.silent {
        session.until("it connects", |session| session.establishing.is_none()).await;
        assert_eq!(session.established, good, "the start-up of a good peer");
    }
    session
}
