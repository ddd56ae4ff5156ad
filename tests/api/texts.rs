//! The texts of errors and values: they name the object, the value and the limit, and show what the peer said.

use std::collections::HashSet;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::raw::Raw;
use common::*;
use tokio_rdma::cm::ProviderKind;
use tokio_rdma::error::{
    AcceptError, BindError, ConnectError, DecodeError, DisconnectError, Excerpt, NotifyError, OpenError,
    PostError, PostErrorKind, ProtocolError, Reason, RegisterError, RegisterFromError, ResizeError, Retained,
    StreamBroken, StreamError,
};
use tokio_rdma::mr::RemoteRegion;
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::status::porting::{CmEvent, IbRejectReason};
use tokio_rdma::types::{AdapterId, OpKind, RemoteKey};
use tokio_rdma::{
    AcceptParams, ConnectParams, DisconnectReason, PrivateData, QueuePairConfig, ReadLimits, Status,
};

mod calls;
mod page;

fn at() -> SocketAddr {
    ([192, 0, 2, 1], 7000).into()
}

fn rejected(data: PrivateData) -> String {
    let reason = Reason::MpaReject;
    ConnectError::Rejected { peer: at(), private_data: Some(data), reason }.to_string()
}

// Private data that is printable text is quoted, and any other data is left out (ERR-09).
#[test]
fn a_rejection_shows_what_the_peer_said() {
    let said = rejected(PrivateData::exact(&b"bad token"[..]));
    assert_eq!(said, "the application at 192.0.2.1:7000 rejected the connection: \"bad token\"");
    // InfiniBand pads.
    assert_eq!(rejected(PrivateData::padded(&b"bad token\0\0\0"[..])), said);
    assert!(rejected(PrivateData::exact("a \"b\"\n\u{e9}")).ends_with(": \"a \\\"b\\\"\\n\u{e9}\""));
    let long = rejected(PrivateData::exact("x".repeat(500)));
    assert!(long.ends_with("xxx...\"") && long.len() < 200, "{long}");
    // Only text is shown, and a terminal stays as it is.
    for data in [&b"\xff\xfe"[..], b"\x1b[2J", b"a\0b", b""] {
        let text = rejected(PrivateData::exact(data));
        assert_eq!(text, "the application at 192.0.2.1:7000 rejected the connection", "{data:?}");
    }
    assert!(!rejected(PrivateData::padded(&b"\0\0"[..])).contains('"'));
}

// The private data of the peer is in the text of the error, also as an `io::Error` (ERR-09).
#[tokio::test]
async fn received_rejection_shows_private_data() {
    let adapter = adapter();
    let asked = common::cm::requested(&adapter, v4(), ConnectParams::default()).await;
    within(asked.request.reject(b"bad token")).await.expect("rejected");
    let error = within(asked.connecting).await.expect("no panic").expect_err("rejected");
    assert!(error.to_string().ends_with("\"bad token\""), "{error}");
    assert!(!error.is_retryable() && error.is_connector_usable());
    let error = io::Error::from(error);
    assert!(error.to_string().ends_with("\"bad token\""), "{error}");
}

// ERR-09: RFC 5040 section 4.8, RFC 5041 section 7.2, RFC 5044 section 8, RFC 6581 section 8.
#[test]
fn every_terminate_has_words_of_its_own() {
    let mut known = HashSet::new();
    let codes = [
        (0, 0, 0..=0),
        (0, 1, 0..=4),
        (0, 2, 5..=9),
        (0, 2, 0xff..=0xff),
        (1, 0, 0..=0),
        (1, 1, 0..=4),
        (1, 2, 1..=6),
        (2, 0, 1..=7),
    ];
    for (layer, etype, codes) in codes {
        for code in codes {
            let reason = Reason::Terminate { sent: false, layer, etype, code };
            let text = reason.to_string();
            let (sender, rest) = text.split_once(": ").expect("a sender");
            let (meaning, numbers) = rest.split_once(" (").expect("the numbers");
            assert_eq!(sender, "the peer sent a Terminate");
            assert_eq!(numbers, format!("layer {layer}, type {etype}, code {code})"));
            assert!(!meaning.contains("unknown"), "{text}");
            assert!(known.insert(meaning.to_owned()), "{text}");
            let sent = Reason::Terminate { sent: true, layer, etype, code };
            assert!(sent.to_string().starts_with("this side sent a Terminate: "), "{sent}");
        }
    }
    let beyond = Reason::Terminate { sent: false, layer: 15, etype: 15, code: 255 };
    assert!(beyond.to_string().contains("unknown error"));
}

// Each reason has words of its own in place of its number (ERR-09).
#[test]
fn every_reject_of_infiniband_has_words() {
    for reason in IbRejectReason::ALL {
        let text = Reason::Cm { event: CmEvent::REJECTED, status: reason.status() }.to_string();
        assert!(text.starts_with("rejected: ") && text.contains(&reason.to_string()), "{text}");
        assert!(!text.contains("not known"), "{text}");
    }
}

/// Returns the text of an error and those of its sources, as reporters print them.
fn chain(error: &dyn Error) -> String {
    let sources = std::iter::successors(error.source(), |error| (*error).source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}

/// Asserts that a report of the error, and of the `io::Error` that it becomes, has the text of the cause once.
fn assert_once<E: Error + Send + Sync + 'static>(error: E, cause: &str) {
    let text = chain(&error);
    assert_eq!(text.matches(cause).count(), 1, "{text}");
    assert_eq!(error.to_string(), text, "the text is complete");
    assert_eq!(chain(&io::Error::other(error)), text);
}

// A report of an error prints the text of each cause once (ERR-09).
#[test]
fn a_report_has_each_cause_once() {
    let (status, peer) = (Status::REMOTE_ERROR, at());
    let os = || Arc::new(io::Error::from_raw_os_error(libc::EMFILE));
    let many = "Too many open files (os error 24)";
    for reason in [
        Reason::Errno(libc::EMFILE),
        Reason::Protocol(DecodeError::Crc),
        Reason::Protocol(DecodeError::BadKey(Excerpt::new(b"HTTP"))),
        Reason::Cm { event: CmEvent::REJECTED, status: -libc::EMFILE },
        Reason::PathTimeout,
    ] {
        let cause = match reason {
            Reason::Errno(_) | Reason::Cm { .. } => many,
            Reason::Protocol(DecodeError::BadKey(_)) => "\"HTTP\"",
            Reason::Protocol(_) => "CRC mismatch",
            _ => "nothing received from the peer within the path timeout",
        };
        assert_once(reason, cause);
        assert_once(ConnectError::Refused { peer, reason }, cause);
        assert_once(ConnectError::Aborted { peer, reason }, cause);
        assert_once(ConnectError::Other { peer, status, reason }, cause);
        assert_once(AcceptError::Refused { peer, private_data: None, reason }, cause);
        assert_once(AcceptError::Aborted { peer, reason }, cause);
        assert_once(AcceptError::Other { peer, status, reason }, cause);
        assert_once(DisconnectError::Lost { status, reason }, cause);
        assert_once(DisconnectReason::Lost { status, reason }, cause);
        assert_once(PostErrorKind::ConnectionLost { reason }, cause);
        let posted = || PostErrorKind::ConnectionLost { reason };
        assert_once(PostError { kind: posted(), buffer: () }, cause);
        assert_once(StreamBroken::Connection(DisconnectReason::Lost { status, reason }), cause);
        assert_once(StreamBroken::Post(posted()), cause);
        assert_once(Retained { error: ConnectError::Aborted { peer, reason }, handle: Some(()) }, cause);
        let refused = || StreamError::from(ConnectError::Refused { peer, reason });
        assert_once(refused(), cause);
        assert_once(StreamError::Attempts(vec![(peer, refused())]), cause);
        assert_once(StreamError::Accept(AcceptError::Aborted { peer, reason }), cause);
        assert_once(StreamError::Post(posted()), cause);
    }
    assert_once(OpenError::Os { call: "socket", source: os() }, many);
    assert_once(BindError::Os { call: "socket", source: os() }, many);
    assert_once(BindError::Address { address: peer, error: os() }, many);
    assert_once(ConnectError::Bind(BindError::Os { call: "socket", source: os() }), many);
    assert_once(RegisterError::Os { call: "mmap", source: os() }, many);
    assert_once(ResizeError::Os { call: "ibv_resize_cq", source: os() }, many);
    assert_once(
        RegisterFromError { kind: RegisterError::Os { call: "mmap", source: os() }, memory: Some(()) },
        many,
    );
    assert_once(StreamError::Open(OpenError::Os { call: "socket", source: os() }), many);
    assert_once(StreamError::Register(RegisterError::Os { call: "mmap", source: os() }), many);
    assert_once(StreamError::Bind(BindError::Os { call: "socket", source: os() }), many);
    assert_once(StreamError::Resolve(os()), many);
    assert_once(PostErrorKind::Device(libc::EMFILE), many);
    let error = ProtocolError::Foreign;
    assert_once(StreamError::Protocol { peer, error }, "belongs to another protocol");
    assert_once(StreamBroken::Protocol(error), "belongs to another protocol");
    assert_once(ResizeError::Ended(NotifyError::DeviceRemoved), "the adapter was removed");
}

// The text is complete, also behind an `io::Error` (ERR-09).
#[test]
fn an_io_error_has_the_whole_text() {
    let refused = ConnectError::Refused { peer: at(), reason: Reason::Errno(libc::ECONNREFUSED) };
    let text = "192.0.2.1:7000 refused the connection: Connection refused (os error 111)";
    assert_eq!(refused.to_string(), text);
    assert_eq!(io::Error::from(StreamError::from(refused)).to_string(), text);
}

// A plain TCP server is called one, with what it answered, which cannot forge a line (ERR-09).
#[tokio::test]
async fn plain_tcp_server_is_named_with_its_answer() {
    let (listener, address) = Raw::listener().await;
    let adapter = adapter();
    let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
    let connect = connector.connect(&queue_pair, address, ConnectParams::default());
    let answer = async {
        let mut peer = Raw::answer_the_phone(&listener).await;
        peer.say(b"SSH-2.0\r\nForged line").await;
        peer
    };
    let (_peer, outcome) = within(async { tokio::join!(answer, connect) }).await;
    let start = r#""SSH-2.0\r\nForged ""#;
    assert_eq!(
        outcome.expect_err("it speaks something else").to_string(),
        format!("{address} does not speak iWARP: its answer starts with {start}. Is it a plain TCP server?")
    );
}

// The texts contain the parameter or the address, its value and its limit (ERR-09).
#[tokio::test]
async fn errors_name_the_object_value_and_limit() {
    let adapter = adapter();
    let most = adapter.info().max_queue_depth;
    let error = adapter.queue_pair(QueuePairConfig::default().send_depth(most + 1)).expect_err("too deep");
    assert_eq!(error.to_string(), format!("send_depth is {}, not between 1 and {most}", most + 1));
    let error = tokio_rdma::Adapter::open(at().ip()).expect_err("reserved for documentation");
    assert_eq!(error.to_string(), "no network interface that can be used has the address 192.0.2.1");
    let error = adapter.listener().bind(at()).expect_err("not ours");
    assert_eq!(error.to_string(), "the adapter does not have the address 192.0.2.1");
    let (listener, address) = listening(&adapter);
    let error = adapter.listener().bind(address).expect_err("taken");
    assert_eq!(error.to_string(), format!("the local address {address} is in use"));
    let error = listener.bind(address).expect_err("it is bound");
    assert_eq!(error.to_string(), format!("already bound to {address}"));
    let connector = adapter.connector();
    connector.bind((v4(), 0).into()).expect("bound");
    let bound = connector.local_addr().expect("bound");
    assert_eq!(connector.bind(bound).expect_err("twice").to_string(), format!("already bound to {bound}"));
    let error = listener.listen(0).expect_err("it is listening");
    assert_eq!(error.to_string(), "the listener is listening already, or is closed");
    let error = adapter.listener().listen(0).expect_err("it has no address");
    assert_eq!(error.to_string(), "the listener is not bound, or is closed");
    for (error, text) in [
        (OpenError::Unreachable(at().ip()).to_string(), "there is no route to 192.0.2.1"),
        (OpenError::InvalidAdapter(AdapterId(10)).to_string(), "no adapter has the id 0xa"),
        (BindError::TooManyAddresses(at().ip()).to_string(), "no ephemeral port is left at 192.0.2.1"),
        (
            BindError::Address { address: at(), error: io::Error::from_raw_os_error(libc::EACCES).into() }
                .to_string(),
            "cannot bind 192.0.2.1:7000: Permission denied (os error 13)",
        ),
        (
            ConnectError::TimedOut { peer: at(), limit: None }.to_string(),
            "192.0.2.1:7000 did not respond in time",
        ),
        (
            ConnectError::NetworkUnreachable { peer: at() }.to_string(),
            "there is no route to the network of 192.0.2.1:7000",
        ),
        (
            ConnectError::HostUnreachable { peer: at() }.to_string(),
            "there is no host with the address of 192.0.2.1:7000, or no way to it",
        ),
        (
            ConnectError::AddressAlreadyExists { peer: at() }.to_string(),
            "a connection from the same local address and port to 192.0.2.1:7000 exists",
        ),
        (
            PostErrorKind::InsufficientResources("no free key was found").to_string(),
            "out of resources: no free key was found",
        ),
        (
            RegisterError::OutOfMemory { length: 4096 }.to_string(),
            "there is not enough memory for 4096 bytes",
        ),
    ] {
        assert_eq!(error, text);
    }
}

// The texts contain the address of the peer and the limit of the time (ERR-09).
#[tokio::test]
async fn handshake_and_disconnect_errors_name_peer_and_limit() {
    let adapter = adapter_with(SoftConfig::default().disconnect_timeout(Duration::from_millis(50)));
    let passive = queue_pair(&adapter);
    let (listener, address) = listening(&adapter);
    let active = queue_pair(&adapter);
    let connector = adapter.connector();
    let accept = listener.accept_next(&passive, AcceptParams::default());
    let reject = async {
        let reply = connector.connect(&active, address, ConnectParams::default()).await.expect("accepted");
        let local = reply.local_addr();
        reply.reject(&[]).await.expect("rejected");
        local
    };
    let (accepted, peer) = within(async { tokio::join!(accept, reject) }).await;
    let text = accepted.expect_err("rejected").to_string();
    assert!(text.starts_with(&format!("{peer} rejected the reply: ")), "{text}");
    let (end, _peer) = common::life::connected_to_raw(&adapter).await;
    let error = within(end.connection.disconnect()).await.expect_err("no answer");
    assert_eq!(error.to_string(), "the peer did not respond to the disconnect within 50ms");
}

#[test]
fn values_have_the_texts_of_the_standard_library() {
    assert_eq!(ReadLimits::new(4, 16).to_string(), "4 inbound, 16 outbound");
    let region = RemoteRegion::new(0x1000, RemoteKey(0xbeef), 4096);
    assert_eq!(region.to_string(), "4096 bytes at 0x1000");
    assert_eq!(OpKind::CompareSwap.to_string(), "compare-and-swap");
    assert_eq!(ProviderKind::Soft.to_string(), "soft");
    assert_eq!(DisconnectReason::Peer.to_string(), "the peer disconnected");
    let lost = DisconnectReason::Lost { status: Status::IO_TIMEOUT, reason: Reason::PathTimeout };
    let text = "the connection was lost: nothing received from the peer within the path timeout (IO_TIMEOUT)";
    assert_eq!(lost.to_string(), text);
    assert_eq!(HashSet::from([lost.clone(), lost]).len(), 1);
    // From a slice, as of a message.
    let message = [&region.to_bytes()[..], b"rest"].concat();
    assert_eq!(RemoteRegion::try_from(&message[..]), Ok(region));
    assert_eq!(RemoteRegion::try_from(&message[..15]).expect_err("short").needed, RemoteRegion::LEN);
}

// The format is fixed, because it travels between machines, and fifteen bytes are refused (MR-12).
#[test]
fn remote_region_is_sixteen_bytes_in_network_order() {
    let region = RemoteRegion::new(0x0102_0304_0506_0708, RemoteKey(0x090a_0b0c), 0x0d0e_0f10);
    let bytes: [u8; 16] = std::array::from_fn(|place| place as u8 + 1);
    assert_eq!((region.to_bytes(), RemoteRegion::from_bytes(bytes)), (bytes, region));
    // From the start of a message, which may be longer.
    assert_eq!(RemoteRegion::decode(&[&bytes[..], b"rest"].concat()), Some(region));
    assert_eq!(RemoteRegion::decode(&bytes[..15]), None);
}

// Addresses as programs have them.
#[tokio::test]
async fn adapter_opens_by_any_form_of_address() {
    use tokio_rdma::{Adapter, Provider};
    let ip = std::net::Ipv4Addr::LOCALHOST;
    let soft = Provider::soft().expect("compiled in");
    let id = soft.resolve(ip.into()).expect("it has an adapter");
    let opened = [
        Adapter::open(ip),
        Adapter::open(std::net::IpAddr::from(ip)),
        Adapter::open("127.0.0.1"),
        Adapter::open("127.0.0.1:7000"),
        Adapter::open(String::from("localhost")),
        Adapter::open("localhost:7000"),
        Adapter::open(SocketAddr::from((ip, 7000))),
        soft.open(ip),
        soft.open("127.0.0.1"),
        soft.open(id),
    ];
    for adapter in opened {
        let adapter = adapter.expect("opened");
        assert_eq!(adapter.info().name, soft.open(id).expect("opened").info().name);
    }
    let error = Adapter::open("host.invalid").expect_err("no such name");
    assert!(matches!(error, OpenError::Os { call: "getaddrinfo", .. }), "{error}");
    // The text contains the name that was looked up (ERR-09).
    assert!(error.to_string().starts_with("getaddrinfo failed: \"host.invalid\": "), "{error}");
}

// Causes that may be gone at the next attempt differ from permanent ones (ERR-10).
#[test]
fn is_retryable_separates_transient_from_permanent_errors() {
    let peer = at();
    let refused = |reason| ConnectError::Refused { peer, reason };
    for error in [
        refused(Reason::Errno(libc::ECONNREFUSED)),
        refused(Reason::PeerClosed),
        refused(Reason::NotNow),
        refused(Reason::Cm { event: CmEvent::REJECTED, status: 10 }),
        ConnectError::NetworkUnreachable { peer },
        ConnectError::HostUnreachable { peer },
        ConnectError::TimedOut { peer, limit: None },
        ConnectError::Bind(BindError::TooManyAddresses(at().ip())),
        // A lack of resources, in whatever call it was met.
        ConnectError::Bind(BindError::Os {
            call: "socket",
            source: io::Error::from_raw_os_error(libc::EMFILE).into(),
        }),
        ConnectError::Other {
            peer,
            status: Status::INSUFFICIENT_RESOURCES,
            reason: Reason::Errno(libc::ENOBUFS),
        },
    ] {
        assert!(error.is_retryable() && error.is_connector_usable(), "{error:?}");
    }
    for error in [
        ConnectError::Rejected { peer, private_data: None, reason: Reason::MpaReject },
        refused(Reason::Protocol(DecodeError::BadKey(Excerpt::new(b"HTTP/1.1")))),
        ConnectError::InvalidBufferSize { length: 600, maximum: 508 },
        ConnectError::QueuePairActive,
        ConnectError::ForeignQueuePair,
        ConnectError::NotSupported("an option"),
    ] {
        assert!(!error.is_retryable() && error.is_connector_usable(), "{error:?}");
    }
}
