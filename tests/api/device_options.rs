//! The options that only devices have, retry counts and the acknowledge timeout, are never silently ignored.
//!
//! Runs on: soft, sim, rxe, siw
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use common::cm::*;
use common::deviation::*;
use common::device::settled;
use common::raw::{bytes, failure, room, success};
use common::*;
use tokio_rdma::error::{AcceptError, ConnectError};
use tokio_rdma::{AcceptParams, ConnectParams, DisconnectReason, Status};

/// Returns parameters of a connect with one option each.
fn connect_options() -> [ConnectParams; 4] {
    let params = ConnectParams::default;
    [params().retry_count(3), params().rnr_retry_count(2), params().rnr_timer(12), params().ack_timeout(18)]
}

// CM-34: refused inline where there are none, and nothing has begun; taken where there are.
#[tokio::test]
async fn connect_options_work_or_are_refused_inline() {
    let adapter = adapter();
    for params in connect_options() {
        let (listener, address) = listening(&adapter);
        let (connector, active, passive) = (adapter.connector(), queue_pair(&adapter), queue_pair(&adapter));
        if Device::under_test().is_soft() {
            let mut connect = Box::pin(connector.connect(&active, address, params));
            let std::task::Poll::Ready(Err(error)) = futures::poll!(&mut connect) else { panic!("inline") };
            assert!(matches!(error, ConnectError::NotSupported(_)), "{error:?}");
            assert!(error.status() == Status::NOT_SUPPORTED && error.is_connector_usable());
            drop(connect);
            // The refusal leaves connector and queue pair usable (CM-21).
            let link = connect_on(&adapter, &active, &connector).await;
            exchange(&adapter, &active, &link.passive).await;
            continue;
        }
        let ends = async {
            tokio::join!(
                connector.connect_and_complete(&active, address, params),
                listener.accept_next(&passive, AcceptParams::default())
            )
        };
        let (ours, theirs) = within(ends).await;
        let _ends = (ours.expect("connected"), theirs.expect("accepted"));
        exchange(&adapter, &active, &passive).await;
    }
}

// CM-34: the same of accept, which gives the request back.
#[tokio::test]
async fn accept_options_work_or_are_refused() {
    let adapter = adapter();
    let params = AcceptParams::default;
    for params in [params().rnr_retry_count(2), params().rnr_timer(12), params().ack_timeout(18)] {
        let asked = requested(&adapter, v4(), ConnectParams::default()).await;
        let passive = queue_pair(&adapter);
        let request = asked.request;
        let accepting = tokio::spawn({
            let passive = passive.clone();
            async move {
                if !Device::under_test().is_soft() {
                    return request.accept(&passive, params).await;
                }
                let refused = request.accept(&passive, params).await.expect_err("not supported");
                assert_eq!(refused.status(), Status::NOT_SUPPORTED, "{refused:?}");
                assert!(matches!(refused.error, AcceptError::NotSupported(_)), "{refused:?}");
                let request = refused.handle.expect("nothing has happened");
                request.accept(&passive, AcceptParams::default()).await
            }
        });
        let reply = outcome(asked.connecting).await.expect("the peer accepts");
        let _ours = within(reply.complete()).await.expect("complete");
        let _theirs = outcome(accepting).await.expect("accepted");
        exchange(&adapter, &asked.active, &passive).await;
    }
}

// CM-34, QP-20: without end, as by default, means that a message waits for its receive, where there is a "receiver not ready"; where there
// is none, and on soft, it breaks the connection whatever was asked.
#[tokio::test]
async fn rnr_retry_count_limits_the_wait_for_receive() {
    let adapter = adapter();
    if Device::under_test().is_soft() {
        // The option is refused there, see above, and the message breaks the connection: see `queue_pair`.
        assert!(adapter.info().early_completion);
        return eprintln!("skipped: soft refuses the option");
    }
    for (patient, count) in [(true, None), (true, Some(7)), (false, Some(1))] {
        let (mut connect, mut accept) = (ConnectParams::default(), AcceptParams::default());
        if let Some(count) = count {
            (connect, accept) = (connect.rnr_retry_count(count), accept.rnr_retry_count(count));
        }
        let pair = connected_with(&adapter, connect, accept).await;
        let (here, there) = (&pair.active.queue_pair, &pair.passive.queue_pair);
        let mut send = here.send(bytes(&adapter, b"wait")).expect("posted");
        if adapter.info().early_completion {
            let _ = success(send).await;
            assert_ended(&pair.active.connection).await;
            assert_ended(&pair.passive.connection).await;
        } else if patient {
            settled().await;
            assert!(futures::poll!(&mut send).is_pending(), "nobody has asked for it");
            let receive = there.receive(room(&adapter, 4)).expect("posted");
            success(send).await;
            assert_eq!(&success(receive).await.1[..], b"wait");
        } else {
            assert_eq!(failure(send).await, Status::IO_TIMEOUT);
            let reason = within(pair.active.connection.disconnected()).await;
            assert!(
                matches!(reason, DisconnectReason::Lost { status: Status::IO_TIMEOUT, .. }),
                "{reason:?}"
            );
        }
    }
}
