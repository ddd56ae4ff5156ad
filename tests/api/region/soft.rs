//! Regions of the soft provider: their memory, and a raw socket as peer.

use common::adapter;
use common::process::alone;
use common::raw::{self, CRC, Start, raw_connects};
use common::resources::resident;
use tokio_rdma::{AcceptParams, Access};

/// More than two sockets hold between them.
const MORE_THAN_SOCKETS_HOLD: usize = 32 << 20;

// MR-01: an answer that is under way when the key is taken back says nothing of what is written afterwards.
#[tokio::test]
async fn no_byte_is_sent_once_deregistering_is_done() {
    for flags in [0, CRC] {
        let adapter = adapter();
        let start = Start::peer_to_peer(4, 4).flag(flags);
        let (_end, mut peer, _) = raw_connects(&adapter, start, AcceptParams::default()).await;
        let region = adapter.register(MORE_THAN_SOCKETS_HOLD, Access::REMOTE_READ).await.expect("registered");
        let source = (region.remote().key().0, region.remote().address());
        peer.post(&raw::read_request(1, (1, 0), MORE_THAN_SOCKETS_HOLD as u32, source)).await;
        assert!(peer.message().await.is_some(), "the answer has begun");
        region.deregister().await.expect("deregistered");
        region.write(0, &vec![0xee; MORE_THAN_SOCKETS_HOLD]).expect("as long");
        let mut received = 0;
        while let Some(frame) = peer.frame().await {
            received += frame.payload().len();
            assert!(!frame.payload().contains(&0xee), "a secret, {received} bytes into it, flags {flags:#x}");
        }
        assert!(received < MORE_THAN_SOCKETS_HOLD, "the connection ended");
    }
}

/// The memory that a process may take for other things meanwhile.
const NOISE: usize = 8 << 20;

// A page of a region is there once it is used: registering takes no time for zeroes.
#[tokio::test]
async fn memory_that_is_not_used_is_not_resident() {
    if !alone(module_path!(), "memory_that_is_not_used_is_not_resident") {
        return;
    }
    let adapter = adapter();
    let before = resident();
    let region = adapter.register(1 << 30, Access::REMOTE_WRITE).await.expect("registered");
    assert!(resident() < before + NOISE, "{} bytes of 1 GiB", resident() - before);
    let mut found = [7; 5];
    region.read((1 << 30) - 5, &mut found).expect("in bounds");
    assert_eq!(found, [0; 5]);
    drop(region);

    // An allocator that has seen a large block go may take the next ones from memory that it has to clear.
    drop(adapter.buffer(16 << 20).expect("memory"));
    let before = resident();
    let buffers: Vec<_> = (0..256).map(|_| adapter.buffer(256 << 10).expect("memory")).collect();
    assert!(resident() < before + NOISE, "{} bytes of 64 MiB", resident() - before);
    assert!(buffers.iter().all(|buffer| buffer[255 << 10] == 0));
}
