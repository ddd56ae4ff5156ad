//! Slow peers: no timer of a provider ends a wait before the timeout that the adapter announces.
//!
//! Runs on: soft, sim, rxe, siw
#![allow(clippy::print_stderr, reason = "a test that cannot run here has to say so")]

use std::time::{Duration, Instant};

use common::cm::*;
use common::deviation::*;
use common::*;
use tokio_rdma::error::ConnectError;
use tokio_rdma::{AcceptParams, ConnectParams, Status};

const TEN_SECONDS: Duration = Duration::from_secs(10);

// With three phases the accept is pending all the while, and with two it has completed (LS-13, ERR-06).
#[tokio::test]
async fn a_complete_may_come_ten_seconds_late() {
    let adapter = adapter();
    let open = half_open(&adapter, v4()).await;
    pass(TEN_SECONDS).await;
    let three_phase = three_phase(&adapter);
    assert_eq!(open.accepting.is_finished(), !three_phase);
    let _ours = within(open.reply.complete()).await.expect("complete");
    let _theirs = outcome(open.accepting).await.expect("accepted");
    exchange(&adapter, &open.active, &open.passive).await;
}

// The accept follows the request after ten seconds, or after half of the time that the adapter reports (LS-24).
#[tokio::test]
async fn an_accept_may_come_late() {
    let adapter = adapter();
    let begun = Instant::now();
    let asked = requested(&adapter, v4(), ConnectParams::default()).await;
    // As long as that, or half of what the adapter announces.
    pass(answer_timeout(&adapter).map_or(TEN_SECONDS, |limit| TEN_SECONDS.min(limit / 2))).await;
    let passive = queue_pair(&adapter);
    let accepting = (!asked.connecting.is_finished()).then(|| {
        let (passive, request) = (passive.clone(), asked.request);
        tokio::spawn(async move { request.accept(&passive, AcceptParams::default()).await })
    });
    let reply = match outcome(asked.connecting).await {
        // The machine has stood still, and the accept was too late.
        Err(error) if is_overdue(&adapter, begun, &error) => return,
        reply => reply.expect("the peer accepts"),
    };
    let accepting = accepting.expect("no answer before the accept");
    let _ours = within(reply.complete()).await.expect("complete");
    let _theirs = outcome(accepting).await.expect("accepted");
    exchange(&adapter, &asked.active, &passive).await;
}

// LS-24, CM-18, ERR-06: where the adapter announces a limit, that is the end of it, and the connector may try again.
#[tokio::test]
async fn an_accept_that_comes_too_late_finds_nobody() {
    let adapter = adapter();
    let limit = answer_timeout(&adapter);
    let asked = requested(&adapter, v4(), ConnectParams::default()).await;
    match limit {
        Some(limit) if limit <= TEN_SECONDS => {}
        Some(_) if adapter.info().iwarp => {
            eprintln!("skipped: the limit of this driver is longer than a test may take");
            return;
        }
        Some(limit) => {
            // It is one of the clock of the runtime.
            advance(limit / 2).await;
            assert!(!asked.connecting.is_finished(), "the limit has not passed");
            advance(limit / 2).await;
        }
        None => {
            pass(Duration::from_secs(3600)).await;
            assert!(!asked.connecting.is_finished(), "there is no limit");
            return;
        }
    }
    let error = outcome(asked.connecting).await.expect_err("nobody has accepted");
    assert!(
        matches!(error, ConnectError::TimedOut { limit: None, .. }) && error.is_connector_usable(),
        "{error:?}"
    );
    assert_eq!(error.status(), Status::IO_TIMEOUT);
    let passive = queue_pair(&adapter);
    let late = within(asked.request.accept(&passive, AcceptParams::default())).await;
    assert_withdrawn(&adapter, late).await;
    let link = connect_on(&adapter, &asked.active, &asked.connector).await;
    exchange(&adapter, &asked.active, &link.passive).await;
}

/// Has so much time pass for the timers of this runtime, but not for the device.
async fn advance(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
    tokio::task::yield_now().await;
}
