//! The order of completions of every kind of request, posted from both ends concurrently.
//!
//! Runs on: soft, sim, rxe, siw

use common::deviation::lacks_buffer_sinks;
use common::device::variants;
use common::dice::Dice;
use common::raw::{bytes, room};
use common::results::collect;
use common::*;
use futures::FutureExt;
use futures::future::{BoxFuture, join, join_all};
use tokio_rdma::error::CompletionError;
use tokio_rdma::qp::Completion;
use tokio_rdma::types::OpKind;
use tokio_rdma::{
    AcceptParams, Access, Adapter, CompletionQueue, CompletionQueueConfig, ConnectParams, QueuePair,
    QueuePairConfig, ReadLimits, Region, Status, WorkOptions,
};

/// How many requests each end posts.
const REQUESTS: usize = 60;
/// The longest of them, in bytes.
const LONGEST: usize = 150_000;

/// A request to be posted.
struct Step {
    kind: OpKind,
    length: usize,
    inline: bool,
    silent: bool,
    fence: bool,
    /// It and those before it are sent at the latest now.
    ring: bool,
}

/// Requests by chance, of the kinds that the adapter has.
fn plan(adapter: &Adapter, dice: &mut Dice) -> Vec<Step> {
    let info = adapter.info();
    let mut kinds = vec![OpKind::Send, OpKind::Send, OpKind::Write, OpKind::Write, OpKind::Read];
    if info.atomics {
        kinds.extend([OpKind::CompareSwap, OpKind::FetchAdd]);
    }
    let step = |place| {
        let kind = kinds[dice.below(kinds.len())];
        let length = match kind {
            OpKind::CompareSwap | OpKind::FetchAdd => 8,
            _ if dice.below(3) == 0 => dice.below(LONGEST),
            // A siw that is sending answers an empty read with what it sent before (docs/spec/wire.md, section 3).
            OpKind::Read if Device::under_test() == Device::Siw => 1 + dice.below(100),
            _ => dice.below(100),
        };
        let inline = matches!(kind, OpKind::Send | OpKind::Write) && length <= info.max_inline.min(64);
        Step {
            kind,
            length,
            inline: inline && dice.below(2) == 0,
            // The last one says that all are over.
            silent: place + 1 < REQUESTS && dice.below(3) == 0,
            fence: dice.below(5) == 0,
            ring: dice.below(3) == 0,
        }
    };
    (0..REQUESTS).map(step).collect()
}

type Outcome = Result<Completion, CompletionError>;

/// One end of the connection.
struct Side {
    queue_pair: QueuePair,
    sent: CompletionQueue,
    received: CompletionQueue,
    region: Region,
}

impl Side {
    async fn new(adapter: &Adapter) -> Self {
        let queue = || {
            let config = CompletionQueueConfig::default().depth(2 * REQUESTS);
            adapter.completion_queue(config).expect("a completion queue")
        };
        let (sent, received) = (queue(), queue());
        let config = QueuePairConfig::default().send_completions(&sent).receive_completions(&received);
        let queue_pair = adapter.queue_pair(config).expect("a queue pair");
        let mut access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        if adapter.info().atomics {
            access |= Access::REMOTE_ATOMIC;
        }
        let region = adapter.register(LONGEST, access).await.expect("registered");
        Self { queue_pair, sent, received, region }
    }

    /// Posts what is planned.
    fn post(&self, adapter: &Adapter, plan: &[Step], peer: &Region) -> Vec<BoxFuture<'static, Outcome>> {
        let target = peer.remote();
        let mut batch = self.queue_pair.batch();
        let mut ops = Vec::new();
        for (context, step) in (0..).zip(plan) {
            let mut options = WorkOptions::default().context(context);
            if step.silent {
                options = options.silent();
            }
            if step.fence {
                options = options.fence();
            }
            let data = vec![context as u8; step.length];
            let op = match step.kind {
                OpKind::Send if step.inline => {
                    batch.send_inline(&[&data], options).expect("posted").map(|(outcome, _)| outcome).boxed()
                }
                OpKind::Write if step.inline => {
                    let write = batch.write_inline(&[&data], &target, options).expect("posted");
                    write.map(|(outcome, _)| outcome).boxed()
                }
                kind => {
                    let buffer = bytes(adapter, &data);
                    let op = match kind {
                        OpKind::Send => batch.send_with(buffer, options),
                        OpKind::Write => batch.write_with(buffer, &target, options),
                        OpKind::Read => batch.read_with(buffer, &target, options),
                        OpKind::CompareSwap => batch.compare_swap(buffer, &target, 0, 1, options),
                        _ => batch.fetch_add(buffer, &target, 1, options),
                    };
                    op.expect("posted").map(|(outcome, _)| outcome).boxed()
                }
            };
            ops.push(op);
            if step.ring {
                batch.submit();
                batch = self.queue_pair.batch();
            }
        }
        ops
    }
}

// Random sends, writes, reads and atomics, some silent, fenced, inline or batched, complete in the order of their posts
// (QP-17).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_requests_complete_in_posting_order() {
    let seed = Dice::seed();
    for (adapter, variant) in variants() {
        if lacks_buffer_sinks(&adapter) {
            return;
        }
        for case in 0..often(40, 2) {
            one(&adapter, Dice::of(seed, case), variant).await;
        }
    }
}

async fn one(adapter: &Adapter, mut dice: Dice, variant: &str) {
    let limit = 1 + u32::try_from(dice.below(4)).expect("small");
    let limits = ReadLimits::new(limit, limit);
    let sides = [Side::new(adapter).await, Side::new(adapter).await];
    let [ours, theirs] = [0, 1].map(|side| sides[side].queue_pair.clone());
    let connect = ConnectParams::default().read_limits(limits);
    let accept = AcceptParams::default().read_limits(limits);
    let _pair = connected_queue_pairs(adapter, ours.clone(), theirs.clone(), connect, accept).await;
    // The active side has to send first, and after that either side may.
    let first = theirs.receive(room(adapter, 1)).expect("posted");
    let hello = ours.send(bytes(adapter, b"!")).expect("posted");
    collect(&sides[0].sent, 1).await;
    collect(&sides[1].received, 1).await;
    within(join(first, hello)).await.0.0.expect("received");

    let plans = [plan(adapter, &mut dice), plan(adapter, &mut dice)];
    let mut receives = Vec::new();
    for (side, peer) in [(0, 1), (1, 0)] {
        let sends = plans[peer].iter().filter(|step| step.kind == OpKind::Send);
        for (context, step) in (0..).zip(sends) {
            let receive = sides[side].queue_pair.receive_with(room(adapter, step.length), context);
            receives.push(receive.expect("posted"));
        }
    }
    let ops = [0, 1].map(|side| sides[side].post(adapter, &plans[side], &sides[1 - side].region));
    for side in [0, 1] {
        let loud: Vec<u64> =
            (0..).zip(&plans[side]).filter(|(_, step)| !step.silent).map(|(context, _)| context).collect();
        let results = collect(&sides[side].sent, loud.len()).await;
        let contexts: Vec<_> = results.iter().map(|result| result.context).collect();
        assert_eq!(contexts, loud, "{variant}");
        for result in results {
            let step = &plans[side][usize::try_from(result.context).expect("small")];
            assert_eq!(
                (result.status, result.kind, result.bytes),
                (Status::SUCCESS, step.kind, step.length),
                "{variant}"
            );
        }
        let sends: Vec<_> =
            plans[1 - side].iter().filter(|step| step.kind == OpKind::Send).map(|step| step.length).collect();
        let results = collect(&sides[side].received, sends.len()).await;
        let lengths: Vec<_> = results.iter().map(|result| result.bytes).collect();
        assert_eq!(lengths, sends, "{variant}");
        assert!(results.iter().map(|result| result.context).eq(0..results.len() as u64), "{variant}");
    }
    // QP-09: those that were silent are over, too.
    for outcome in within(join_all(ops.into_iter().flatten())).await {
        outcome.expect("it succeeds");
    }
    let [first, second] = [0, 1].map(|peer: usize| {
        let sends = (0..).zip(&plans[1 - peer]).filter(|(_, step)| step.kind == OpKind::Send);
        sends.map(|(context, step)| vec![context as u8; step.length]).collect::<Vec<_>>()
    });
    for (receive, expected) in receives.into_iter().zip(first.into_iter().chain(second)) {
        let (outcome, buffer) = within(receive).await;
        assert_eq!(outcome.expect("received").bytes, expected.len());
        assert!(buffer[..] == expected[..], "each message went to its receive, {variant}");
    }
    within(exchange_through(&sides)).await;
}

/// Exchanges an empty message in each direction.
async fn exchange_through(sides: &[Side; 2]) {
    for (from, to) in [(0, 1), (1, 0)] {
        let receive = sides[to].queue_pair.receive(()).expect("posted");
        let send = sides[from].queue_pair.send(()).expect("posted");
        collect(&sides[from].sent, 1).await;
        collect(&sides[to].received, 1).await;
        let ((received, ()), (sent, ())) = join(receive, send).await;
        assert!(received.is_ok() && sent.is_ok());
    }
}
