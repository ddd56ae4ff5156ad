//! Every interleaving of providers that complete requests and tasks that wait for them, by loom.
//!
//! A wake-up that gets lost is a thread that waits for ever, which loom reports.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use loom::future::block_on;
use loom::thread;

use super::*;
use crate::status::Status;
use crate::sync::Mutex;
use crate::types::OpKind;

const LABEL: RequestMeta = RequestMeta { kind: OpKind::Send, context: 0 };

fn complete(sink: &CompletionSink, ticket: Ticket, status: Status) {
    let mut wakes = WakeList::default();
    sink.complete(ticket, Completed { status, ..Completed::done(0, Payload::new()) }, &mut wakes);
    wakes.wake_all();
}

/// Waits for the completion of a request, as its future does.
fn collect(table: &Table, ticket: Ticket) -> Option<Completed> {
    block_on(poll_fn(|cx| table.poll(ticket, cx)))
}

// A completion between two polls of the future wakes its task (CAN-07).
#[test]
fn a_request_that_is_awaited_is_always_woken() {
    loom::model(|| {
        let table = Arc::<Table>::default();
        let ticket = table.open(LABEL, || 0);
        let sink = CompletionSink::to_futures(table.clone());
        let provider = thread::spawn(move || complete(&sink, ticket, Status::SUCCESS));
        assert!(collect(&table, ticket).is_some());
        provider.join().expect("no panic");
        assert_eq!(table.len(), 0);
    });
}

// An abandoned request frees its slot, before or after its completion (CAN-09).
#[test]
fn abandoned_request_always_frees_its_slot() {
    loom::model(|| {
        let table = Arc::<Table>::default();
        let ticket = table.open(LABEL, || 0);
        let sink = CompletionSink::to_futures(table.clone());
        let provider = thread::spawn(move || complete(&sink, ticket, Status::SUCCESS));
        let looked = block_on(poll_fn(|cx| Poll::Ready(table.poll(ticket, cx).is_ready())));
        if !looked {
            table.abandon(ticket);
        }
        provider.join().expect("no panic");
        assert_eq!(table.len(), 0);
    });
}

// A task that polls, and sleeps when it finds none, misses no result (CQ-02).
#[test]
fn task_that_polls_and_sleeps_misses_nothing() {
    loom::model(|| {
        let ring = CompletionRing::new(2);
        let table = Arc::<Table>::default();
        let sink = CompletionSink::to_ring(table.clone(), ring.clone());
        let tickets = [table.open(LABEL, || 0), table.open(LABEL, || 0)];
        let provider = thread::spawn(move || {
            for ticket in tickets {
                complete(&sink, ticket, Status::SUCCESS);
            }
        });
        let mut seen = 0;
        while seen < 2 {
            let taken = ring.poll(1, |_| {}, |_| {});
            if taken == 0 {
                let mut notified = ring.notify(NotifyKind::Any);
                assert_eq!(block_on(poll_fn(|cx| notified.poll(cx))), None);
            }
            seen += taken;
        }
        provider.join().expect("no panic");
        for ticket in tickets {
            assert!(collect(&table, ticket).is_some());
        }
        assert_eq!(table.len(), 0);
    });
}

// A notification whose future is dropped goes to the other task that waits (CQ-02, CQ-03).
#[test]
fn a_missed_wakeup_reaches_the_other_waiter() {
    loom::model(|| {
        let ring = CompletionRing::new(1);
        let table = Arc::<Table>::default();
        let sink = CompletionSink::to_ring(table.clone(), ring.clone());
        let ticket = table.open(LABEL, || 0);
        let first = ring.notify(NotifyKind::Any);
        let provider = thread::spawn(move || complete(&sink, ticket, Status::SUCCESS));
        let other = thread::spawn(move || drop(first));
        let mut second = ring.notify(NotifyKind::Any);
        assert_eq!(block_on(poll_fn(|cx| second.poll(cx))), None);
        assert_eq!(ring.poll(1, |_| {}, |_| {}), 1);
        provider.join().expect("no panic");
        other.join().expect("no panic");
    });
}

// A result that finds no room closes the queue, and still reaches its future (CQ-05).
#[test]
fn overflowing_result_ends_wait_and_reaches_future() {
    loom::model(|| {
        let ring = CompletionRing::new(1);
        let table = Arc::<Table>::default();
        let sinks = [0, 1]
            .map(|queue_pair| CompletionSink::to_ring(table.clone(), ring.clone()).of_queue_pair(queue_pair));
        let tickets = [table.open(LABEL, || 0), table.open(LABEL, || 0)];
        let mut errors = ring.notify(NotifyKind::Errors);
        let mut providers = Vec::new();
        for (sink, ticket) in sinks.into_iter().zip(tickets) {
            providers.push(thread::spawn(move || complete(&sink, ticket, Status::SUCCESS)));
        }
        assert_eq!(block_on(poll_fn(|cx| errors.poll(cx))), Some(Status::BUFFER_OVERFLOW));
        for provider in providers {
            provider.join().expect("no panic");
        }
        assert_eq!(ring.poll(2, |_| {}, |_| {}), 1);
        for ticket in tickets {
            assert!(collect(&table, ticket).is_some());
        }
    });
}

// Receives that are taken while a task begins to wait are counted (SRQ-03).
#[test]
fn a_wait_below_the_threshold_resolves() {
    loom::model(|| {
        let count = Arc::new(ReceiveCounter::new(4, 1));
        assert!(count.reserve() && count.reserve());
        let takers = [(), ()].map(|()| {
            let count = count.clone();
            thread::spawn(move || {
                let mut wakes = WakeList::default();
                count.taken(&mut wakes);
                wakes.wake_all();
            })
        });
        let watch = count.watch();
        assert_eq!(block_on(poll_fn(|cx| watch.poll(cx))), None);
        for taker in takers {
            taker.join().expect("no panic");
        }
        assert_eq!(count.held(), 0);
    });
}

// CQ-01, HW-08: a result that is found while the queue is polled does not overtake one that waits in it.
#[test]
fn polled_results_keep_completion_order() {
    loom::model(|| {
        let ring = CompletionRing::new(2);
        let table = Arc::<Table>::default();
        let sink = CompletionSink::to_ring(table.clone(), ring.clone());
        let open = |context| table.open(RequestMeta { context, ..LABEL }, || 0);
        // The completions of the device, behind the lock of the queue pair.
        let device = Arc::new(Mutex::new(VecDeque::from([open(0), open(1)])));
        let find = |device: &Mutex<VecDeque<Ticket>>,
                    sink: &CompletionSink,
                    mut polling: Option<&mut Polling<'_>>| {
            let mut wakes = WakeList::default();
            let mut device = device.lock();
            if let Some(ticket) = device.pop_front() {
                let completed = Completed::done(0, Payload::new());
                sink.complete_polled(ticket, completed, polling.as_deref_mut(), &mut wakes);
            }
            drop(device);
            wakes.wake_all();
        };
        let reactor = {
            let (device, sink) = (device.clone(), sink.clone());
            thread::spawn(move || find(&device, &sink, None))
        };
        let mut seen = Vec::new();
        let mut poll = || {
            ring.poll(
                2,
                |polled| seen.extend(polled.label.map(|label| label.context)),
                |polling| find(&device, &sink, Some(polling)),
            )
        };
        poll();
        poll();
        reactor.join().expect("no panic");
        poll();
        assert_eq!(seen, [0, 1]);
    });
}
