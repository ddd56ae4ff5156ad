//! One end of a connection of queue pairs.

use std::cell::RefCell;

use tokio_rdma::error::{PostError, PostErrorKind};
use tokio_rdma::sim::Host;
use tokio_rdma::{
    Adapter, BufferPart, Connection, Op, QueuePair, QueuePairConfig, SharedReceiveConfig, SharedReceiveQueue,
    WorkOptions,
};

use crate::memory::{CANARY, Exposed};
use crate::queue::Queue;
use crate::world::World;

/// The length of the longest message.
pub(crate) const MESSAGE: usize = 600;
/// The bytes behind a message that nobody writes.
pub(crate) const TAIL: usize = 40;
/// The requests of a batch, and so those of a send queue.
pub(crate) const BATCH: usize = 6;
/// The receives that are posted.
pub(crate) const RECEIVES: usize = 8;

/// Everything that an end has before it is connected, and keeps afterwards.
pub(crate) struct End {
    pub(crate) adapter: Adapter,
    /// Taken by whoever drops it.
    pub(crate) queue_pair: RefCell<Option<QueuePair>>,
    pub(crate) connection: RefCell<Option<Connection>>,
    pub(crate) shared: Option<SharedReceiveQueue>,
    pub(crate) queue: Option<Queue>,
    pub(crate) exposed: Exposed,
}

impl End {
    /// Makes everything but the connection, unless the host goes down meanwhile.
    pub(crate) async fn new(world: &World, host: &Host, slot: usize) -> Option<Self> {
        let adapter = world.adapter(host)?;
        let end = Self::of(world, adapter.clone(), slot).await;
        assert!(end.is_some() || adapter.is_removed(), "refused");
        end
    }

    async fn of(world: &World, adapter: Adapter, slot: usize) -> Option<Self> {
        let mut config =
            QueuePairConfig::default().send_depth(2 * BATCH).receive_depth(RECEIVES).inline(MESSAGE);
        let queue = if world.once_in(2) { Some(Queue::new(&adapter)?) } else { None };
        if let Some(queue) = &queue {
            config = config.completions(&queue.queue);
        }
        let shared = SharedReceiveConfig::default().depth(RECEIVES);
        let shared = if world.once_in(3) { Some(adapter.shared_receive_queue(shared).ok()?) } else { None };
        if let Some(shared) = &shared {
            config = config.shared_receives(shared);
        }
        let exposed = Exposed::new(&adapter, slot).await?;
        let queue_pair = RefCell::new(Some(adapter.queue_pair(config).ok()?));
        world.count();
        Some(Self { adapter, queue_pair, connection: RefCell::default(), shared, queue, exposed })
    }

    /// The queue pair, unless its user has dropped it.
    pub(crate) fn queue_pair(&self) -> Option<QueuePair> {
        self.queue_pair.borrow().clone()
    }

    /// A buffer of which the first bytes are used, and the others are not to be touched.
    pub(crate) fn buffer(&self, length: usize) -> Option<BufferPart> {
        self.filled(&vec![CANARY; length])
    }

    /// The same with these bytes in front.
    pub(crate) fn filled(&self, bytes: &[u8]) -> Option<BufferPart> {
        let buffer = self.adapter.buffer_from(&[bytes, &[CANARY; TAIL]].concat());
        assert!(buffer.is_ok() || self.adapter.is_removed(), "{buffer:?}");
        Some(buffer.ok()?.part(0..bytes.len()))
    }

    /// A context for the completion queue, if there is one.
    fn context(&self, silent: bool) -> u64 {
        self.queue.as_ref().map_or(0, |queue| queue.open(silent))
    }

    /// Options, and the context in them. `more` tells that another request follows, so that this one may be silent.
    pub(crate) fn options(&self, world: &World, more: bool) -> (WorkOptions, u64) {
        let silent = more && world.once_in(6);
        let context = self.context(silent);
        let options = WorkOptions::default().context(context);
        let options = if silent { options.silent() } else { options };
        (if world.once_in(8) { options.fence() } else { options }, context)
    }

    /// The request with this context, if it was posted. A refusal was for a reason of the connection.
    pub(crate) fn posted<T>(&self, context: u64, outcome: Result<T, PostErrorKind>) -> Option<T> {
        let kind = match outcome {
            Ok(posted) => return Some(posted),
            Err(kind) => kind,
        };
        if let Some(queue) = &self.queue {
            queue.refused(context);
        }
        match kind {
            PostErrorKind::ConnectionLost { .. }
            | PostErrorKind::ConnectionInvalid
            | PostErrorKind::DeviceRemoved => None,
            other => panic!("{other:?}"),
        }
    }

    /// Takes completions for ever, if there is a completion queue.
    pub(crate) async fn collect(&self, world: &World) {
        match &self.queue {
            Some(queue) => queue.collect(world).await,
            None => std::future::pending().await,
        }
    }

    /// Posts a receive, unless the connection has ended.
    pub(crate) fn receive(&self) -> Option<Op<BufferPart>> {
        let buffer = self.buffer(MESSAGE)?;
        let context = self.context(false);
        let outcome = match &self.shared {
            Some(shared) => shared.receive_with(buffer, context),
            None => match self.queue_pair() {
                Some(queue_pair) => queue_pair.receive_with(buffer, context),
                None => Err(PostError { kind: PostErrorKind::ConnectionInvalid, buffer }),
            },
        };
        self.posted(context, outcome.map_err(|refused| refused.kind))
    }
}
