//! A socket whose connection is over, and whose last bytes are still on the way to a slow peer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::provider::soft::connection::Socket;

/// A peer that acknowledges nothing for this long, or does not end the stream this long after it has acknowledged
/// everything, is given up.
const LIMIT: Duration = Duration::from_secs(60);
/// A peer is waited for no longer than this in all, by a disconnect and once more here, however much it acknowledges. The buffers
/// of Linux, of 4 MiB, are then delivered at 7 KiB/s.
pub(super) const MOST: Duration = Duration::from_secs(600);

/// Keeps the socket until the peer has ended the stream. Without a place for it the socket is closed at once, and the kernel
/// does what it can.
///
/// Closed earlier, it would answer whatever the peer sends with a reset, which throws away what the peer has not read.
pub(super) async fn linger(socket: Arc<Socket>) {
    let Some(_place) = socket.stream().linger() else { return };
    let _ = timeout(MOST, drain(&socket)).await;
}

/// Waits until the peer has ended the stream, or acknowledges nothing any more.
async fn drain(socket: &Socket) {
    let unacknowledged = || socket.stream().unacknowledged().unwrap_or(0);
    let mut queued = unacknowledged();
    while timeout(LIMIT, socket.stream().discard()).await.is_err() {
        let before = std::mem::replace(&mut queued, unacknowledged());
        if queued >= before {
            return;
        }
    }
}
