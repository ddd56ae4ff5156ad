//! Reads of the peer's memory beside the bytes of a stream.
//!
//! Runs on: soft, rxe, siw

use std::io::ErrorKind;
use std::pin::pin;

use common::device::Device;
use common::life::poll_once;
use common::process::alone;
use common::stream::{pattern, streams, streams_with};
use common::verbs::{fake, fake_reset};
use common::*;
use futures::FutureExt;
use futures::future::try_join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::io::OneSided;
use tokio_rdma::mr::RemoteRegion;
use tokio_rdma::{Access, RdmaStream, ReadLimits, Region, RegionSlice, StreamConfig};

const LENGTH: usize = 300_000;

/// Memory that the peer may read, with [`pattern`] from this number on.
async fn readable(end: &OneSided, from: usize) -> Region {
    let region = end.adapter().register(LENGTH, Access::REMOTE_READ).await.expect("registered");
    region.write(0, &pattern(from, LENGTH)).expect("in bounds");
    region
}

/// Connected streams of the device under test with their reads; `None` on soft, where there are none.
async fn ends() -> Option<[(RdmaStream, OneSided); 2]> {
    let (one, other) = streams(&adapter()).await;
    let reads = (one.one_sided(), other.one_sided());
    assert_eq!(reads.0.is_some(), !Device::under_test().is_soft(), "devices have it");
    Some([(one, reads.0?), (other, reads.1?)])
}

/// Memory that a read of so many bytes fills.
async fn sink(reads: &OneSided, length: usize) -> RegionSlice {
    let is_named = reads.adapter().info().read_sink_required;
    let access = if is_named { Access::LOCAL_WRITE | Access::READ_SINK } else { Access::LOCAL_WRITE };
    let region = reads.adapter().register(length, access).await.expect("registered");
    region.slice(0..length).expect("in bounds")
}

/// Reads the memory, and compares it.
async fn check(reads: &OneSided, remote: &RemoteRegion, from: usize) -> std::io::Result<()> {
    let length = remote.len() as usize;
    let slice = reads.read(sink(reads, length).await, remote).await?;
    let mut bytes = vec![0; length];
    slice.region().read(0, &mut bytes).expect("in bounds");
    assert!(bytes == pattern(from, length), "from {from}");
    Ok(())
}

// More reads than go at once, in both directions, while both streams are full.
#[tokio::test]
async fn memory_is_read_beside_the_stream() {
    const BYTES: usize = 2 << 20;
    let Some(ends) = ends().await else { return };
    let memory = [readable(&ends[0].1, 0).await, readable(&ends[1].1, 77).await];
    let work = ends.into_iter().zip(0..).map(|((stream, reads), index)| {
        let remote = memory[1 - index].remote();
        let from = [77, 0][index];
        async move {
            let (mut read, mut write) = tokio::io::split(stream);
            let writing = async {
                write.write_all(&pattern(index, BYTES)).await.expect("written");
            };
            let reading = async {
                let mut bytes = vec![0; BYTES];
                read.read_exact(&mut bytes).await.expect("read");
                assert!(bytes == pattern(1 - index, BYTES));
            };
            let parts = (0..12_u32).map(|part| {
                let remote = remote.part(part * 20_000..part * 20_000 + 60_000).expect("in bounds");
                let reads = &reads;
                async move { check(reads, &remote, from + part as usize * 20_000).await }
            });
            let (all, (), ()) = tokio::join!(try_join_all(parts), writing, reading);
            all.expect("all read");
            (read, write)
        }
    });
    // Neither is dropped before the other is done.
    drop(within(futures::future::join_all(work)).await);
}

#[tokio::test]
async fn dropped_read_leaves_the_stream_usable() {
    let Some([(mut one, reads), (mut other, _)]) = ends().await else { return };
    let region = readable(&reads, 5).await;
    for _ in 0..10 {
        let sink = sink(&reads, LENGTH).await;
        let remote = region.remote();
        let mut read = pin!(reads.read(sink, &remote));
        let _ = read.as_mut().now_or_never();
    }
    within(check(&reads, &region.remote(), 5)).await.expect("there is a place again");
    within(one.write_all(b"on")).await.expect("written");
    within(other.read_exact(&mut [0; 2])).await.expect("read");
}

// A read that begins later does not overtake those that wait.
#[tokio::test]
async fn reads_begin_in_turn() {
    if !alone(module_path!(), "reads_begin_in_turn") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let config = StreamConfig::default().read_limits(ReadLimits::new(1, 1));
    let (one, _other) = streams_with(&adapter(), &config, &config).await;
    let reads = one.one_sided().expect("one at once");
    let region = readable(&reads, 5).await;
    let remote = region.remote();
    let sinks = [sink(&reads, LENGTH).await, sink(&reads, LENGTH).await, sink(&reads, LENGTH).await];
    let [mut first, mut second, mut third] = sinks.map(|sink| Box::pin(reads.read(sink, &remote)));
    // Packets are repeated until the port is up.
    fake("port 1 down");
    assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
    fake("port 1 up");
    within(first).await.expect("read");
    assert!(poll_once(&mut third).is_pending(), "the second one is before it");
    within(second).await.expect("read");
    within(third).await.expect("read");
}

// The device still has them. The queue has no place for more, beside the writes of the stream.
#[tokio::test]
async fn dropped_reads_keep_their_places() {
    if !alone(module_path!(), "dropped_reads_keep_their_places") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let [(mut one, reads), (mut other, _)] = ends().await.expect("a device");
    let region = readable(&reads, 5).await;
    let remote = region.remote();
    fake("port 1 down");
    for number in 0..1_000 {
        let mut read = Box::pin(reads.read(sink(&reads, 8).await, &remote));
        assert!(poll_once(&mut read).is_pending(), "read {number}");
    }
    fake("port 1 up");
    within(check(&reads, &remote, 5)).await.expect("read");
    within(one.write_all(b"on")).await.expect("written");
    within(other.read_exact(&mut [0; 2])).await.expect("read");
}

#[tokio::test]
async fn forbidden_read_ends_the_stream() {
    let Some([(mut one, reads), (mut other, _)]) = ends().await else { return };
    let region = readable(&reads, 0).await;
    let remote = region.remote();
    region.deregister().await.expect("deregistered");
    let error =
        within(reads.read(sink(&reads, LENGTH).await, &remote)).await.expect_err("the key is revoked");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error:?}");
    for stream in [&mut one, &mut other] {
        within(stream.read_exact(&mut [0])).await.expect_err("it has ended");
    }
    within(reads.read(sink(&reads, LENGTH).await, &remote)).await.expect_err("it stays so");
}

#[tokio::test]
async fn reads_end_with_their_stream() {
    let Some([(one, reads), (other, _)]) = ends().await else { return };
    let region = readable(&reads, 0).await;
    let ended = one.connection().disconnected();
    drop((one, other));
    within(ended).await;
    within(reads.read(sink(&reads, LENGTH).await, &region.remote())).await.expect_err("dropped");
}

#[tokio::test]
async fn connection_without_reads_has_none() {
    let config = StreamConfig::default().read_limits(ReadLimits::NONE);
    let (one, other) = streams_with(&adapter(), &config, &config).await;
    assert!(one.one_sided().is_none() && other.one_sided().is_none());
}
