//! An event at every instant of a connection, before and after what else happens at that instant: each call has one result, and
//! both ends agree.
//!
//! In the story without the event the request arrives after 30 ms and is accepted after 35, the reply arrives after 45 and the
//! connection is completed after 50, and the accept resolves after 60. The active side disconnects after 75, the peer sees
//! it after 85, and the answer arrives after 95.

use std::collections::BTreeSet;
use std::sync::Mutex;

use tokio_rdma::sim::{self, Network};

use crate::story::{Act, Moment, Results, Stage};
use crate::tools::Side;
use Side::{Active, Passive};

/// The last instant with an event, when both sides have ended.
const END: u64 = 100;

/// The instants at which calls have their results in the story without an act.
const RESULTS: [u64; 7] = [30, 45, 50, 60, 75, 85, 95];

/// Two instants at which something happens are so far apart.
const STEP: u64 = 5;

/// The results of the calls of both sides, in the order in which they are made. A call that is missing was not made, or dropped.
type Outcome = (String, String);

/// The results of an act that comes before this instant, and not before that of the row above.
type Row = (u64, &'static str, &'static str);

/// The results without an act.
const UNDISTURBED: Row = (u64::MAX, "Ok Ok Local Ok", "Ok Ok Peer Ok");

fn outcome(results: &Results) -> Outcome {
    let of = |side| {
        let mut calls: Vec<_> = results.iter().filter(|(its, ..)| *its == side).collect();
        calls.sort_by_key(|(_, call, _)| *call);
        let calls: Vec<_> = calls.into_iter().map(|(.., result)| result.as_str()).collect();
        calls.join(" ")
    };
    (of(Active), of(Passive))
}

/// Runs the story with an act at this moment.
fn run(act: Act, moment: Moment) -> Outcome {
    let found = Mutex::default();
    sim::check([moment.at], async |network: Network| {
        let results = Stage::new(&network).run(act, moment).await;
        *found.lock().expect("no panic") = outcome(&results);
    });
    found.into_inner().expect("no panic")
}

/// Returns the moments of an instant: before everything else, after everything else, and, if something happens then,
/// also in between.
fn moments(at: u64) -> impl Iterator<Item = Moment> {
    let turns = if at.is_multiple_of(STEP) { 0..4 } else { 0..1 };
    turns.flat_map(move |turns| [true, false].map(|first| Moment { at, first, turns }))
}

/// Sweeps an act over every instant. Between the instants of the rows the results are those of the row; at such an instant they
/// are those of one of the rows that meet there, and of each if a call has its result at this instant.
fn sweep(act: Act, rows: &[Row]) {
    let mut seen = BTreeSet::new();
    for at in 0..=END {
        let from = |row: usize| row.checked_sub(1).map_or(0, |above| rows[above].0);
        let allowed: Vec<_> =
            (0..rows.len()).filter(|&row| (from(row)..=rows[row].0).contains(&at)).collect();
        let mut here = BTreeSet::new();
        for moment in moments(at) {
            let found = run(act, moment);
            let mut matching =
                allowed.iter().filter(|&&row| (rows[row].1, rows[row].2) == (&found.0, &found.1));
            let expected: Vec<_> = allowed.iter().map(|&row| rows[row]).collect();
            here.insert(
                *matching.next().unwrap_or_else(|| panic!("{moment:?}: {found:?}, not {expected:?}")),
            );
        }
        // The provider notices the others a moment later.
        let is_immediate = matches!(act, Act::Cancel(_) | Act::Drop(_) | Act::Crash(_));
        let meet = is_immediate && allowed.len() > 1 && RESULTS.contains(&at);
        assert!(!meet || here.len() > 1, "both ways round at {at}");
        seen.extend(here);
    }
    for (row, expected) in rows.iter().enumerate() {
        assert!(seen.contains(&row), "{expected:?} has never occurred");
    }
}

// A cancel that comes too late changes nothing. Before the reply the peer sees the attempt vanish, and after it a
// rejection (races 1 and 8; CAN-01, CAN-03, CAN-05, CAN-06, X1).
#[test]
fn the_active_side_cancels() {
    let rows = [
        // There is nothing to cancel before the first poll.
        (0, UNDISTURBED.1, UNDISTURBED.2),
        // The request is not sent, so the listener waits.
        (20, "Canceled", "Canceled"),
        (45, "Canceled", "Ok Aborted"),
        (50, "Ok Invalid", "Ok Refused"),
        (75, "Ok Ok Canceled Ok", "Ok Ok Peer Ok"),
        // Before the disconnect is on its way there is only the reset of a cancelled one.
        (75, "Ok Ok Local Canceled", "Ok Ok Lost Lost"),
        (95, "Ok Ok Local Canceled", "Ok Ok Peer Ok"),
        UNDISTURBED,
    ];
    sweep(Act::Cancel(Active), &rows);
}

// A request that was delivered is not cancelled, and an accept does not belong to the listener (CAN-01, CAN-05, LS-07).
#[test]
fn the_passive_side_cancels() {
    let rows = [
        (0, UNDISTURBED.1, UNDISTURBED.2),
        (30, "Refused", "Canceled"),
        (60, UNDISTURBED.1, UNDISTURBED.2),
        // Its wait has ended, so it disconnects: the peer sees that before it disconnects itself, or later.
        (65, "Ok Ok Peer Ok", "Ok Ok Canceled Ok"),
        (85, "Ok Ok Local Ok", "Ok Ok Canceled Ok"),
        UNDISTURBED,
    ];
    sweep(Act::Cancel(Passive), &rows);
}

// Race 1; CAN-03, CM-24, LS-15, DIS-13, X1: each future of the active side is dropped, and the connection with it.
#[test]
fn the_active_side_drops_its_future() {
    let rows = [
        (20, "", "Canceled"),
        (45, "", "Ok Aborted"),
        (50, "Ok", "Ok Refused"),
        (75, "Ok Ok", "Ok Ok Peer Ok"),
        // A disconnect goes on without its future.
        (95, "Ok Ok Local", "Ok Ok Peer Ok"),
        UNDISTURBED,
    ];
    sweep(Act::Drop(Active), &rows);
}

// An accept whose future was dropped is undone. The peer finds that when it completes, or loses the connection (race 2;
// CAN-04, CM-28, LS-06, LS-22, P16).
#[test]
fn the_passive_side_drops_its_future() {
    let rows = [
        (30, "Refused", ""),
        (35, "Refused", "Ok"),
        (40, "Ok Aborted", "Ok"),
        (60, "Ok Ok Lost Lost", "Ok"),
        // The peer has completed, but the accept has not resolved: in order.
        (60, "Ok Ok Peer Ok", "Ok"),
        (65, "Ok Ok Peer Ok", "Ok Ok"),
        (85, "Ok Ok Local Ok", "Ok Ok"),
        UNDISTURBED,
    ];
    sweep(Act::Drop(Passive), &rows);
}

// CM-24, DIS-13, A14: a call keeps its queue pair. Without a call the reply is rejected and the connection disconnected.
#[test]
fn the_active_side_drops_its_queue_pair() {
    let rows = [
        (0, "", "Canceled"),
        (50, "Ok Canceled", "Ok Refused"),
        (75, "Ok Ok Local Invalid", "Ok Ok Peer Ok"),
        (95, "Ok Ok Local Canceled", "Ok Ok Peer Ok"),
        UNDISTURBED,
    ];
    sweep(Act::DropQueuePair(Active), &rows);
}

// Each row has the results of both sides for a drop before its instant (DIS-13, LS-22).
#[test]
fn the_passive_side_drops_its_queue_pair() {
    let rows = [
        (35, "Refused", "Ok"),
        (65, "Ok Ok Peer Ok", "Ok Ok Local Invalid"),
        (85, "Ok Ok Local Ok", "Ok Ok Local Invalid"),
        (85, "Ok Ok Local Ok", "Ok Ok Peer Invalid"),
        UNDISTURBED,
    ];
    sweep(Act::DropQueuePair(Passive), &rows);
}

// A host that crashes, or loses its interface, sends nothing to its peer (race 8; C15, CM-28, DIS-11).
#[test]
fn the_active_side_loses_its_adapter() {
    let rows = [
        // The interface is gone, and the adapter has not noticed.
        (0, "NetworkUnreachable", "Canceled"),
        (20, "DeviceRemoved", "Canceled"),
        (45, "DeviceRemoved", "Ok Aborted"),
        (50, "Ok DeviceRemoved", "Ok Aborted"),
        (50, "Ok Ok DeviceRemoved DeviceRemoved", "Ok Aborted"),
        (75, "Ok Ok DeviceRemoved DeviceRemoved", "Ok Ok Lost Lost"),
        (75, "Ok Ok Local DeviceRemoved", "Ok Ok Lost Lost"),
        (95, "Ok Ok Local DeviceRemoved", "Ok Ok Peer Ok"),
        UNDISTURBED,
    ];
    sweep(Act::Crash(Active), &rows);
    sweep(Act::Remove(Active), &rows);
}

// Race 8; C15, CM-18, DIS-14
#[test]
fn the_passive_side_loses_its_adapter() {
    let rows = |last| {
        [
            (30, "TimedOut", "DeviceRemoved"),
            (35, "TimedOut", "Ok DeviceRemoved"),
            (60, "Ok Ok Local TimedOut", "Ok DeviceRemoved"),
            (85, "Ok Ok Local TimedOut", "Ok Ok DeviceRemoved DeviceRemoved"),
            last,
            UNDISTURBED,
        ]
    };
    sweep(Act::Crash(Passive), &rows((85, UNDISTURBED.1, UNDISTURBED.2)));
    // The end of the peer's stream is read before the adapter notices.
    sweep(Act::Remove(Passive), &rows((85, "Ok Ok Local TimedOut", "Ok Ok Peer DeviceRemoved")));
}

// A request that was fetched does not belong to the listener (race 5; LS-07, LS-22).
#[test]
fn the_listener_closes() {
    let rows = [(0, "Refused", ""), (30, "Refused", "Canceled"), UNDISTURBED];
    sweep(Act::CloseListener, &rows);
}

// X1, LS-15, CM-28, DIS-11: a reset is never a no, and never an orderly end.
#[test]
fn a_box_on_the_way_resets_the_connection() {
    let rows = [
        (20, UNDISTURBED.1, UNDISTURBED.2),
        (20, "Refused", "Canceled"),
        (30, "Refused", "Ok Aborted"),
        (30, "Refused", "Canceled"),
        (45, "Refused", "Ok Aborted"),
        (50, "Ok Aborted", "Ok Aborted"),
        (60, "Ok Ok Lost Lost", "Ok Aborted"),
        (75, "Ok Ok Lost Lost", "Ok Ok Lost Lost"),
        (85, "Ok Ok Local Lost", "Ok Ok Lost Lost"),
        (95, "Ok Ok Local Lost", "Ok Ok Peer Ok"),
        UNDISTURBED,
    ];
    sweep(Act::Reset, &rows);
}

// Every call has a limit (CM-18, LS-15, DIS-11, DIS-14).
#[test]
fn the_path_is_cut() {
    let rows = [
        (30, "TimedOut", "Canceled"),
        (45, "TimedOut", "Ok Aborted"),
        (60, "Ok Ok Local TimedOut", "Ok Aborted"),
        (85, "Ok Ok Local TimedOut", "Ok Ok Lost Lost"),
        (95, "Ok Ok Local TimedOut", "Ok Ok Peer Ok"),
        UNDISTURBED,
    ];
    sweep(Act::Cut, &rows);
}
