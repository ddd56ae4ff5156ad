//! Two ends of a byte stream.

use std::net::SocketAddr;
use std::sync::LazyLock;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rdma::{Adapter, RdmaListener, RdmaStream, StreamConfig};

use super::{v4, within};

/// A listener on a port of the provider's choice.
pub fn listening(adapter: &Adapter, config: &StreamConfig) -> RdmaListener {
    RdmaListener::bind_on(adapter, SocketAddr::new(v4(), 0), config).expect("bound")
}

/// Both ends of a stream, the active one first, with these settings.
pub async fn streams_with(
    adapter: &Adapter,
    active: &StreamConfig,
    passive: &StreamConfig,
) -> (RdmaStream, RdmaStream) {
    let listener = listening(adapter, passive);
    let connect = RdmaStream::connect_on(adapter, listener.local_addr().expect("an address"), active);
    let (connected, accepted) =
        within(async { tokio::try_join!(async { Ok(connect.await?) }, listener.accept()) })
            .await
            .expect("connected");
    (connected, accepted.0)
}

/// The same with the usual settings.
pub async fn streams(adapter: &Adapter) -> (RdmaStream, RdmaStream) {
    let config = StreamConfig::default();
    streams_with(adapter, &config, &config).await
}

/// Returns when `writer`'s end may fill all of the ring of the other.
///
/// The second half of a ring is granted by a message of its own, as soon as an end may speak. A byte that the other end
/// writes comes behind that; and siw looks at a message that came before it listened for any only when another follows.
pub async fn granted(reader: &mut (impl AsyncRead + Unpin), peer: &mut (impl AsyncWrite + Unpin)) {
    within(peer.write_all(b"g")).await.expect("written");
    assert_eq!(within(reader.read_u8()).await.expect("read"), b'g');
}

/// Bytes of a stream from a place on. They repeat after 1,757, which has no factor in common with the length of a buffer. They are
/// copied from one period: some tests take megabytes of them, and tests are not optimized.
pub fn pattern(from: usize, length: usize) -> Vec<u8> {
    static PERIOD: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..251 * 7).map(|place| (place % 251 + place / 251) as u8).collect());
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let rest = &PERIOD[(from + bytes.len()) % PERIOD.len()..];
        bytes.extend_from_slice(&rest[..rest.len().min(length - bytes.len())]);
    }
    bytes
}

/// Returns as many bytes, of which each period is this one.
pub fn repeated(period: Vec<u8>, length: usize) -> Vec<u8> {
    let mut bytes = period.repeat(length.div_ceil(period.len()));
    bytes.truncate(length);
    bytes
}
