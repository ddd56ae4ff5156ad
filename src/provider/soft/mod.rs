//! The soft provider: a user-space iWARP stack (MPA, DDP, RDMAP) over tokio's TCP, wire-compatible with Linux `siw`.
//!
//! Each module uses only those above it.
//!
//! | module | what it does |
//! |---|---|
//! | [`config`] | settings |
//! | [`staging`], [`read_ahead`], [`predict`] | bytes read ahead of their place, how many, and the layout of a Read Response |
//! | [`registration`], [`remote_keys`] | registered memory and the keys of peers |
//! | [`handshake`] | the socket between two phases of the handshake, and its lingering close |
//! | [`adapter`] | an opened interface: protection domain, removal |
//! | [`window`] | memory windows, and the requests that bind and invalidate them |
//! | [`shared`], [`receive_queue`] | posted receives, of several queue pairs and of one |
//! | [`batch`], [`send`], [`fill`] | the direction to the peer |
//! | [`stream_frames`] | a message of a byte stream as frames |
//! | [`connection`] | the part of a connection that posting calls and its task share |
//! | [`turn`] | a turn of the reader: its result, and the reasons to stop |
//! | [`receive`], [`control`] | the direction from the peer |
//! | [`reader`] | that direction, shared by the task and the reader of a byte stream |
//! | [`stream`] | the two directions of a byte stream |
//! | [`completion_queue`] | the sockets that a poll of a completion queue looks at |
//! | [`last_words`] | what a peer says while this end disconnects |
//! | [`path_timeout`], [`message_timeout`] | when a silent connection, and an unfinished message, is given up |
//! | [`driver`] | the task of a connection; it reports to an [`Observer`](driver::Observer) |
//! | [`queue_pair`] | both queues, lent to a [`Borrower`](queue_pair::Borrower) |
//! | [`connector`] | the state machine of a connector with its futures: observer and borrower |
//! | [`half_open`] | accepts TCP connections and reads their requests |
//! | [`connect`], [`accept`] | its active and its passive side, and the listener |

pub(crate) mod accept;
pub(crate) mod adapter;
pub(crate) mod batch;
pub(crate) mod completion_queue;
pub(crate) mod config;
pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod connector;
pub(crate) mod control;
mod direct;
pub(crate) mod driver;
pub(crate) mod fill;
mod frame;
pub(crate) mod half_open;
pub(crate) mod handshake;
mod last_words;
mod message_timeout;
mod path_timeout;
mod placement;
pub(crate) mod predict;
pub(crate) mod queue_pair;
mod read_ahead;
pub(crate) mod reader;
pub(crate) mod receive;
pub(crate) mod receive_queue;
pub(crate) mod registration;
pub(crate) mod remote_keys;
pub(crate) mod send;
pub(crate) mod shared;
pub(crate) mod staging;
mod stream;
mod stream_frames;
pub(crate) mod turn;
pub(crate) mod window;
