//! The page of the guide that explains texts has those that the code prints.

use std::time::Duration;

use tokio_rdma::error::{
    BindError, ConnectError, DecodeError, Excerpt, OpenError, PostErrorKind, ProtocolError, Reason,
    RegisterError, StreamBroken, StreamError, WcError,
};
use tokio_rdma::status::WcStatus;
use tokio_rdma::status::porting::{CmEvent, IbRejectReason};
use tokio_rdma::types::QueueKind;
use tokio_rdma::{Access, DisconnectReason, Status};

use super::at;

const PAGE: &str = include_str!("../../../docs/guide/src/faq.md");

/// Asserts that the page has each text, in which the page has a word in place of a part.
#[track_caller]
fn assert_explained(texts: impl IntoIterator<Item = String>, part: &str, word: &str) {
    for text in texts {
        let text = text.replace(part, word);
        assert!(PAGE.contains(&text), "the page lacks {text:?}");
    }
}

// A text that changes without the page, or the page without the text, fails here (ERR-09).
#[test]
fn guide_explains_texts_that_errors_have() {
    let peer = at();
    let by_reject =
        Reason::Cm { event: CmEvent::REJECTED, status: IbRejectReason::INVALID_SERVICE_ID.status() };
    let answer = Excerpt::new(b"HTTP/1.1 4");
    let refusals = [
        Reason::Errno(libc::ECONNREFUSED),
        by_reject,
        Reason::PeerClosed,
        Reason::NotNow,
        Reason::Protocol(DecodeError::BadKey(answer)),
    ];
    let of_connects = [
        ConnectError::TimedOut { peer, limit: Some(Duration::from_secs(3)) },
        ConnectError::NetworkUnreachable { peer },
        ConnectError::HostUnreachable { peer },
        ConnectError::Active,
        ConnectError::QueuePairActive,
    ];
    let of_streams = [
        StreamError::TimedOut { peer: Some(peer), limit: Duration::from_secs(10) },
        StreamError::Protocol { peer, error: ProtocolError::Foreign },
    ];
    let refusals = refusals.map(|reason| ConnectError::Refused { peer, reason }.to_string());
    let of_connects = of_connects.map(|error| error.to_string());
    let of_streams = of_streams.map(|error| error.to_string());
    assert_explained(refusals.into_iter().chain(of_connects).chain(of_streams), "192.0.2.1:7000", "PEER");

    let in_use = BindError::SharingViolation(peer).to_string();
    let (device, by) = ("DEVICE".to_owned(), "TOKIO_RDMA_DEVICES=^mana_0".to_owned());
    let of_addresses = [
        OpenError::InvalidAddress(peer.ip()),
        OpenError::Unreachable(peer.ip()),
        OpenError::Excluded { address: peer.ip(), device, by },
    ];
    assert_explained([in_use], "192.0.2.1:7000", "ADDRESS");
    assert_explained(of_addresses.map(|error| error.to_string()), "192.0.2.1", "ADDRESS");

    let of_posts = [
        PostErrorKind::ConnectionInvalid,
        PostErrorKind::ConnectionDropped,
        PostErrorKind::QueueFull { queue: QueueKind::Send, depth: 128 },
        PostErrorKind::AccessViolation { missing: Access::REMOTE_WRITE },
        PostErrorKind::ForeignMemory,
        PostErrorKind::BeyondRemote { length: 7, remote: 7 },
        PostErrorKind::InlineTooLong { length: 7, maximum: 64 },
        PostErrorKind::NoReads,
        PostErrorKind::ReadsFull { limit: 32 },
    ];
    let right = Access::REMOTE_WRITE.to_string();
    let of_posts = of_posts.map(|error| error.to_string().replace(&right, "RIGHT"));
    let locked = RegisterError::MemoryLockLimit { length: 7, limit: 7 }.to_string();
    assert_explained(of_posts.into_iter().chain([locked]), "7 ", "N ");

    let terminates = [(1, 2, 2), (1, 2, 5), (1, 1, 0), (0, 1, 0), (0, 1, 2)];
    let terminates = terminates
        .map(|(layer, etype, code)| Reason::Terminate { sent: false, layer, etype, code }.to_string());
    assert_explained(terminates, "the peer sent a Terminate: ", "");
    let failures = [WcStatus::RNR_RETRY_EXC_ERR, WcStatus::RETRY_EXC_ERR];
    let failures = failures.map(|status| {
        let text = Reason::Completion(WcError::new(status, 0)).to_string();
        text.rsplit_once(": ").expect("the meaning").0.to_owned()
    });
    assert_explained(failures, ", vendor error 0x0", "");

    let reason = DisconnectReason::Lost { status: Status::IO_TIMEOUT, reason: Reason::PathTimeout };
    let of_broken = [
        StreamBroken::Connection(DisconnectReason::Peer),
        StreamBroken::NoPath { after: Duration::from_secs(60), reason: reason.clone() },
        StreamBroken::SessionUnknown { reason: reason.clone() },
    ];
    assert_explained(of_broken.map(|error| error.to_string()), &reason.to_string(), "REASON");
    let ends = [DisconnectReason::Peer, DisconnectReason::DeviceRemoved].map(|reason| reason.to_string());
    for text in ends.into_iter().chain([Reason::PathTimeout.to_string()]) {
        assert!(PAGE.contains(&text), "the page lacks {text:?}");
    }
}
