// The soft provider: a user-space iWARP stack (MPA, DDP, RDMAP) over tokio's TCP, wire-compatible with Linux
// `siw`.
//
// Each module uses only those above it.
//
// | module | purpose |
// |---|---|
// | `config` | settings |
// | `staging`, `read_ahead`, `predict` | staged bytes, their limit, the layout of a Read Response |
// | `memory` | registered memory: regions, windows, and the keys of peers |
// | `adapter` | an opened interface: protection domain, removal |
// | `receive_queue` | posted receives, of one queue pair and of several |
// | `send_queue`, `framing` | the sending half: the send queue, and batches of frames |
// | `stream` | reads and writes of a byte stream, and its messages as frames |
// | `connection` | the part of a connection that posting calls and its task share |
// | `turn` | a turn of the reader: its result, and the reasons to stop |
// | `receive`, `control` | the receiving half: payload, and messages without memory of their own |
// | `reader` | the receiving half, shared by the task and the reader of a byte stream |
// | `completion_queue` | the sockets that a poll of a completion queue reads and writes |
// | `last_words` | the search for a Terminate while this end disconnects |
// | `timers` | the time limits of a silent connection and of an unfinished message |
// | `driver` | the task of a connection; it reports to an `Observer` |
// | `queue_pair` | both queues of a connection, used by a `Borrower` |
// | `connector` | the state machine of a connector with its futures: observer and borrower |
// | `connect`, `listener` | the active side of a connector, and the listener with the passive side |

pub(crate) mod adapter;
pub(crate) mod completion_queue;
pub(crate) mod config;
pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod connector;
pub(crate) mod control;
mod direct;
pub(crate) mod driver;
mod frame;
pub(crate) mod framing;
mod last_words;
pub(crate) mod listener;
pub(crate) mod memory;
mod placement;
pub(crate) mod predict;
pub(crate) mod queue_pair;
mod read_ahead;
pub(crate) mod reader;
pub(crate) mod receive;
pub(crate) mod receive_queue;
pub(crate) mod send_queue;
pub(crate) mod staging;
mod stream;
pub(crate) mod timers;
pub(crate) mod turn;

pub use config::SoftConfig;

pub use crate::net::capture::Capture;
