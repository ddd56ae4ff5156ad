//! The resources of a stream before it is connected: queues, registered memory and its layout.

use std::sync::Arc;

use super::config::StreamConfig;
use crate::cm::{Adapter, AdapterInfo, ProviderKind};
use crate::error::{PostErrorKind, StreamError};
use crate::inflight::{self, LIST, STREAM_KEY, StreamInbox};
use crate::mr::{Region, RemoteRegion};
use crate::proto::rsocket::{Carrier, Hello, Message, Settings, Span, TARGETS};
use crate::qp::{CompletionQueue, QueuePair, QueuePairConfig};
use crate::types::Access;

/// The offset of the ring in the exposed memory, the start of a cache line. The list of targets is before it.
pub(super) const RING: usize = inflight::RING as usize;

/// The number of entries for the peer's list that can be in flight: that of control messages.
pub(super) const ENTRIES: usize = 4;

/// The most reads of memory of the peer at once: enough to have one under way while others begin and end.
const READS: usize = 4;

/// The resources that are created before the request or the accept is sent.
pub(super) struct StreamResources {
    pub(super) settings: Settings,
    pub(super) config: StreamConfig,
    /// None if the provider keeps what has come.
    pub(super) memory: Option<Memory>,
    pub(super) queues: Queues,
    pub(super) queue_pair: QueuePair,
    /// The length up to which writes are inline.
    pub(super) inline: usize,
    /// The provider frames messages itself, and keeps what has come: nothing is registered, and no ring is sent from.
    pub(super) frames: bool,
    /// The most reads of memory of the peer at once.
    pub(super) reads: usize,
}

/// The results of the peer and of this end. Receives have a queue of their own, because nothing waits for the completions of sends
/// while there is room for more: with one queue every write would wake the reader.
pub(super) struct Queues {
    pub(super) incoming: Incoming,
    /// The completions of this end's requests. `None` if the provider frames messages itself: the few requests that are posted complete
    /// through their futures.
    pub(super) initiator: Option<CompletionQueue>,
}

/// The source of the messages of the peer.
pub(super) enum Incoming {
    /// The completions of receives.
    Receives(CompletionQueue),
    /// The provider: nothing is posted for them.
    Inbox(Arc<StreamInbox>),
}

/// Registered memory.
pub(super) struct Memory {
    /// The list of targets and the ring: the peer writes them.
    pub(super) exposed: Region,
    /// The send ring if there is one, then messages to send, entries for the peer's list, and received messages.
    pub(super) own: Region,
    /// The offset of the messages to send.
    pub(super) outgoing: usize,
    pub(super) entries: usize,
    incoming: usize,
}

impl StreamResources {
    /// Creates the queues and the memory, and posts all receives.
    pub(super) async fn new(adapter: &Adapter, config: &StreamConfig) -> Result<Self, StreamError> {
        let info = adapter.properties();
        let config = config.on(info)?;
        let carrier = carrier_of(info);
        let (sends, receives) = (config.send_depth, config.receives(info));
        let frames = info.provider == ProviderKind::Soft;
        // The soft provider frames data itself: only control messages are posted.
        let inline = if frames { Span::LEN } else { config.inline };
        let reads = if frames { 0 } else { READS.min(info.max_queue_depth - sends) };
        let requests = sends + reads;
        let queue_pair = QueuePairConfig::default()
            .send_depth(requests)
            .receive_depth(receives)
            .send_entries(1)
            .receive_entries(1)
            .inline(inline)
            .credited();
        let [send_buffer, receive_buffer] = config.buffers(info);
        let half = u64::from(u32::try_from(receive_buffer / 2).unwrap_or(u32::MAX));
        let (queue_pair, incoming, initiator) = if frames {
            let inbox = StreamInbox::new(receives, 2 * half);
            (queue_pair.inbox(&inbox), Incoming::Inbox(inbox), None)
        } else {
            // A completion queue of the program would have a channel and a task of its own on a device.
            let [received, sent] = adapter.shared_completion_queues([receives, requests])?;
            let queue_pair = queue_pair.receive_completions(&received).send_completions(&sent);
            (queue_pair, Incoming::Receives(received), Some(sent))
        };
        let queue_pair = adapter.queue_pair(queue_pair)?;
        let queues = Queues { incoming, initiator };

        let mut settings = Settings {
            carrier,
            ring: Span {
                address: inflight::RING,
                key: STREAM_KEY,
                length: u32::try_from(2 * half).unwrap_or(u32::MAX),
            },
            targets: Span { address: 0, key: STREAM_KEY, length: TARGETS as u32 },
            receives: u16::try_from(receives).unwrap_or(u16::MAX),
            send_ring: send_buffer,
            send_entries: sends,
            // On devices a write completes when the peer's device has received it, or siw may give a wrong answer.
            confirms: frames,
            // Over iWARP on a device the active end has to speak first.
            grants_ring: frames,
            session: config.session.is_some(),
            takes_bytes: frames,
        };
        let mut memory = None;
        if !frames {
            let registered = Memory::register(adapter, &settings, receive_buffer).await?;
            let span = |region: RemoteRegion| Span {
                address: region.address(),
                key: region.key().0,
                length: region.len(),
            };
            let exposed = &registered.exposed;
            let part = |range| exposed.remote_part(range).map_or_else(|_| Span::default(), span);
            settings.ring = part(RING..exposed.len());
            settings.targets = Span { length: TARGETS as u32, ..part(0..LIST) };
            for slot in 0..receives {
                registered.post_receive(&queue_pair, carrier, slot)?;
            }
            memory = Some(registered);
        }
        Ok(Self { settings, config, memory, queues, queue_pair, inline, frames, reads })
    }

    pub(super) fn private_data(&self) -> [u8; Hello::LEN] {
        self.settings.hello().to_bytes()
    }
}

/// The offsets in the memory that no peer writes, and its length.
struct Layout {
    outgoing: usize,
    entries: usize,
    incoming: usize,
    length: usize,
}

impl Layout {
    fn new(carrier: Carrier, send_ring: usize, send_entries: usize, receives: usize) -> Self {
        let outgoing = send_ring.next_multiple_of(Span::LEN);
        let entries = (outgoing + send_entries * Message::LEN).next_multiple_of(Span::LEN);
        let incoming = entries + ENTRIES * Span::LEN;
        let length = match carrier {
            Carrier::Send => incoming + receives * Message::LEN,
            Carrier::Immediate => incoming,
        };
        Self { outgoing, entries, incoming, length }
    }
}

impl StreamConfig {
    /// Returns the memory that a stream with these settings keeps registered at the adapter, idle or not, in bytes: whole pages of 4 KiB,
    /// which count against the limit of locked memory (`ulimit -l`). 0 on the soft provider, which registers none.
    ///
    /// Some drivers lock the queues of the stream's queue pair, too.
    ///
    /// # Errors
    /// `OutOfRange` for settings with which the adapter makes no stream.
    pub fn locked_memory(&self, adapter: &Adapter) -> Result<usize, StreamError> {
        let info = adapter.properties();
        let config = self.on(info)?;
        if info.provider == ProviderKind::Soft {
            return Ok(0);
        }
        let [send_buffer, receive_buffer] = config.buffers(info);
        let carrier = carrier_of(info);
        let own = Layout::new(carrier, send_buffer, config.send_depth, config.receives(info)).length;
        Ok((RING + receive_buffer).next_multiple_of(PAGE) + own.next_multiple_of(PAGE))
    }
}

/// The size of a page. Larger ones of other machines make a difference of two pages.
const PAGE: usize = 4096;

/// Returns what announces the data of a stream to the peer.
fn carrier_of(info: &AdapterInfo) -> Carrier {
    if info.iwarp { Carrier::Send } else { Carrier::Immediate }
}

/// The error of a message that has no place in the memory of its stream. The sizes of the memory rule it out.
pub(super) const NO_PLACE: PostErrorKind =
    PostErrorKind::InsufficientResources("the memory of the stream has no place for the message");

impl Memory {
    /// Registers the memory of a stream on a device.
    async fn register(
        adapter: &Adapter,
        settings: &Settings,
        receive_buffer: usize,
    ) -> Result<Self, StreamError> {
        let Settings { carrier, send_ring, send_entries, receives, .. } = *settings;
        let Layout { outgoing, entries, incoming, length } =
            Layout::new(carrier, send_ring, send_entries, usize::from(receives));
        let exposed = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let exposed = adapter.register(RING + receive_buffer, exposed).await?;
        let own = adapter.register(length, Access::LOCAL_WRITE).await?;
        Ok(Self { exposed, own, outgoing, entries, incoming })
    }

    pub(super) fn post_receive(
        &self,
        queue_pair: &QueuePair,
        carrier: Carrier,
        slot: usize,
    ) -> Result<(), PostErrorKind> {
        let context = slot as u64;
        match carrier {
            Carrier::Immediate => queue_pair.receive_with((), context).map(drop).map_err(|error| error.kind),
            Carrier::Send => {
                let place = self.incoming + slot * Message::LEN;
                let slice = self.own.slice(place..place + Message::LEN).map_err(|_| NO_PLACE)?;
                queue_pair.receive_with(slice, context).map(drop).map_err(|error| error.kind)
            }
        }
    }

    /// Returns the message in this receive slot.
    pub(super) fn read_message(&self, slot: usize) -> [u8; Message::LEN] {
        let mut bytes = [0; Message::LEN];
        // The slots are in bounds.
        let _ = self.own.read(self.incoming + slot * Message::LEN, &mut bytes);
        bytes
    }

    /// Returns an entry of the list that the peer writes, possibly at this moment. The peer writes the length last, so
    /// a second read after the length has arrived sees the whole entry.
    pub(super) fn read_target(&self, index: usize) -> Span {
        let read = || {
            let mut bytes = [0; Span::LEN];
            // The list is in bounds.
            let _ = self.exposed.read(index * Span::LEN, &mut bytes);
            Span::from_native(bytes)
        };
        read();
        read()
    }

    pub(super) fn clear_target(&self, index: usize) {
        let _ = self.exposed.write(index * Span::LEN, &[0; Span::LEN]);
    }
}

impl Incoming {
    /// Returns whether no message has come.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Receives(queue) => queue.is_empty(),
            Self::Inbox(inbox) => inbox.is_empty() && !inbox.has_unprocessed(),
        }
    }

    /// Returns whether the provider has bytes that can be read.
    pub(super) fn has_bytes(&self) -> bool {
        matches!(self, Self::Inbox(inbox) if inbox.readable() > 0)
    }

    /// Notes that what follows from the messages has been processed.
    pub(super) fn processed(&self) {
        if let Self::Inbox(inbox) = self {
            inbox.processed();
        }
    }

    /// Returns whether a provider that reads for the reader would do so now, as it expects large frames.
    pub(super) fn reads_for_reader(&self) -> bool {
        matches!(self, Self::Inbox(inbox) if inbox.expects_large())
    }

    /// Polls the device for messages that have arrived.
    pub(super) fn progress(&self) {
        match self {
            Self::Receives(queue) => queue.progress(),
            Self::Inbox(_) => {}
        }
    }
}
