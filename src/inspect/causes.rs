//! The sentence that says why an object waits, from its report and those of others.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use super::{
    AdapterReport, ChannelReport, CompletionQueueReport, ConnectionReport, ConnectionState, LaneReport,
    ListenerReport, QueuePairReport, RequestReport, SendState, SessionReport, SharedReceiveQueueReport,
    Snapshot, StreamReport, TcpReport,
};

/// The time after which a peer that acknowledges nothing is named, a device that completes nothing, and the owner of a lane that does not
/// poll: healthy ones take less.
const LONG: Duration = Duration::from_millis(500);

/// Fills in the fields `waits_for`.
pub(super) fn explain(snapshot: &mut Snapshot) {
    let Snapshot { adapters, listeners, connections, completion_queues, shared_receive_queues, .. } =
        snapshot;
    adapters.iter_mut().for_each(|report| report.waits_for = adapter(report));
    listeners.iter_mut().for_each(|report| report.waits_for = listener(report));
    connections.iter_mut().for_each(|report| report.waits_for = connection(report));
    completion_queues.iter_mut().for_each(|report| report.waits_for = completion_queue(report));
    shared_receive_queues.iter_mut().for_each(|report| report.waits_for = shared_receive_queue(report));
    let Snapshot { connections, lanes, streams, sessions, .. } = snapshot;
    lanes.iter_mut().for_each(|report| report.waits_for = lane(report));
    sessions.iter_mut().for_each(|report| report.waits_for = session(report));
    let sessions: HashMap<_, _> = sessions.iter().map(|report| (report.connection, report)).collect();
    let connections: HashMap<_, _> = connections.iter().map(|report| (report.id, report)).collect();
    for report in &mut *streams {
        let session = sessions.get(&report.connection).copied();
        report.session = session.map(|session| session.id.clone());
        report.waits_for = stream(report, connections.get(&report.connection).copied(), session);
    }
    let streams: HashMap<_, _> = snapshot.streams.iter().map(|report| (report.connection, report)).collect();
    for report in &mut snapshot.connections {
        if report.state == ConnectionState::Connected && streams.contains_key(&report.id) {
            // The stream says it, and its requests are not the program's.
            report.waits_for = None;
        }
    }
    for report in &mut snapshot.channels {
        let stream = report.connection.and_then(|id| streams.get(&id)).copied();
        report.waits_for = channel(report, stream);
    }
}

fn adapter(report: &AdapterReport) -> Option<String> {
    report.is_removed.then(|| "the adapter was removed".to_owned())
}

fn listener(report: &ListenerReport) -> Option<String> {
    let ListenerReport { backlog, waiting, calls, since_taken, .. } = report;
    if *waiting == 0 {
        return (*calls > 0).then(|| "no peer asks".to_owned());
    }
    let refused = if waiting >= backlog { ", and others are refused" } else { "" };
    let (waiting, wait) = (count(*waiting, "request"), if *waiting == 1 { "waits" } else { "wait" });
    Some(format!("{waiting} {wait}: the program has taken none for {}{refused}", time(*since_taken)))
}

fn connection(report: &ConnectionReport) -> Option<String> {
    let since = time(report.since);
    Some(match report.state {
        ConnectionState::Idle | ConnectionState::Bound if report.is_in_line => {
            "connect pending: it waits for its queue pair, or for a place among the connects of the adapter"
                .into()
        }
        ConnectionState::Idle | ConnectionState::Bound => return None,
        ConnectionState::Connecting => format!("connect pending: the peer has not answered for {since}"),
        ConnectionState::Replied => {
            format!("reply pending: the program has neither completed nor rejected for {since}")
        }
        ConnectionState::Completing => format!("complete pending: not established for {since}"),
        ConnectionState::Requested => {
            format!("request pending: the program has neither accepted nor rejected for {since}")
        }
        ConnectionState::Accepting => format!("accept pending: the peer has not completed for {since}"),
        ConnectionState::Connected => return connected(report),
        ConnectionState::PeerGone => {
            format!("the peer is gone for {since}: the program has not disconnected")
        }
        ConnectionState::Disconnecting => {
            format!("disconnect pending: the peer has not answered for {since}")
        }
        ConnectionState::Disconnected | ConnectionState::Dead | ConnectionState::Unknown => return None,
    })
}

/// Says what an established connection waits for.
fn connected(report: &ConnectionReport) -> Option<String> {
    let queue_pair = report.queue_pair.as_ref()?;
    let QueuePairReport { sends, receives, .. } = queue_pair;
    if queue_pair.awaits_receive {
        return Some("shared receive queue empty: a message of the peer waits for a receive".to_owned());
    }
    if let Some(cause) = sending(queue_pair, report.tcp.as_ref()) {
        return Some(cause);
    }
    let uncollected = sends.uncollected + receives.uncollected;
    if uncollected > 0 {
        return Some(format!(
            "{} completed: the program has not taken the results",
            count(uncollected, "request")
        ));
    }
    let oldest = time(receives.oldest.first()?.age);
    Some(format!(
        "{} posted: no message has come for the oldest in {oldest}",
        count(receives.outstanding, "receive")
    ))
}

/// Says why a time limit ends a connection: what it has sent for, or that the peer is silent.
pub(super) fn silence(report: &ConnectionReport) -> Option<String> {
    if report.state != ConnectionState::Connected {
        return connection(report);
    }
    let tcp = report.tcp.as_ref();
    let pending = report.queue_pair.as_ref().and_then(|queue_pair| sending(queue_pair, tcp));
    let silent = || match tcp {
        Some(tcp) if is_unheard(tcp) => {
            format!("the peer has acknowledged nothing for {}", time(tcp.since_acknowledged))
        }
        Some(tcp) => format!("the peer has sent nothing for {}", time(tcp.since_received)),
        None => "the peer has sent nothing".to_owned(),
    };
    Some(pending.unwrap_or_else(silent))
}

/// Says why the send queue does not go on.
fn sending(queue_pair: &QueuePairReport, tcp: Option<&TcpReport>) -> Option<String> {
    let QueuePairReport { sends, send_state, reads_unanswered, .. } = queue_pair;
    match (send_state, tcp) {
        (SendState::SocketFull, Some(tcp)) => return Some(full(tcp)),
        (SendState::AwaitsFirstMessage, _) if sends.outstanding > 0 => {
            return Some(format!(
                "{} wait for the first message of the peer, which connected",
                count(sends.outstanding, "request")
            ));
        }
        _ => {}
    }
    let RequestReport { kind, bytes, age } = sends.oldest.first()?;
    if *age < LONG {
        return None;
    }
    let (bytes, age) = (count(*bytes, "byte"), time(*age));
    if *send_state == SendState::ReadLimit {
        return Some(format!(
            "read limit reached: the peer has not answered {} for {age}",
            count(*reads_unanswered, "read")
        ));
    }
    if let Some(tcp) = tcp
        && is_unheard(tcp)
    {
        let silent = time(tcp.since_acknowledged);
        return Some(format!("{kind} of {bytes} pending: the peer has acknowledged nothing for {silent}"));
    }
    Some(match (&**kind, tcp) {
        ("Read" | "CompareSwap" | "FetchAdd", _) => {
            format!("{kind} of {bytes} pending: the peer has not answered for {age}")
        }
        (_, Some(_)) => format!("{kind} of {bytes} pending: the runtime has not written it for {age}"),
        ("Send", None) => format!(
            "Send of {bytes} pending: the device has not completed it for {age}; the peer may have posted no receive"
        ),
        _ => format!("{kind} of {bytes} pending: the device has not completed it for {age}"),
    })
}

/// Says why a socket is full.
fn full(tcp: &TcpReport) -> String {
    if is_unheard(tcp) {
        format!("socket full: the peer has acknowledged nothing for {}", time(tcp.since_acknowledged))
    } else if is_closed(tcp) {
        format!("socket full: {}", closed(tcp))
    } else if tcp.unacknowledged == 0 {
        "socket has room: the runtime has not come to write on".to_owned()
    } else {
        format!("socket full: {} are on their way", count(tcp.unacknowledged, "byte"))
    }
}

/// Returns whether the host of the peer has acknowledged all that it gave room for, and takes no more: its process does not read.
fn is_closed(tcp: &TcpReport) -> bool {
    tcp.unsent > 0 && tcp.unacknowledged == tcp.unsent
}

/// Says that the window of the peer is closed.
fn closed(tcp: &TcpReport) -> String {
    format!("the peer has read nothing for {}, and its window is closed", time(tcp.since_sent))
}

/// Returns whether the host of the peer owes an acknowledgement, and has given none for a while.
fn is_unheard(tcp: &TcpReport) -> bool {
    // What is sent again counts as sent just now.
    let is_repeated = tcp.unanswered_probes > 0 || tcp.since_sent >= LONG;
    tcp.unacknowledged > tcp.unsent && tcp.since_acknowledged >= LONG && is_repeated
}

fn completion_queue(report: &CompletionQueueReport) -> Option<String> {
    let CompletionQueueReport { waiting, oldest, tasks, .. } = report;
    if report.is_closed {
        return Some("closed: it has lost a completion, or the adapter was removed".to_owned());
    }
    let (waiting, age) = (count(*waiting, "completion"), time((*oldest)?));
    Some(if *tasks > 0 {
        format!("{waiting} not polled for {age}: the tasks that wait are not notified of these")
    } else {
        format!("{waiting} not polled for {age}: no task waits for a notification")
    })
}

fn shared_receive_queue(report: &SharedReceiveQueueReport) -> Option<String> {
    let waiting = count(report.messages_waiting, "connection");
    (report.messages_waiting > 0).then(|| format!("empty: {waiting} with a message for it"))
}

fn lane(report: &LaneReport) -> Option<String> {
    let LaneReport { outstanding, is_waiting, since_polled, .. } = report;
    if *outstanding == 0 || *since_polled < LONG {
        return None;
    }
    let (requests, time) = (count(*outstanding, "request"), time(*since_polled));
    Some(match is_waiting {
        true => format!("{requests} pending: nothing has completed for {time}"),
        false => format!("{requests} outstanding: the program has not polled for {time}"),
    })
}

/// Says why a session has no connection.
pub(super) fn session(report: &SessionReport) -> Option<String> {
    let lost = report.lost.filter(|_| !report.is_over)?;
    let (lost, most) = (time(lost), time(report.gives_up_after));
    Some(match &*report.role {
        "active" => format!("no path: every attempt has failed for {lost}; gives up after {most}"),
        _ => format!("no path: the peer has not connected again for {lost}; gives up after {most}"),
    })
}

/// Says why the peer has not confirmed the end of a stream.
pub(super) fn unconfirmed(
    report: &StreamReport,
    connection: &ConnectionReport,
    session: Option<&SessionReport>,
) -> Option<String> {
    let lost = session.and_then(self::session);
    let write = || writing(report, Some(connection), report.write_waits.unwrap_or_default());
    lost.or_else(write).or_else(|| silence(connection))
}

fn stream(
    report: &StreamReport,
    connection: Option<&ConnectionReport>,
    session: Option<&SessionReport>,
) -> Option<String> {
    if report.ended.is_some() && session.is_none() {
        return None;
    }
    if let Some(lost) = session.and_then(|session| session.waits_for.clone()) {
        return Some(lost);
    }
    let write = report.write_waits.and_then(|waits| writing(report, connection, waits));
    write.or_else(|| {
        if report.unread > 0 {
            return Some(format!("the program has not read {}", count(report.unread, "byte")));
        }
        if report.unprocessed > 0 && report.read_waits.is_none() {
            return Some(format!("the program has not processed {}", count(report.unprocessed, "message")));
        }
        let cause = format!("read pending: the peer has sent nothing for {}", time(report.read_waits?));
        Some(polled(cause, report.read_polled))
    })
}

/// Says why a write of a stream waits.
fn writing(report: &StreamReport, connection: Option<&ConnectionReport>, waits: Duration) -> Option<String> {
    let socket = connection.and_then(|connection| {
        let queue_pair = connection.queue_pair.as_ref()?;
        (queue_pair.send_state == SendState::SocketFull).then(|| connection.tcp.as_ref().map(full))?
    });
    if report.room > 0 && report.credits > 0 {
        let sent = count(report.outstanding, "message");
        let cause = || format!("write pending for {}: {sent} have not completed", time(waits));
        let otherwise = || polled(cause(), report.write_polled);
        // The end of a stream waits for a request that is none of its messages: the peer answers when it has all of them.
        let request = || {
            let connection = connection?;
            sending(connection.queue_pair.as_ref()?, connection.tcp.as_ref())
        };
        return socket.or_else(|| (report.outstanding > 0).then(otherwise)).or_else(request);
    }
    // As long as bytes are on their way, the program of the peer may have read all that it has got.
    if let Some(tcp) = connection.and_then(|connection| connection.tcp.as_ref())
        && tcp.unacknowledged > 0
    {
        let bytes = count(tcp.unacknowledged, "byte");
        return Some(if is_unheard(tcp) {
            full(tcp)
        } else if is_closed(tcp) {
            format!("no credit: {}", closed(tcp))
        } else {
            let cause = format!("write pending for {}: {bytes} are on their way", time(waits));
            polled(cause, report.write_polled)
        });
    }
    let peer = count(report.unread_by_peer, "byte");
    if report.unread > 0 && report.peer_room == 0 {
        return Some(format!(
            "no credit in either direction: the program of the peer has not read {peer}, and this one has not read {}",
            count(report.unread, "byte")
        ));
    }
    Some(if report.room == 0 {
        format!("no credit: the program of the peer has not read {peer}")
    } else {
        format!("no credit: the program of the peer has taken no message for {}", time(waits))
    })
}

/// Adds to the cause of a wait when the call was last polled, if nothing says whether it was given up.
fn polled(cause: String, last: Option<Duration>) -> String {
    match last {
        Some(last) => format!("{cause}; last polled {} ago", time(last)),
        None => cause,
    }
}

fn channel(report: &ChannelReport, stream: Option<&StreamReport>) -> Option<String> {
    let oldest = report.oldest?;
    let (calls, is_server) = (count(report.calls, "call"), report.role == "server");
    let below = stream.filter(|stream| stream.write_waits.is_some() && report.unsent > 0);
    if let Some(cause) = below.and_then(|stream| stream.waits_for.as_ref()) {
        return Some(format!("{calls} pending: {cause}"));
    }
    if report.unread > 0 {
        return Some(format!("{calls} pending: this program does not read the bodies of {}", report.unread));
    }
    if report.blocked > 0 {
        return Some(format!(
            "{calls} pending: the program of the peer does not read the bodies of {}",
            report.blocked
        ));
    }
    let who = if is_server { "the program has not ended" } else { "the server has not ended" };
    Some(format!("{calls} pending: {who} the oldest for {}", time(oldest)))
}

/// Returns a number with its noun.
fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", Grouped(number))
}

/// A number whose thousands are set apart.
struct Grouped(usize);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (place, digit) in digits.chars().enumerate() {
            if place > 0 && (digits.len() - place).is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

/// Returns a time as a person reads it.
fn time(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        1..60 => format!("{:.1} s", time.as_secs_f64()),
        seconds @ 60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}
