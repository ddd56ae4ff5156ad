//! What can happen, and in what kind of world.

use std::time::Duration;

use super::link::Manner;
use crate::status::Status;
use crate::types::ReadLimits;

/// Shorthand for the scale of all stories.
pub(super) const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// What a user does, or what befalls an end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Act {
    /// `Bind`.
    Bind,
    /// `Connect`, with so many bytes of private data and for so long.
    Connect { data: usize, limits: ReadLimits, patience: Option<Duration>, busy: bool },
    /// `CompleteConnect`.
    Complete,
    /// `Accept`.
    Accept { data: usize, limits: ReadLimits, busy: bool },
    /// `Reject`.
    Reject { data: usize },
    /// `NotifyDisconnect`.
    Notify,
    /// `Disconnect`.
    Disconnect { patience: Duration },
    /// `CancelOverlappedRequests`.
    Cancel,
    /// The last release.
    Release,
    /// `GetConnectionRequest`, with a new connector when this one is used up.
    Fetch,
    /// Posts a message.
    Send,
    /// `Listen` on the end's host, after a close.
    Listen,
    /// The listener of the end's host is released.
    CloseListener,
    /// The queue pair of the end is removed.
    QueuePairRemoved,
    /// The adapter of the end's host is removed.
    DeviceRemoved,
    /// The provider's own timer runs out.
    TimedOut,
    /// The provider gives up the path.
    PathLost,
    /// The provider fails for another reason.
    Failed,
    /// From now on nothing of what the end sent or sends arrives.
    BlackHole,
    /// From now on everything takes longer.
    Slow(Duration),
    /// Something between the ends resets the stream.
    Reset,
    /// Something between the ends closes the stream.
    Close,
}

/// The connect that both ends agree about.
pub(super) const CONNECT: Act =
    Act::Connect { data: 20, limits: ReadLimits::new(16, 16), patience: None, busy: false };
/// The accept that both ends agree about.
pub(super) const ACCEPT: Act = Act::Accept { data: 30, limits: ReadLimits::new(16, 16), busy: false };
/// A disconnect that waits long enough.
pub(super) const DISCONNECT: Act = Act::Disconnect { patience: ms(1_000) };

/// What becomes of the next connect before it is on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Road {
    /// Nothing.
    #[default]
    Open,
    /// No route to the network, or no such host.
    None { network: bool },
    /// No local port.
    NoPort,
}

/// What the hosts and the streams between them are like.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) manner: Manner,
    /// Per host: CRC is asked for.
    pub(super) crc: [bool; 2],
    /// Per host: the read limits of the adapter.
    pub(super) adapter: [ReadLimits; 2],
    /// Per side: the stream is read while the user makes up its mind.
    pub(super) watchful: [bool; 2],
    /// The initiator speaks revision 1, which knows neither read limits nor peer-to-peer.
    pub(super) plain: bool,
    /// How long CompleteConnect takes to send its frame, and then to report.
    pub(super) complete: [Duration; 2],
    /// What else happens at the same instant: acts, arrivals, deadlines and the provider's own steps, in order.
    pub(super) order: [Turn; 4],
    /// An end of stream that meets our own is reported as the peer's disconnect, not as its answer.
    pub(super) eager: bool,
    /// How many requests wait unfetched.
    pub(super) backlog: usize,
    pub(super) road: Road,
    pub(super) bind_fails: Option<Status>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            manner: Manner { latency: ms(10), chunk: 1_460, gap: Duration::ZERO },
            crc: [false, true],
            adapter: [ReadLimits::new(16, 16); 2],
            watchful: [true; 2],
            plain: false,
            complete: [Duration::ZERO; 2],
            order: [Turn::Arrival, Turn::Own, Turn::Deadline, Turn::Act],
            eager: false,
            backlog: 0,
            road: Road::Open,
            bind_fails: None,
        }
    }
}

/// What may be due at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// A segment arrives.
    Arrival,
    /// A step of the provider that takes time.
    Own,
    /// A deadline passes.
    Deadline,
    /// The user acts.
    Act,
}
