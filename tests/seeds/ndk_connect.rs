//! `NdkConnect`, as far as its page differs from that of `IND2Connector`. NDK returns each code inline or later; here the same
//! future returns both. `STATUS_PENDING` is a pending future. The lengths of the addresses and of the data are part of their
//! types.
//!
//! | item | here | test |
//! |---|---|---|
//! | `pSrcAddress`, and the statuses about it (X28) | Bind | `bind_address_is_where_the_connection_comes_from`, `bind_nd_sharing_violation` |
//! | the read limits, which NdkGetConnectionData returns lowered | `Connector::read_limits` | in this module |
//! | `RequestCompletion`, `RequestContext` | a task that has the future | in this module |
//! | the status codes | names and numbers of NTSTATUS | the module `failures` |
//! | a shared endpoint, NDK's other connect call (CM-10) | no counterpart: docs/guide/src/porting-nd.md | |
//!
//! Runs on: soft, sim, rxe, siw

use common::deviation::*;
use common::seeds::*;
use common::*;
use tokio::sync::mpsc;
use tokio_rdma::{AcceptParams, ConnectParams, ReadLimits, Status};

// NEG-01, NEG-02, NEG-03: lowered to the adapter, then to the peer; the effective values are what
// NdkGetConnectionData gives.
#[tokio::test]
async fn read_limits_are_lowered_to_adapter_and_peer() {
    let adapter = adapter();
    let most = adapter.info().max_read_limits;
    for (own, peer, effective) in [
        ((8, 6), (16, 16), ReadLimits::new(8, 6)),
        // ERR-06
        ((8, 6), (5, 3), ReadLimits::new(3, if accept_limits_reads(&adapter) { 5 } else { 6 })),
        ((u32::MAX, u32::MAX), (u32::MAX, u32::MAX), most),
        ((0, 9), (9, 9), ReadLimits::new(0, 9)),
    ] {
        let half = half_open(&adapter, limits(own.0, own.1), accept_limits(peer.0, peer.1)).await;
        assert_eq!(half.connector.read_limits(), Ok(effective));
        assert_eq!(half.reply.read_limits(), effective);
    }
}

// `RequestCompletion` and `RequestContext` are a task that has the future and the context. The future outlives the handles
// that it was made with, and is woken when its attempt ends: by an accept, a reject, or a cancel (CAN-01).
#[tokio::test]
async fn request_completion_is_a_task_with_the_future() {
    let adapter = adapter();
    let (listener, address) = listening(&adapter);
    let passive = queue_pair(&adapter);
    let (completion, mut completed) = mpsc::unbounded_channel();
    for context in [Status::SUCCESS, Status::CONNECTION_REFUSED, Status::CANCELED] {
        let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
        let connect = connector.connect(&queue_pair, address, ConnectParams::default());
        let completion = completion.clone();
        tokio::spawn(async move { completion.send((context, connect.await)) });
        drop(queue_pair);
        let request = within(listener.request()).await.expect("a request");
        assert!(completed.try_recv().is_err(), "it has not ended");
        let mut accepting = None;
        match context {
            Status::SUCCESS => {
                drop(connector);
                accepting = Some(self::accepting(request, &passive, AcceptParams::default()));
            }
            Status::CONNECTION_REFUSED => {
                drop(connector);
                within(request.reject(b"no")).await.expect("rejected");
            }
            _ => connector.cancel(),
        }
        let (ended, outcome) = within(completed.recv()).await.expect("a completion");
        let status = outcome.map_or_else(|error| error.status(), |_reply| Status::SUCCESS);
        assert_eq!((ended, status), (context, context));
        drop(accepting);
    }
}
