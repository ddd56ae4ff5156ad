//! Private data: its maximum in each message, and when it can be read.
//!
//! Runs on: soft, sim, rxe, siw

use common::cm::*;
use common::deviation::*;
use common::*;
use tokio_rdma::error::{AcceptError, ConnectError, StateError};
use tokio_rdma::{AcceptParams, Adapter, ConnectParams, Status};

/// Bytes that would show a shift or a padding, the last of them zero.
fn data(length: usize) -> Vec<u8> {
    let mut data: Vec<u8> = (0..length).map(|place| (place % 251) as u8 + 1).collect();
    if let Some(last) = data.last_mut() {
        *last = 0;
    }
    data
}

fn sizes(maximum: usize) -> [usize; 5] {
    [0, 1, 2, maximum - 1, maximum]
}

#[tokio::test]
async fn request_and_reply_carry_data_of_any_length() {
    for ip in both() {
        let adapter = adapter();
        let info = adapter.info();
        for (there, back) in sizes(info.max_request_data).into_iter().zip(sizes(info.max_reply_data)) {
            let (there, back) = (data(there), data(back));
            let params = ConnectParams::default().private_data(there.clone());
            let asked = requested(&adapter, ip, params).await;
            // The request carries any length from none to the maximum of the adapter (PD-01).
            assert_data(&adapter, asked.request.private_data(), &there);
            // PD-06, ERR-06: padded or not, which the adapter says and the data says.
            assert!(info.exact_private_data || !Device::under_test().is_soft());
            let (passive, request) = (queue_pair(&adapter), asked.request);
            let params = AcceptParams::default().private_data(back.clone());
            // With the queue pair, whose end would be the connection's: an early accept is there before complete().
            let accepting = tokio::spawn(async move {
                request.accept(&passive, params).await.map(|theirs| (theirs, passive))
            });
            let reply = outcome(asked.connecting).await.expect("the peer accepts");
            // The reply carries any length from none to the maximum of the adapter (PD-02, PD-06).
            assert_data(&adapter, reply.private_data(), &back);
            let ours = within(reply.complete()).await.expect("complete");
            let (theirs, _passive) = outcome(accepting).await.expect("accepted");
            assert_data(&adapter, ours.private_data(), &back);
            assert_data(&adapter, theirs.private_data(), &there);
        }
    }
}

#[tokio::test]
async fn data_comes_with_the_reject() {
    let adapter = adapter();
    for length in sizes(max_reject_data(&adapter)) {
        let asked = requested(&adapter, v4(), ConnectParams::default()).await;
        let sent = data(length);
        within(asked.request.reject(&sent)).await.expect("rejected");
        let error = outcome(asked.connecting).await.expect_err("rejected");
        // PD-03: in the error, and from the connector after the failure.
        assert_bytes(&adapter, error.private_data(), &sent);
        let kept = asked.connector.private_data().map(|data| data.to_vec()).unwrap_or_default();
        assert_bytes(&adapter, &kept, &sent);
        // The data and the adapter agree whether the length is exact (PD-06).
        assert_rejected(&adapter, &error);
        let private_data = match error {
            ConnectError::Rejected { private_data, .. } => private_data,
            _ => None,
        };
        let exact = adapter.info().exact_private_data;
        assert!(private_data.is_none_or(|data| data.is_exact() == exact));
        assert_usable(&adapter, &asked.active).await;
    }
}

// PD-04: NdLargePrivateData, the active side.
#[tokio::test]
async fn nd_large_private_data_leaves_the_connector_usable() {
    for bound in [false, true] {
        let adapter = adapter();
        let maximum = adapter.info().max_request_data;
        let (listener, address) = listening(&adapter);
        let (connector, active) = (adapter.connector(), queue_pair(&adapter));
        if bound {
            connector.bind((v4(), 0).into()).expect("bound");
        }
        for length in [maximum + 1, 4096, 1 << 20] {
            let params = ConnectParams::default().private_data(vec![1; length]);
            let error = within(connector.connect(&active, address, params)).await.expect_err("too long");
            assert_eq!(error.status(), Status::INVALID_BUFFER_SIZE);
            let ConnectError::InvalidBufferSize { length: said, maximum: limit } = error else {
                panic!("{error:?}")
            };
            assert_eq!((said, limit), (length, maximum));
            assert!(ConnectError::InvalidBufferSize { length, maximum }.is_connector_usable());
        }
        let passive = queue_pair(&adapter);
        let params = ConnectParams::default().private_data(data(maximum));
        let (ours, theirs) = within(async {
            tokio::join!(
                connector.connect_and_complete(&active, address, params),
                listener.accept_next(&passive, AcceptParams::default())
            )
        })
        .await;
        let _ours = ours.expect("connected");
        // The listener has received nothing before this request: the long ones were never sent.
        assert_data(&adapter, theirs.expect("accepted").private_data(), &data(maximum));
    }
}

// PD-04: NdLargePrivateData, the passive side.
#[tokio::test]
async fn oversized_accept_or_reject_data_returns_the_request() {
    let adapter = adapter();
    let maximum = adapter.info().max_reply_data;
    let asked = requested(&adapter, v4(), ConnectParams::default()).await;
    let passive = queue_pair(&adapter);
    let params = AcceptParams::default().private_data(vec![1; maximum + 1]);
    let retained = within(asked.request.accept(&passive, params)).await.expect_err("too long");
    let AcceptError::InvalidBufferSize { length, maximum: limit } = retained.error else {
        panic!("{retained:?}")
    };
    assert_eq!((length, limit), (maximum + 1, maximum));
    let request = retained.handle.expect("as it was");
    let retained = within(request.reject(&vec![1; maximum + 1])).await.expect_err("too long");
    assert_eq!(retained.status(), Status::INVALID_BUFFER_SIZE);
    let request = retained.handle.expect("as it was");
    let accepting = tokio::spawn({
        let passive = passive.clone();
        async move { request.accept(&passive, AcceptParams::default()).await }
    });
    let reply = outcome(asked.connecting).await.expect("the peer accepts");
    let _ours = within(reply.complete()).await.expect("complete");
    let _theirs = outcome(accepting).await.expect("accepted");
    exchange(&adapter, &asked.active, &passive).await;
}

// A short buffer receives the first bytes, and the error has the whole length (PD-05).
#[tokio::test]
async fn short_buffer_is_filled_and_size_is_reported() {
    let adapter = adapter();
    let params = ConnectParams::default().private_data(&b"ten bytes!"[..]);
    let asked = requested(&adapter, v4(), params).await;
    let data = asked.request.private_data();
    assert_data(&adapter, data, b"ten bytes!");
    // The length that was sent, or the one that the transport pads it to.
    let size = data.len();
    // Without a buffer it is a query of the size.
    let short = data.copy_to(&mut []).expect_err("no room");
    assert_eq!((short.needed, short.status()), (size, Status::BUFFER_OVERFLOW));
    let mut three = [0; 3];
    assert_eq!(data.copy_to(&mut three).expect_err("too short").needed, size);
    assert_eq!(&three, b"ten");
    let mut exact = vec![0; size];
    assert_eq!(data.copy_to(&mut exact), Ok(size));
    assert_eq!(exact, data[..]);
    let mut long = vec![0xEE; size + 2];
    assert_eq!(data.copy_to(&mut long), Ok(size));
    assert_eq!((&long[..size], &long[size..]), (&data[..], &[0xEE; 2][..]));
}

/// Returns whether a request may carry this much data.
async fn is_taken(adapter: &Adapter, length: usize) -> bool {
    let (connector, active) = (adapter.connector(), queue_pair(adapter));
    let params = ConnectParams::default().private_data(vec![0; length]);
    let error = within(connector.connect(&active, nobody(v4()), params)).await.expect_err("nobody is there");
    error.status() == Status::CONNECTION_REFUSED
}

// The adapter reports one limit for each kind of data, and one byte more is refused (PD-07).
#[tokio::test]
async fn the_limits_that_are_reported_are_the_limits() {
    let adapter = adapter();
    let info = adapter.info();
    // Upstream's tests need 39 bytes each way, portable programs count on 56 and 148.
    assert!(info.max_request_data >= 56 && info.max_reply_data >= 148);
    assert!(is_taken(&adapter, info.max_request_data).await);
    assert!(!is_taken(&adapter, info.max_request_data + 1).await);
    // ERR-06: where the wire has no frame for this one, the adapter says so.
    assert!(info.max_active_reject_data == 0 || !Device::under_test().is_soft());
    let open = half_open(&adapter, v4()).await;
    let too_long = vec![0; info.max_active_reject_data + 1];
    let retained = within(open.reply.reject(&too_long)).await.expect_err("too long");
    assert_eq!(retained.status(), Status::INVALID_BUFFER_SIZE);
    drop(retained);
    // Those of the reply are tried by `request_and_reply_carry_data_of_any_length` and the PD-04 tests.
    assert_refused(&adapter, outcome(open.accepting)).await;
}

// A connector has private data from the answer of the peer until `complete` or the next connect (PD-09).
#[tokio::test]
async fn private_data_has_its_moments() {
    let invalid = Err(StateError::ConnectionInvalid);
    let adapter = adapter();
    let connector = adapter.connector();
    assert_eq!(connector.private_data(), invalid);
    connector.bind((v4(), 0).into()).expect("bound");
    assert_eq!(connector.private_data(), invalid);

    let asked = requested(&adapter, v4(), ConnectParams::default()).await;
    assert_eq!(asked.connector.private_data(), invalid, "the peer has not answered");
    within(asked.request.reject(b"no")).await.expect("rejected");
    outcome(asked.connecting).await.expect_err("rejected");
    assert_data(&adapter, &asked.connector.private_data().expect("it came with the reject"), b"no");
    // Data that came with a reject is gone with the next connect.
    let active = &asked.active;
    within(asked.connector.connect(active, nobody(v4()), ConnectParams::default()))
        .await
        .expect_err("nobody");
    assert_eq!(asked.connector.private_data(), invalid);

    let accept = AcceptParams::default().private_data(&b"yes"[..]);
    let open = half_open_with(&adapter, v4(), ConnectParams::default(), accept).await;
    assert_data(&adapter, &open.connector.private_data().expect("it came with the accept"), b"yes");
    let connection = within(open.reply.complete()).await.expect("complete");
    assert_eq!(open.connector.private_data(), invalid);
    drop(outcome(open.accepting).await.expect("accepted"));
    let _ = within(connection.disconnect()).await;
    assert_eq!(open.connector.private_data(), invalid);
}
