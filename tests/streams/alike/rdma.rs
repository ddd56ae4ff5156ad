//! The tests of `tests.rs`, with the types of this crate.
//!
//! Runs on: soft, sim, rxe, siw

use common::{adapter, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::StreamConfig;
use tokio_rdma::io::ReuniteError;
use tokio_rdma::{RdmaListener as Listener, RdmaStream as Stream};

async fn listening() -> Listener {
    common::stream::listening(&adapter(), &StreamConfig::default())
}

async fn connect(listener: &Listener) -> Stream {
    let address = listener.local_addr().expect("bound");
    Stream::connect_on(&adapter(), address, &StreamConfig::default()).await.expect("connected")
}

#[path = "tests.rs"]
#[allow(clippy::duplicate_mod, reason = "the same tests for two sets of types")]
mod tests;

// IO-12: unlike tokio's, a stream that is dropped with unread data is an end of file, and an empty read does not wait.
#[tokio::test]
async fn unread_data_resets_nothing() {
    let listener = listening().await;
    let (mut left, accepted) = within(async { tokio::join!(connect(&listener), listener.accept()) }).await;
    let mut right = accepted.expect("accepted").0;
    assert_eq!(within(left.read(&mut [])).await.expect("nothing to do"), 0);
    within(left.write_all(b"unread")).await.expect("written");
    within(right.readable()).await.expect("readable");
    within(right.write_all(b"all of it")).await.expect("written");
    drop(right);
    let mut found = Vec::new();
    within(left.read_to_end(&mut found)).await.expect("read");
    assert_eq!(found, b"all of it");
}
