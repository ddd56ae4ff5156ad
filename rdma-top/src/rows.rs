//! The lines of the table: one for each object of each process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio_rdma::inspect::{
    AdapterReport, ChannelReport, CompletionQueueReport, ConnectionReport, LaneReport, ListenerReport,
    SessionReport, SharedReceiveQueueReport, Snapshot, StreamReport,
};

use crate::source::{Failure, Reading};
use crate::text::clean;

/// The kind of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A process that serves no snapshot.
    Process,
    /// An adapter.
    Adapter,
    /// A listener.
    Listener,
    /// A connection.
    Connection,
    /// A byte stream.
    Stream,
    /// A session of streams.
    Session,
    /// A channel of calls.
    Channel,
    /// A completion queue.
    CompletionQueue,
    /// A shared receive queue.
    SharedReceiveQueue,
    /// A lane.
    Lane,
}

impl Kind {
    /// Every kind, in the order in which the filter offers them.
    pub(crate) const ALL: [Self; 10] = [
        Self::Connection,
        Self::Stream,
        Self::Session,
        Self::Channel,
        Self::Listener,
        Self::CompletionQueue,
        Self::SharedReceiveQueue,
        Self::Lane,
        Self::Adapter,
        Self::Process,
    ];

    /// Returns its name in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Adapter => "adapter",
            Self::Listener => "listener",
            Self::Connection => "connection",
            Self::Stream => "stream",
            Self::Session => "session",
            Self::Channel => "channel",
            Self::CompletionQueue => "cq",
            Self::SharedReceiveQueue => "srq",
            Self::Lane => "lane",
        }
    }
}

/// The name of an object, by which it is found in the next snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    /// The socket of its process.
    pub(crate) path: PathBuf,
    /// Its kind.
    pub(crate) kind: Kind,
    /// Its number or name. Objects without one are counted: `#1`.
    pub(crate) id: String,
}

/// One line. No text in it has a control character.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// The name of the object.
    pub(crate) key: Key,
    /// The index of its process among the readings.
    pub(crate) reading: usize,
    /// Its index among the reports of its kind.
    pub(crate) place: usize,
    /// The number of the process, for the order.
    pub(crate) number: u32,
    /// The number and the program of the process.
    pub(crate) process: String,
    /// Its state, in a word or two.
    pub(crate) state: String,
    /// The time that it has been in this state, or has waited.
    pub(crate) since: Option<Duration>,
    /// The local address.
    pub(crate) local: String,
    /// The address or the name of the peer.
    pub(crate) peer: String,
    /// The bytes that were sent and received.
    pub(crate) bytes: Option<(u64, u64)>,
    /// Why it makes no progress.
    pub(crate) waits_for: Option<String>,
}

impl AsRef<Self> for Row {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Row {
    /// Returns the line of a process that serves no snapshot.
    fn of_failure(index: usize, reading: &Reading, failure: &Failure) -> Self {
        let state = match failure {
            Failure::Ended => "ended",
            Failure::Silent => "silent",
            Failure::Wrong(_) => "unreadable",
        };
        let path = clean(&reading.path.to_string_lossy()).into_owned();
        let number = reading.process();
        Self {
            key: Key { path: reading.path.clone(), kind: Kind::Process, id: String::new() },
            reading: index,
            place: 0,
            number: number.unwrap_or_default(),
            process: number.map_or(path, |number| number.to_string()),
            state: state.to_owned(),
            since: None,
            local: String::new(),
            peer: String::new(),
            bytes: None,
            waits_for: Some(clean(&failure.to_string()).into_owned()),
        }
    }
}

/// Returns the lines of all processes.
pub(crate) fn rows(readings: &[Reading]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (index, reading) in readings.iter().enumerate() {
        match &reading.outcome {
            Ok(answer) => Maker::new(index, reading, &answer.snapshot).add_all(&mut rows),
            Err(failure) => rows.push(Row::of_failure(index, reading, failure)),
        }
    }
    rows
}

/// Makes the lines of one process.
struct Maker<'a> {
    /// The index of the process.
    index: usize,
    /// The reading of the process.
    reading: &'a Reading,
    /// Its snapshot.
    snapshot: &'a Snapshot,
    /// The number and the program.
    process: String,
    /// The connections, by their numbers.
    connections: std::collections::HashMap<u64, &'a ConnectionReport>,
}

impl<'a> Maker<'a> {
    /// Begins with a process.
    fn new(index: usize, reading: &'a Reading, snapshot: &'a Snapshot) -> Self {
        let process = format!("{} {}", snapshot.process, clean(&snapshot.program));
        let connections = snapshot.connections.iter().map(|report| (report.id, report)).collect();
        Self { index, reading, snapshot, process, connections }
    }

    /// Adds every line.
    fn add_all(&self, rows: &mut Vec<Row>) {
        /// Adds the lines of one kind.
        macro_rules! add {
            ($($reports:ident: $method:ident),* $(,)?) => {
                $(rows.extend(self.snapshot.$reports.iter().enumerate().map(|(place, report)| self.$method(place, report)));)*
            };
        }
        add! {
            adapters: adapter,
            listeners: listener,
            connections: connection,
            streams: stream,
            sessions: session,
            channels: channel,
            completion_queues: completion_queue,
            shared_receive_queues: shared_receive_queue,
            lanes: lane,
        }
    }

    /// Returns a line without addresses and bytes.
    fn row(
        &self,
        kind: Kind,
        place: usize,
        id: Option<String>,
        state: &str,
        waits_for: &Option<String>,
    ) -> Row {
        Row {
            key: Key {
                path: self.reading.path.clone(),
                kind,
                id: id.unwrap_or_else(|| format!("#{}", place + 1)),
            },
            reading: self.index,
            place,
            number: self.snapshot.process,
            process: self.process.clone(),
            state: clean(state).into_owned(),
            since: None,
            local: String::new(),
            peer: String::new(),
            bytes: None,
            waits_for: waits_for.as_deref().map(|text| clean(text).into_owned()),
        }
    }

    /// Adds the addresses of a connection.
    fn with_addresses(&self, row: Row, connection: Option<u64>) -> Row {
        match connection.and_then(|id| self.connections.get(&id)) {
            Some(report) => Row { local: address(report.local), peer: address(report.peer), ..row },
            None => row,
        }
    }

    /// Returns the line of an adapter.
    fn adapter(&self, place: usize, report: &AdapterReport) -> Row {
        let state = if report.is_removed { "removed" } else { &report.provider };
        let row = self.row(Kind::Adapter, place, Some(report.id.to_string()), state, &report.waits_for);
        Row { local: clean(&report.name).into_owned(), since: Some(report.age), ..row }
    }

    /// Returns the line of a listener.
    fn listener(&self, place: usize, report: &ListenerReport) -> Row {
        let row = self.row(Kind::Listener, place, None, &report.state, &report.waits_for);
        Row { local: address(report.local), since: Some(report.since_taken), ..row }
    }

    /// Returns the line of a connection.
    fn connection(&self, place: usize, report: &ConnectionReport) -> Row {
        let id = Some(report.id.to_string());
        let row = self.row(Kind::Connection, place, id, report.state.name(), &report.waits_for);
        let queue_pair = report.queue_pair.as_ref();
        // Devices do not count.
        let bytes = queue_pair
            .filter(|queue_pair| queue_pair.number.is_none())
            .map(|queue_pair| (queue_pair.bytes_sent, queue_pair.bytes_received));
        self.with_addresses(Row { since: Some(report.since), bytes, ..row }, Some(report.id))
    }

    /// Returns the line of a stream.
    fn stream(&self, place: usize, report: &StreamReport) -> Row {
        let (state, since) = match (report.read_waits, report.write_waits) {
            _ if report.ended.is_some() => ("ended", Some(report.age)),
            (Some(read), Some(write)) => ("read+write", Some(read.max(write))),
            (Some(read), None) => ("read", Some(read)),
            (None, Some(write)) => ("write", Some(write)),
            (None, None) => ("open", Some(report.age)),
        };
        let id = Some(report.connection.to_string());
        let row = self.row(Kind::Stream, place, id, state, &report.waits_for);
        let bytes = Some((report.bytes_sent, report.bytes_received));
        self.with_addresses(Row { since, bytes, ..row }, Some(report.connection))
    }

    /// Returns the line of a session.
    fn session(&self, place: usize, report: &SessionReport) -> Row {
        let state = match report.lost {
            _ if report.is_over => "ended",
            Some(_) => "lost",
            None => &report.role,
        };
        let id = Some(clean(&report.id).into_owned());
        let row = self.row(Kind::Session, place, id, state, &report.waits_for);
        self.with_addresses(Row { since: report.lost, ..row }, Some(report.connection))
    }

    /// Returns the line of a channel.
    fn channel(&self, place: usize, report: &ChannelReport) -> Row {
        let row = self.row(Kind::Channel, place, None, &report.role, &report.waits_for);
        let row = self.with_addresses(Row { since: report.oldest, ..row }, report.connection);
        Row { peer: clean(&report.peer).into_owned(), ..row }
    }

    /// Returns the line of a completion queue.
    fn completion_queue(&self, place: usize, report: &CompletionQueueReport) -> Row {
        let full = format!("{} of {}", report.waiting, report.depth);
        let state = if report.is_closed { "closed" } else { &full };
        let row = self.row(Kind::CompletionQueue, place, None, state, &report.waits_for);
        Row { since: report.oldest, ..row }
    }

    /// Returns the line of a shared receive queue.
    fn shared_receive_queue(&self, place: usize, report: &SharedReceiveQueueReport) -> Row {
        let state = format!("{} of {}", report.posted, report.depth);
        self.row(Kind::SharedReceiveQueue, place, None, &state, &report.waits_for)
    }

    /// Returns the line of a lane.
    fn lane(&self, place: usize, report: &LaneReport) -> Row {
        let state = format!("{} of {}", report.outstanding, report.slots);
        let row = self.row(Kind::Lane, place, None, &state, &report.waits_for);
        Row { since: Some(report.since_polled), ..row }
    }
}

/// Returns an address as text, if there is one.
fn address(address: Option<SocketAddr>) -> String {
    address.map(|address| address.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn each_object_has_a_line() {
        let rows = rows(&samples::readings());
        let lines: Vec<_> = rows
            .iter()
            .map(|row| format!("{} {} {} {}", row.process, row.key.kind.name(), row.key.id, row.state))
            .collect();
        assert_eq!(
            lines,
            [
                "17 kv adapter 1 soft",
                "17 kv listener #1 listening",
                "17 kv connection 4 connected",
                "17 kv connection 5 accepting",
                "17 kv stream 4 write",
                "17 kv cq #1 3 of 128",
                "18 process  silent",
            ]
        );
        let stream = &rows[4];
        assert_eq!((stream.local.as_str(), stream.peer.as_str()), ("127.0.0.1:7000", "127.0.0.1:41000"));
        assert_eq!(stream.bytes, Some((2_097_152, 12)));
        assert_eq!(stream.since, Some(Duration::from_secs(12)));
        assert_eq!(rows[3].bytes, None);
    }

    #[test]
    fn no_line_has_a_control_character() {
        let readings = samples::hostile();
        let rows = rows(&readings);
        assert_eq!(rows.len(), 4);
        for row in rows {
            let texts = [&row.process, &row.key.id, &row.state, &row.local, &row.peer];
            let clean = texts.into_iter().chain(&row.waits_for).all(|text| !text.contains(char::is_control));
            assert!(clean, "{row:?}");
        }
    }
}
