//! The reports of a [`Snapshot`]: plain data, without a handle to anything.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The number of the oldest requests of a queue that a report lists.
pub(crate) const LISTED: usize = 8;

/// What a process has of this crate at one moment. The moment is not quite one: each object is locked for itself.
///
/// As JSON, times are numbers of seconds, and addresses and names are strings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Snapshot {
    /// The version of this structure. Later versions of the crate with the same number only add fields; what a snapshot lacks is read as
    /// nothing.
    pub version: u32,
    /// The number of the process.
    pub process: u32,
    /// The name of its program.
    pub program: String,
    /// Every open adapter.
    pub adapters: Vec<AdapterReport>,
    /// Every listener, also those that are not bound.
    pub listeners: Vec<ListenerReport>,
    /// Every connector: connections, attempts at one, and what is left of one.
    pub connections: Vec<ConnectionReport>,
    /// Every completion queue that the program polls.
    pub completion_queues: Vec<CompletionQueueReport>,
    /// Every shared receive queue.
    pub shared_receive_queues: Vec<SharedReceiveQueueReport>,
    /// Every lane.
    pub lanes: Vec<LaneReport>,
    /// Every end of a byte stream.
    pub streams: Vec<StreamReport>,
    /// Every session of streams.
    pub sessions: Vec<SessionReport>,
    /// Every connection of calls.
    pub channels: Vec<ChannelReport>,
    /// Why there is no more than this: the [`Server`](super::Server) could not make the snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Snapshot {
    /// The version of the structure that this version of the crate makes.
    pub const VERSION: u32 = 1;
}

/// An open adapter. The streams of its events ([`Adapter::events`](crate::Adapter::events)) have no report: their tasks wait for a change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct AdapterReport {
    /// The number of the adapter in this process; other reports name it by this number.
    pub id: u64,
    /// The name of the interface or device.
    pub name: String,
    /// The provider: `soft` or `verbs`.
    pub provider: String,
    /// The addresses that it had when they were last listed.
    pub addresses: Vec<IpAddr>,
    /// The adapter has been removed.
    pub is_removed: bool,
    /// The time since it was opened.
    #[serde(with = "seconds")]
    pub age: Duration,
    /// Why what belongs to it makes no progress.
    pub waits_for: Option<String>,
}

/// A listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ListenerReport {
    /// Its adapter.
    pub adapter: u64,
    /// Its state: `idle`, `bound`, `listening`, `closed` or `dead`.
    pub state: String,
    /// Its address, if it is bound.
    pub local: Option<SocketAddr>,
    /// The number of requests that may wait.
    pub backlog: usize,
    /// The number of requests that the program has not taken.
    pub waiting: usize,
    /// The number of calls that wait for a request.
    pub calls: usize,
    /// The time since the program has last taken a request, or since one has come while none waited.
    #[serde(with = "seconds")]
    pub since_taken: Duration,
    /// Why it makes no progress.
    pub waits_for: Option<String>,
}

/// The state of a connector. The names are those of the gauge `tokio_rdma_connections`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ConnectionState {
    /// It has no address.
    #[default]
    Idle,
    /// It has an address, and no peer.
    Bound,
    /// A connect waits for the answer of the peer.
    Connecting,
    /// The peer has accepted, and the program has neither completed nor rejected.
    Replied,
    /// The program has completed, and the connection is not established yet.
    Completing,
    /// A peer has asked, and the program has neither accepted nor rejected.
    Requested,
    /// The program has accepted, and the peer has not completed.
    Accepting,
    /// The connection is established.
    Connected,
    /// The peer has ended the connection, or the connection was lost; the program has not disconnected.
    PeerGone,
    /// A disconnect waits for the peer.
    Disconnecting,
    /// The connection has ended.
    Disconnected,
    /// The adapter was removed.
    Dead,
    /// A state that a later version has added.
    #[serde(other)]
    Unknown,
}

impl ConnectionState {
    /// Returns the name, as it is in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Bound => "bound",
            Self::Connecting => "connecting",
            Self::Replied => "replied",
            Self::Completing => "completing",
            Self::Requested => "requested",
            Self::Accepting => "accepting",
            Self::Connected => "connected",
            Self::PeerGone => "peer_gone",
            Self::Disconnecting => "disconnecting",
            Self::Disconnected => "disconnected",
            Self::Dead => "dead",
            Self::Unknown => "unknown",
        }
    }
}

/// A connector, with the queue pair that it uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ConnectionReport {
    /// The number of the connection, which is that of its events of `tracing`.
    pub id: u64,
    /// Its adapter.
    pub adapter: u64,
    /// This end made the request (`active`), or got it (`passive`).
    pub role: Option<String>,
    /// Its state.
    pub state: ConnectionState,
    /// The time that it has been in this state.
    #[serde(with = "seconds")]
    pub since: Duration,
    /// The local address.
    pub local: Option<SocketAddr>,
    /// The address of the peer.
    pub peer: Option<SocketAddr>,
    /// The last call or report, with the time since then. A call that was refused counts, too.
    pub last_event: Option<EventReport>,
    /// The cause of the end, if it has ended.
    pub ended: Option<String>,
    /// A connect waits for its turn: for its queue pair, or for a place among those of the adapter.
    pub is_in_line: bool,
    /// The queue pair, while it uses one.
    pub queue_pair: Option<QueuePairReport>,
    /// The TCP connection, with the soft provider. `None` with MPTCP, of whose paths the kernel reports the first alone.
    pub tcp: Option<TcpReport>,
    /// Why it makes no progress.
    pub waits_for: Option<String>,
}

/// Something that happened to a connector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct EventReport {
    /// The call or the report.
    pub name: String,
    /// The time since then.
    #[serde(with = "seconds")]
    pub age: Duration,
}

/// A queue pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct QueuePairReport {
    /// The number that the device has given it (`qp_num`); `None` with the soft provider.
    pub number: Option<u32>,
    /// The requests that are not receives.
    pub sends: WorkQueueReport,
    /// The receives of its own.
    pub receives: WorkQueueReport,
    /// It takes receives of a shared queue.
    pub shared_receives: bool,
    /// Why its send queue does not go on, as far as the provider knows.
    pub send_state: SendState,
    /// A message of the peer has arrived that waits for a shared receive.
    pub awaits_receive: bool,
    /// The number of reads and atomics of this end that the peer has not answered; with the soft provider.
    pub reads_unanswered: usize,
    /// The number of them that may be under way at once; with the soft provider.
    pub reads_limit: usize,
    /// The number of reads and atomics of the peer that this end has not answered; with the soft provider.
    pub reads_to_answer: usize,
    /// The number of bytes that were given to TCP, with headers; with the soft provider.
    pub bytes_sent: u64,
    /// The number of bytes that were read from TCP, with headers; with the soft provider.
    pub bytes_received: u64,
}

/// The state of a send queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SendState {
    /// Nothing holds it.
    #[default]
    Open,
    /// The passive end may send when the first message of the active end has come.
    AwaitsFirstMessage,
    /// The socket is full.
    SocketFull,
    /// As many reads as allowed are unanswered, and another request is one.
    ReadLimit,
    /// The connection has ended.
    Closed,
    /// A state that a later version has added.
    #[serde(other)]
    Unknown,
}

/// One queue of a queue pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct WorkQueueReport {
    /// The most requests that it holds; 0 where nothing is queued in this process.
    pub depth: usize,
    /// The number of requests that the provider has.
    pub outstanding: usize,
    /// The number of requests that have completed, and whose futures the program has not polled.
    pub uncollected: usize,
    /// The number of requests that have completed well since the queue pair was made.
    pub completed: u64,
    /// The oldest requests that the provider has, at most 8 of them.
    pub oldest: Vec<RequestReport>,
}

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RequestReport {
    /// The kind, by the name of [`OpKind`](crate::types::OpKind).
    pub kind: String,
    /// The length of its memory in bytes.
    pub bytes: usize,
    /// The time since it was posted.
    #[serde(with = "seconds")]
    pub age: Duration,
}

/// The TCP connection below a connection of the soft provider (`TCP_INFO`, tcp(7)).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct TcpReport {
    /// The state, by the name that ss(8) gives it.
    pub state: String,
    /// The smoothed round-trip time.
    #[serde(with = "seconds")]
    pub round_trip: Duration,
    /// The variance of it.
    #[serde(with = "seconds")]
    pub round_trip_variance: Duration,
    /// The number of bytes that the kernel has, and the kernel of the peer has not acknowledged.
    pub unacknowledged: usize,
    /// The number of them that have not been sent; the window of the peer, or congestion, holds them.
    pub unsent: usize,
    /// The window that the peer has last announced, in bytes; 0 also if the kernel does not tell.
    pub peer_window: usize,
    /// The number of times that segments were sent again.
    pub retransmits: u32,
    /// The number of times that the oldest segment was sent again without an answer, or the peer was asked for room.
    pub unanswered_probes: u32,
    /// The time since the last segment with data was sent.
    #[serde(with = "seconds")]
    pub since_sent: Duration,
    /// The time since data has come.
    #[serde(with = "seconds")]
    pub since_received: Duration,
    /// The time since an acknowledgement has come.
    #[serde(with = "seconds")]
    pub since_acknowledged: Duration,
}

/// A completion queue that the program polls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct CompletionQueueReport {
    /// Its adapter.
    pub adapter: u64,
    /// The number of completions for which there is room.
    pub depth: usize,
    /// The number of completions that wait to be polled.
    pub waiting: usize,
    /// The time since the oldest of them has come, if there is one.
    #[serde(with = "seconds::option")]
    pub oldest: Option<Duration>,
    /// The number of tasks that wait for a notification.
    pub tasks: usize,
    /// It has lost a completion, or its adapter was removed.
    pub is_closed: bool,
    /// Why its completions are not taken.
    pub waits_for: Option<String>,
}

/// A shared receive queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SharedReceiveQueueReport {
    /// Its adapter.
    pub adapter: u64,
    /// The number of receives for which there is room.
    pub depth: usize,
    /// The number of receives that are posted.
    pub posted: usize,
    /// The number of connections whose message waits for a receive; with the soft provider.
    pub messages_waiting: usize,
    /// Why messages wait.
    pub waits_for: Option<String>,
}

/// A lane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct LaneReport {
    /// Its adapter.
    pub adapter: u64,
    /// The number of its slots.
    pub slots: usize,
    /// The number of queue pairs for which it has places.
    pub queue_pairs: usize,
    /// The number of requests whose completions no poll had returned after the last poll, or the last call that rings the doorbell.
    pub outstanding: usize,
    /// The number of times that the program has polled.
    pub polls: u64,
    /// A task waits for completions.
    pub is_waiting: bool,
    /// The time for which snapshots have seen no poll: a poll does not look at the clock.
    #[serde(with = "seconds")]
    pub since_polled: Duration,
    /// Why it makes no progress.
    pub waits_for: Option<String>,
}

/// One end of a byte stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct StreamReport {
    /// The connection that it uses now.
    pub connection: u64,
    /// The time since this connection became that of the stream.
    #[serde(with = "seconds")]
    pub age: Duration,
    /// The number of bytes that the program has written.
    pub bytes_sent: u64,
    /// The number of bytes that the program has read.
    pub bytes_received: u64,
    /// The number of messages that this end may send before the peer gives more credits.
    pub credits: usize,
    /// The number of bytes that this end may send before the program of the peer has read more.
    pub room: usize,
    /// The number of messages that the peer may send before it is given more credits.
    pub peer_credits: usize,
    /// The number of bytes that the peer may send before this program has read more.
    pub peer_room: usize,
    /// The number of bytes that have arrived, and that this program has not read.
    pub unread: usize,
    /// The number of messages that have arrived, and that no call of this program has processed; on devices.
    pub unprocessed: usize,
    /// The number of bytes that were sent, and that the program of the peer has not read as far as it has said. It says so for half of
    /// its memory at once.
    pub unread_by_peer: usize,
    /// The number of messages that were sent, and whose requests have not completed.
    pub outstanding: usize,
    /// The time that a read has waited, if one waits.
    #[serde(with = "seconds::option")]
    pub read_waits: Option<Duration>,
    /// The time that a write, a flush or a shutdown has waited, if one waits.
    #[serde(with = "seconds::option")]
    pub write_waits: Option<Duration>,
    /// The time since the read that waits was last polled. `None` if none waits, or if it is a future of this crate
    /// ([`readable`](crate::RdmaStream::readable), [`peek`](crate::RdmaStream::peek)), whose wait ends when it is dropped.
    ///
    /// Nothing says whether the future of an `AsyncRead` was dropped, as it only polls the stream. Its wait counts until something
    /// wakes it, until the next read, until the stream is split, or its read half or the stream itself is dropped. So one that was
    /// last polled long ago may have been given up.
    #[serde(with = "seconds::option")]
    pub read_polled: Option<Duration>,
    /// The time since the write that waits was last polled, as [`read_polled`](Self::read_polled) is for a read.
    #[serde(with = "seconds::option")]
    pub write_polled: Option<Duration>,
    /// The peer has closed its direction.
    pub peer_closed: bool,
    /// The cause of the end, if it has ended.
    pub ended: Option<String>,
    /// The session, if it has one that is known.
    pub session: Option<String>,
    /// Why it makes no progress.
    pub waits_for: Option<String>,
}

/// A session of streams.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SessionReport {
    /// A short name, which the streams of it have too.
    pub id: String,
    /// This end connects again (`active`), or waits for the peer to (`passive`).
    pub role: String,
    /// The connection that it uses now, or used last.
    pub connection: u64,
    /// The time without a connection, if it has none.
    #[serde(with = "seconds::option")]
    pub lost: Option<Duration>,
    /// The time after which it gives up.
    #[serde(with = "seconds")]
    pub gives_up_after: Duration,
    /// The number of times that the stream has gone on over another connection.
    pub resumed: u64,
    /// The stream has ended.
    pub is_over: bool,
    /// Why it makes no progress.
    pub waits_for: Option<String>,
}

/// A connection of calls (`tokio-rdma-rpc`): that of a channel, or one of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ChannelReport {
    /// `client` or `server`.
    pub role: String,
    /// The connection of its stream, if that is an [`RdmaStream`](crate::RdmaStream). A stream with a session may use another by now.
    pub connection: Option<u64>,
    /// The server as the client names it; empty at the server.
    pub peer: String,
    /// The number of calls that are under way.
    pub calls: usize,
    /// The time since the oldest of them began.
    #[serde(with = "seconds::option")]
    pub oldest: Option<Duration>,
    /// The number of calls that the server takes beside these; at the client.
    pub places: usize,
    /// The number of calls that wait for room to send.
    pub blocked: usize,
    /// The number of calls whose body has come, in part at least, and is not read.
    pub unread: usize,
    /// The number of bytes that are to be written.
    pub unsent: usize,
    /// Why it makes no progress.
    pub waits_for: Option<String>,
}

/// Times as numbers of seconds, in JSON.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    /// The longest time that a number stands for. Others are read as this.
    const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

    pub(super) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(time.as_secs_f64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        f64::deserialize(deserializer).map(duration)
    }

    fn duration(seconds: f64) -> Duration {
        Duration::try_from_secs_f64(seconds).unwrap_or(if seconds > 0.0 { LONGEST } else { Duration::ZERO })
    }

    /// The same for a time that there may not be.
    pub(super) mod option {
        use super::*;

        pub(in super::super) fn serialize<S: Serializer>(
            time: &Option<Duration>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            match time {
                Some(time) => serializer.serialize_some(&time.as_secs_f64()),
                None => serializer.serialize_none(),
            }
        }

        pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Option<Duration>, D::Error> {
            Ok(Option::<f64>::deserialize(deserializer)?.map(duration))
        }
    }
}
