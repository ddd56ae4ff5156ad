//! Criterion: headers, start-up frames and checksums. They are no part of the API: this needs the door for fuzzers, as in
//! `RUSTFLAGS='--cfg fuzzing' cargo bench -p suite --bench codec`.

#[cfg(fuzzing)]
mod codecs {
    use std::hint::black_box;

    use bytes::Bytes;
    use criterion::{Criterion, Throughput};
    use tokio_rdma::internals::codecs::{
        checksum, decode_header, encode_tagged, encode_untagged, start_frame,
    };

    pub(crate) fn run(criterion: &mut Criterion) {
        let (tagged, untagged) = (encode_tagged(1 << 40, 65_520), encode_untagged(1, 64));
        criterion.bench_function("encode the header of a Write", |b| {
            b.iter(|| encode_tagged(black_box(1 << 40), black_box(65_520)));
        });
        criterion.bench_function("encode the header of a Send", |b| {
            b.iter(|| encode_untagged(black_box(1), black_box(64)));
        });
        criterion
            .bench_function("decode the header of a Write", |b| b.iter(|| decode_header(black_box(&tagged))));
        criterion.bench_function("decode the header of a Send", |b| {
            b.iter(|| decode_header(black_box(&untagged)))
        });
        let (data, mut room) = (Bytes::from(vec![7; 196]), Vec::new());
        criterion.bench_function("a start-up frame, there and back", |b| {
            b.iter(|| start_frame(black_box(&data), &mut room));
        });
        let mut group = criterion.benchmark_group("CRC32C");
        for length in [88, 1460, 65_536] {
            let bytes = vec![0x5a; length];
            group.throughput(Throughput::Bytes(length as u64));
            group.bench_function(length.to_string(), |b| b.iter(|| checksum(black_box(&bytes))));
        }
        group.finish();
    }
}

#[cfg(fuzzing)]
criterion::criterion_group!(benches, codecs::run);
#[cfg(fuzzing)]
criterion::criterion_main!(benches);

#[cfg(not(fuzzing))]
fn main() {
    println!("left out: needs RUSTFLAGS='--cfg fuzzing'");
}
