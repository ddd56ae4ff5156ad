//! A read whose future is polled inside its wake-up, on the task of the connection.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use common::raw::{self, Start, raw_accepts, room};
use common::{adapter, within};
use tokio_rdma::mr::RemoteRegion;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{Buffer, Op};

/// Polls a request right where it is woken, as the simplest of executors may.
struct Inline {
    op: Mutex<Option<Op<Buffer>>>,
    /// The buffer, or that taking it panicked.
    outcome: Mutex<Option<Result<Buffer, ()>>>,
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(self.clone());
        let Some(mut op) = self.op.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let poll = || Pin::new(&mut op).poll(&mut Context::from_waker(&waker));
        let outcome = match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Poll::Ready((_, buffer))) => Ok(buffer),
            Ok(Poll::Pending) => {
                *self.op.lock().expect("not poisoned") = Some(op);
                return;
            }
            Err(_) => Err(()),
        };
        *self.outcome.lock().expect("not poisoned") = Some(outcome);
    }
}

// CAN-09: a read that the end of the connection cuts short is given back only when nobody writes to it any more.
#[tokio::test]
async fn interrupted_read_returns_its_original_sink() {
    let adapter = adapter();
    let (end, mut peer, _) = raw_accepts(&adapter, Start::peer_to_peer(4, 4)).await;
    let sink = room(&adapter, 64);
    let place = sink.as_ptr();
    let read = end.queue_pair.read(sink, &RemoteRegion::new(0, RemoteKey(7), 64)).expect("posted");
    let inline = Arc::new(Inline { op: Mutex::new(Some(read)), outcome: Mutex::new(None) });
    inline.clone().wake();
    let request = peer.message().await.expect("the Read Request");
    let answer = raw::fpdu(&request.answer(&[0xaa; 64]), false);
    peer.say(&answer[..40]).await;
    drop(peer);
    within(end.connection.disconnected()).await;
    within(async {
        while inline.outcome.lock().expect("not poisoned").is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let outcome = inline.outcome.lock().expect("not poisoned").take().expect("it finished");
    assert_eq!(outcome.expect("nobody else has it").as_ptr(), place, "the very memory");
}
