//! Scatter-gather lists of regions, of parts of buffers, and of mixed entries.
//!
//! Runs on: soft, sim, rxe, siw

use common::deviation::lacks_buffer_sinks;
use common::raw::{bytes, room, success};
use common::*;
use tokio_rdma::mr::Entry;
use tokio_rdma::{Access, Adapter, QueuePairConfig, Region, Status};

/// Registers a region with this content.
async fn region(adapter: &Adapter, content: &[u8], access: Access) -> Region {
    let region = within(adapter.register(content.len(), access)).await.expect("registered");
    region.write(0, content).expect("as long");
    region
}

fn content(region: &Region) -> Vec<u8> {
    let mut found = vec![0; region.len()];
    region.read(0, &mut found).expect("as long");
    found
}

// The message contains the slices in the order of the list, and the list comes back with its ranges (QP-02).
#[tokio::test]
async fn a_message_is_gathered_from_slices_of_regions() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let source = region(&adapter, b"abcdefgh", Access::empty()).await;
    let slice = |range| source.slice(range).expect("within");
    let receive = passive.queue_pair.receive(room(&adapter, 32)).expect("posted");
    // They may overlap, repeat, go backwards, and be empty.
    let list = vec![slice(4..8), slice(2..6), slice(3..3), slice(0..8)];
    let (length, list) = success(active.queue_pair.send(list).expect("posted")).await;
    assert_eq!(length, 16);
    assert_eq!(list.iter().map(|slice| slice.range()).collect::<Vec<_>>(), [4..8, 2..6, 3..3, 0..8]);
    let (length, found) = success(receive).await;
    assert_eq!(&found[..length], b"efghcdefabcdefgh");
    let receive = passive.queue_pair.receive(room(&adapter, 32)).expect("posted");
    let (length, [first, second]) =
        success(active.queue_pair.send([slice(6..8), slice(0..2)]).expect("posted")).await;
    assert_eq!((length, first.range(), second.range()), (4, 6..8, 0..2));
    let (length, found) = success(receive).await;
    assert_eq!(&found[..length], b"ghab");
}

// The bytes of the region between the slices stay as they were (QP-02).
#[tokio::test]
async fn a_message_is_scattered_over_slices_of_regions() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let target = region(&adapter, b"--------", Access::LOCAL_WRITE).await;
    let slice = |range| target.slice(range).expect("within");
    let receive = passive.queue_pair.receive([slice(5..8), slice(0..2), slice(3..4)]).expect("posted");
    success(active.queue_pair.send(bytes(&adapter, b"xyzab")).expect("posted")).await;
    let (length, _) = success(receive).await;
    assert_eq!((length, &content(&target)[..]), (5, &b"ab---xyz"[..]));
}

// Each part uses its range of the buffer, and the rest of the buffer stays as it was (QP-02).
#[tokio::test]
async fn lists_of_buffer_parts_use_only_their_ranges() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let part = |text: &[u8], range| bytes(&adapter, text).part(range);
    let receive = vec![part(b"......", 1..3), part(b"......", 0..6)];
    let receive = passive.queue_pair.receive(receive).expect("posted");
    let list = vec![part(b"one two", 0..4), part(b"one two", 4..7)];
    let (_, list) = success(active.queue_pair.send(list).expect("posted")).await;
    assert_eq!(list.iter().map(|part| &part[..]).collect::<Vec<_>>(), [b"one ".as_slice(), b"two"]);
    let (length, list) = success(receive).await;
    let whole: Vec<_> = list.into_iter().map(|part| part.into_buffer()[..].to_vec()).collect();
    assert_eq!((length, &whole[..]), (7, &[b".on...".to_vec(), b"e two.".to_vec()][..]));
}

// An entry is a buffer, a part or a slice, and comes back as the kind that it was (QP-02).
#[tokio::test]
async fn a_list_may_hold_all_kinds() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let memory = region(&adapter, b"from a region", Access::LOCAL_WRITE).await;
    let list = || -> Vec<Entry> {
        vec![
            bytes(&adapter, b"whole, ").into(),
            bytes(&adapter, b"not all of it, ").part(4..8).into(),
            memory.slice(5..13).expect("within").into(),
        ]
    };
    let receive = passive.queue_pair.receive(list()).expect("posted");
    let (length, back) = success(active.queue_pair.send(list()).expect("posted")).await;
    assert_eq!(length, 19);
    assert!(matches!(&back[..], [Entry::Buffer(_), Entry::BufferPart(_), Entry::RegionSlice(_)]), "{back:?}");
    let (length, received) = success(receive).await;
    assert_eq!(length, 19);
    let mut text = Vec::new();
    for entry in received {
        match entry {
            Entry::Buffer(buffer) => text.extend_from_slice(&buffer),
            Entry::BufferPart(part) => text.extend_from_slice(&part),
            Entry::RegionSlice(slice) => text.extend_from_slice(&content(slice.region())[slice.range()]),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(text, b"whole, all a region");
}

// A list with one invalid entry is refused as a whole, and the connection is not affected (QP-02, MR-03).
#[tokio::test]
async fn one_bad_entry_refuses_the_whole_list() {
    let adapter = adapter();
    let Pair { active, passive } = connected(&adapter).await;
    let readable = region(&adapter, b"readable", Access::REMOTE_READ).await;
    let ended = region(&adapter, b"is ended", Access::LOCAL_WRITE).await;
    ended.deregister().await.expect("deregistered");
    let entry = |region: &Region| Entry::from(region.slice(0..8).expect("within"));
    let stranger = common::adapter();
    for bad in [entry(&readable), entry(&ended), bytes(&stranger, b"stranger").into()] {
        let list = vec![Entry::from(bytes(&adapter, b"good")), bad];
        let error = passive.queue_pair.receive(list).expect_err("refused");
        assert_eq!((error.status(), error.buffer.len()), (Status::ACCESS_VIOLATION, 2));
        assert!(matches!(&error.buffer[0], Entry::Buffer(buffer) if &buffer[..] == b"good"));
    }
    let entries = adapter.info().max_entries.min(8);
    let config = QueuePairConfig::default().send_entries(entries).receive_entries(entries);
    let narrow = adapter.queue_pair(config).expect("a queue pair");
    let slices = |count| vec![readable.slice(0..1).expect("within"); count];
    let error = narrow.receive(slices(entries + 1)).expect_err("it lacks the right, first of all");
    assert_eq!(error.status(), Status::ACCESS_VIOLATION);
    let parts = (0..=entries).map(|_| room(&adapter, 2).part(0..1)).collect::<Vec<_>>();
    let error = narrow.receive(parts).expect_err("too many");
    assert_eq!((error.status(), error.buffer.len()), (Status::DATA_OVERRUN, entries + 1));
    // The connection knows nothing of all this.
    let receive = passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    success(active.queue_pair.send(slices(3)).expect("posted")).await;
    assert_eq!(success(receive).await.0, 3);
}

// The local region has READ_SINK, which some iWARP devices need for the target of a read (QP-02, MR-06).
#[tokio::test]
async fn reads_and_writes_take_lists_of_slices() {
    let adapter = adapter();
    if lacks_buffer_sinks(&adapter) {
        return;
    }
    let Pair { active, passive: _passive } = connected(&adapter).await;
    let remote = region(&adapter, b"........", Access::REMOTE_READ | Access::REMOTE_WRITE).await;
    let local = region(&adapter, b"12345678", Access::LOCAL_WRITE | Access::READ_SINK).await;
    let slice = |range| local.slice(range).expect("within");
    let write = active.queue_pair.write([slice(4..8), slice(0..4)], &remote.remote()).expect("posted");
    success(write).await;
    // Behind it, since a write may complete before it has arrived.
    let back = active.queue_pair.read(room(&adapter, 8), &remote.remote()).expect("posted");
    assert_eq!(&success(back).await.1[..], b"56781234");
    match active.queue_pair.read(vec![slice(6..8), slice(0..6)], &remote.remote()) {
        Ok(read) => {
            assert!(adapter.info().max_read_entries >= 2);
            success(read).await;
            assert_eq!(content(&local), b"78123456");
        }
        // ERR-06: `siw` has one.
        Err(error) => {
            assert_eq!((error.status(), error.buffer.len()), (Status::DATA_OVERRUN, 2));
            assert!(adapter.info().max_read_entries < 2);
        }
    }
}
