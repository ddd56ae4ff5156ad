//! Keeps the socket of an ended connection whose last bytes are still on the way to a slow peer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::soft::connection::Socket;

/// The socket of a peer is closed if the peer acknowledges nothing for this long, or does not end the stream
/// this long after it has acknowledged everything.
const LIMIT: Duration = Duration::from_secs(60);
/// A disconnect waits no longer than this for a peer, and the socket lingers no longer than this again,
/// however much the peer acknowledges. The buffers of Linux, of 4 MiB, are then delivered at 7 KiB/s.
pub(super) const MOST: Duration = Duration::from_secs(600);

/// Keeps the socket until the peer has ended the stream. If there are too many such sockets, it is closed at
/// once, and the kernel delivers what it can.
///
/// Closed earlier, it would answer all data of the peer with a reset, which discards what the peer has not
/// read.
pub(super) async fn linger(socket: Arc<Socket>) {
    let Some(_place) = socket.stream().linger() else { return };
    let _ = timeout(MOST, drain(&socket)).await;
}

/// Waits until the peer has ended the stream, or has stopped acknowledging data.
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
