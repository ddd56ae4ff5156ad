//! Both ends up to the point where the fuzzer takes over.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use bytes::Bytes;
use futures::FutureExt;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::runtime::{Builder, Runtime};

use super::{PATIENCE, Session};
use crate::cm::{AcceptParams, Adapter, ConnectParams, Listener, Provider};
use crate::internals::input::Input;
use crate::internals::peer::Peer;
use crate::proto::mpa::{Rtr, rtr_frame};
use crate::provider::soft::config::SoftConfig;
use crate::qp::QueuePair;
use crate::types::ReadLimits;
use crate::wire::mpa::{Enhanced, StartFrame, StartKind};

/// What is made once and used by many runs.
pub(super) struct Harness {
    pub(super) adapter: Adapter,
    pub(super) checked: Adapter,
    pub(super) listener: Listener,
    pub(super) checked_listener: Listener,
    /// Where the peer waits for our active end.
    pub(super) foreign: TcpListener,
    pub(super) runtime: Runtime,
}

impl Harness {
    pub(super) fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let inside = runtime.enter();
        let open = |crc| {
            let config = SoftConfig::default().crc(crc).path_timeout(None);
            let provider = Provider::soft_with(config);
            let id = provider.resolve(Ipv4Addr::LOCALHOST.into()).expect("loopback");
            let adapter = provider.open(id).expect("opened");
            let listener = adapter.listener();
            listener.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("bound");
            listener.listen(0).expect("listening");
            (adapter, listener)
        };
        let ((adapter, listener), (checked, checked_listener)) = (open(false), open(true));
        let foreign = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("bound");
        foreign.set_nonblocking(true).expect("a socket");
        drop(inside);
        Self { adapter, checked, listener, checked_listener, foreign, runtime }
    }
}

/// Another loopback address for every run: nobody waits for ports in TIME_WAIT.
fn loopback() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % (1 << 20);
    Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 0).to_bits() + number)
}

/// The first bytes of the input.
pub(super) struct Options {
    pub(super) active: bool,
    pub(super) ask_crc: bool,
    pub(super) own_crc: bool,
    pub(super) peer_to_peer: bool,
    /// Which of the RTR frames: Send, Write, Read.
    pub(super) rtr: [bool; 3],
    pub(super) enhanced: bool,
    /// The peer's first frame is not the RTR frame but what the fuzzer says.
    pub(super) silent: bool,
    pub(super) watch: bool,
    pub(super) piece: usize,
    pub(super) offered: ReadLimits,
    pub(super) hard: bool,
    /// A stream of small segments with little room.
    pub(super) narrow: bool,
}

impl Options {
    pub(super) fn new(input: &mut Input<'_>) -> Self {
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
            piece: if bit(b, 3) { usize::from(b >> 4) + 1 } else { 0 },
            offered: ReadLimits::new((c & 15).into(), (c >> 4).into())
                .capped_to(ReadLimits::new(8, (d & 15).into())),
        }
    }

    fn start_frame(&self, kind: StartKind) -> Vec<u8> {
        let [rtr_send, rtr_write, rtr_read] = self.rtr;
        let ReadLimits { inbound, outbound } = self.offered.swapped();
        let (ird, ord) = (inbound as u16, outbound as u16);
        let enhanced = Enhanced { ird, ord, peer_to_peer: self.peer_to_peer, rtr_send, rtr_write, rtr_read };
        let private_data =
            if self.enhanced { Bytes::copy_from_slice(&enhanced.encode()) } else { Bytes::new() };
        let frame = StartFrame {
            kind,
            markers: false,
            crc: self.ask_crc,
            reject: false,
            enhanced: self.enhanced,
            revision: if self.enhanced { 2 } else { 1 },
            private_data,
        };
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        bytes
    }
}

/// Our end accepts.
pub(super) async fn accept<'a>(
    adapter: &'a Adapter,
    listener: &Listener,
    queue_pair: QueuePair,
    options: Options,
) -> Session<'a> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SockAddr::from(SocketAddr::from((loopback(), 0)))).expect("bound");
    if options.narrow {
        // The buffers of a loopback connection are so big otherwise that nothing here fills them.
        socket.set_tcp_mss(536).expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a socket");
    }
    let address = listener.local_addr().expect("it listens").into();
    // The fuzzer's own timer interrupts calls; the connecting goes on meanwhile.
    while let Err(error) = socket.connect(&address) {
        match error.raw_os_error() {
            Some(libc::EINTR | libc::EALREADY) => {}
            Some(libc::EISCONN) => break,
            _ => panic!("the peer cannot connect: {error}"),
        }
    }
    let mut peer = Peer::new(socket.into(), 0);
    peer.queue(&options.start_frame(StartKind::Request));
    peer.transfer();
    let request =
        tokio::time::timeout(PATIENCE, listener.request()).await.expect("it hangs").expect("a request");
    let params = AcceptParams::default().read_limits(options.offered);
    let taken = queue_pair.clone();
    let accepting = async move { request.accept(&taken, params).await.ok() };
    let mut session = Session::new(adapter, options, queue_pair, peer, accepting.boxed_local());
    let (frame, _) = session.start_frame(StartKind::Reply).await;
    assert!(!frame.reject, "our own accept");
    let (limits, rtr) = match Enhanced::decode(&frame.private_data) {
        Ok(said) if frame.enhanced => {
            let rtr = match said {
                Enhanced { peer_to_peer: false, .. } => Rtr::None,
                Enhanced { rtr_write: true, .. } => Rtr::Write,
                Enhanced { rtr_read: true, .. } => Rtr::Read,
                _ => Rtr::Send,
            };
            (ReadLimits::new(said.ird.into(), said.ord.into()), rtr)
        }
        _ => (session.options.offered, Rtr::None),
    };
    session.begin(frame.crc, limits);
    if !session.options.silent && rtr != Rtr::None {
        if rtr == Rtr::Read {
            session.reader.outbound.read(None, 0, 0);
            session.read_msn += 1;
        }
        session.peer.queue(&rtr_frame(rtr, frame.crc));
        session.until("it accepts", |session| session.establishing.is_none()).await;
        assert!(session.established, "the start-up of a good peer");
    }
    session
}

/// Our end connects.
pub(super) async fn connect<'a>(
    harness: &Harness,
    adapter: &'a Adapter,
    queue_pair: QueuePair,
    options: Options,
) -> Session<'a> {
    let port = harness.foreign.local_addr().expect("bound").port();
    let address = SocketAddr::from((loopback(), port));
    let (connector, taken) = (adapter.connector(), queue_pair.clone());
    let params = ConnectParams::default().read_limits(options.offered);
    let mut connecting =
        async move { connector.connect_and_complete(&taken, address, params).await.ok() }.boxed_local();
    let end = Instant::now() + PATIENCE;
    let stream: TcpStream = loop {
        assert!(Instant::now() < end, "it does not connect");
        assert!((&mut connecting).now_or_never().is_none(), "it connects to nobody");
        match harness.foreign.accept() {
            Ok((stream, _)) => break stream,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    let mut session = Session::new(adapter, options, queue_pair, Peer::new(stream, 0), connecting);
    let (request, _) = session.start_frame(StartKind::Request).await;
    let said = Enhanced::decode(&request.private_data).expect("our own request");
    assert!(request.enhanced && said.peer_to_peer);
    let offered = ReadLimits::new(said.ird.into(), said.ord.into());
    let answer = if session.options.enhanced { session.options.offered } else { ReadLimits::default() };
    let crc = request.crc || session.options.ask_crc;
    session.begin(crc, offered.capped_to(answer));
    // Who asks for nothing that was offered is not served.
    let [_, write, read] = session.options.rtr;
    let good = !session.options.enhanced || !session.options.peer_to_peer || write || read;
    session.reader.clean = good;
    let reply = session.options.start_frame(StartKind::Reply);
    session.peer.queue(&reply);
    if !session.options.silent {
        session.until("it connects", |session| session.establishing.is_none()).await;
        assert_eq!(session.established, good, "the start-up of a good peer");
    }
    session
}
