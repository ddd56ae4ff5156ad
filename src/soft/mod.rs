// The soft provider: a user-space iWARP stack (MPA, DDP, RDMAP) over tokio's TCP, wire-compatible with Linux
// `siw`.
//
// A module uses those above it. A line with two names has both halves of one thing.
//
// | module | purpose |
// |---|---|
// | `config` | settings |
// | `memory` | registered memory, windows, and the keys that give peers access |
// | `timers` | the time limits of a silent connection and of an unfinished message; a timer that spares the runtime the timers of new connections |
// | `adapter` | an opened interface: protection domain, removal, lingering close of sockets |
// | `receive_queue` | posted receives, of one queue pair and of several |
// | `send_queue`, `framing` | the sending half: the queue of requests, and their frames in batches |
// | `connection`, `receiver` | what posting calls and the task share; the receiving half |
// | `stream` | reads and writes of a byte stream, and its messages as frames |
// | `direct` | a request that is written within the posting call, past the queue |
// | `completion_queue` | the sockets that a poll of a completion queue reads and writes |
// | `driver` | the task of a connection; it reports to an `Observer` |
// | `queue_pair` | both queues of a connection, used by a `QueuePairUser` |
// | `lane` | slots, queue pairs and completions with one owner; requests in batches past the send queue |
// | `connector` | the state machine of a connector with its futures: observer and user |
// | `connect`, `listener` | the active side of a connector; the listener, and the passive side |

pub(crate) mod adapter;
pub(crate) mod completion_queue;
pub(crate) mod config;
pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod connector;
mod direct;
pub(crate) mod driver;
pub(crate) mod framing;
pub(crate) mod lane;
pub(crate) mod listener;
pub(crate) mod memory;
pub(crate) mod queue_pair;
pub(crate) mod receive_queue;
pub(crate) mod receiver;
pub(crate) mod send_queue;
mod stream;
pub(crate) mod timers;

pub use config::SoftConfig;

pub use crate::net::capture::Capture;
