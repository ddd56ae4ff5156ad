//! What a stream is made of before there is a connection: queues, and memory with its places.

use super::config::StreamConfig;
use crate::cm::{Adapter, ProviderKind};
use crate::error::{PostErrorKind, StreamError};
use crate::mr::{Region, RemoteRegion};
use crate::proto::rsocket::{Carrier, Hello, Message, Settings, Span, TARGETS};
use crate::qp::{CompletionQueue, CompletionQueueConfig, QueuePair, QueuePairConfig};
use crate::types::Access;

/// The list of targets, at the start of the exposed memory; the ring is behind it, where a cache line begins.
pub(super) const RING: usize = 64;

/// Entries for the peer's list that are on their way: as many as control messages can be.
pub(super) const ENTRIES: usize = 4;

/// What is made before the peer is asked, or answered.
pub(super) struct Prepared {
    pub(super) settings: Settings,
    pub(super) config: StreamConfig,
    pub(super) memory: Memory,
    pub(super) queues: Queues,
    pub(super) queue_pair: QueuePair,
    /// Writes of so many bytes go out inline.
    pub(super) inline: usize,
}

/// Where results come: those of receives apart from the others, which nobody waits for as long as there is room for more.
/// With one queue every write would wake the reader.
pub(super) struct Queues {
    pub(super) receives: CompletionQueue,
    pub(super) initiator: CompletionQueue,
}

/// Registered memory.
pub(super) struct Memory {
    /// The list of targets and the ring: the peer writes them.
    pub(super) exposed: Region,
    /// The ring that is sent from, then messages to be sent, entries for the peer's list, and messages received.
    pub(super) own: Region,
    /// Where these begin.
    pub(super) outgoing: usize,
    pub(super) entries: usize,
    incoming: usize,
}

impl Prepared {
    /// Makes the queues and the memory, and posts all receives.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub(super) async fn new(adapter: &Adapter, config: &StreamConfig) -> Result<Self, StreamError> {
        let info = adapter.info();
        let config = config.on(&info)?;
        let carrier = if info.iwarp { Carrier::Send } else { Carrier::Immediate };
        let (sends, receives) = (config.send_depth, config.receive_depth);
        // The soft provider copies what is short in any case: inline it would be copied once more.
        let inline = if info.provider == ProviderKind::Soft { 0 } else { config.inline };
        let queue = |depth| adapter.completion_queue(CompletionQueueConfig::default().depth(depth));
        let queues = Queues { receives: queue(receives)?, initiator: queue(sends)? };
        let queue_pair = QueuePairConfig::default()
            .send_depth(sends)
            .receive_depth(receives)
            .send_entries(1)
            .receive_entries(1)
            .inline(inline)
            .receive_completions(&queues.receives)
            .send_completions(&queues.initiator);
        let queue_pair = adapter.queue_pair(queue_pair)?;

        let [send_buffer, receive_buffer] = config.buffers(&info);
        let outgoing = send_buffer.next_multiple_of(Span::LEN);
        let entries = outgoing + sends * Message::LEN;
        let entries = entries.next_multiple_of(Span::LEN);
        let incoming = entries + ENTRIES * Span::LEN;
        let length = match carrier {
            Carrier::Send => incoming + receives * Message::LEN,
            Carrier::Immediate => incoming,
        };
        let exposed = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let exposed = adapter.register(RING + receive_buffer, exposed).await?;
        let own = adapter.register(length, Access::LOCAL_WRITE).await?;

        // The lengths are checked: they fit.
        let span = |region: RemoteRegion| Span {
            address: region.address(),
            key: region.key().0,
            length: region.len(),
        };
        let part = |range| exposed.remote_part(range).map_or_else(|_| Span::default(), span);
        let settings = Settings {
            carrier,
            ring: part(RING..exposed.len()),
            targets: Span { length: TARGETS as u32, ..part(0..TARGETS * Span::LEN) },
            receives: u16::try_from(receives).unwrap_or(u16::MAX),
            send_ring: send_buffer,
            send_entries: sends,
        };
        let memory = Memory { exposed, own, outgoing, entries, incoming };
        for slot in 0..receives {
            memory.post_receive(&queue_pair, carrier, slot)?;
        }
        Ok(Self { settings, config, memory, queues, queue_pair, inline })
    }

    pub(super) fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// The private data that says what this end brings.
    pub(super) fn private_data(&self) -> [u8; Hello::LEN] {
        self.settings.hello().to_bytes()
    }
}

impl Memory {
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
                let Ok(slice) = self.own.slice(place..place + Message::LEN) else {
                    return Err(PostErrorKind::AccessViolation);
                };
                queue_pair.receive_with(slice, context).map(drop).map_err(|error| error.kind)
            }
        }
    }

    /// The message that a receive has left here.
    pub(super) fn received(&self, slot: usize) -> [u8; Message::LEN] {
        let mut bytes = [0; Message::LEN];
        // The slots are in bounds.
        let _ = self.own.read(self.incoming + slot * Message::LEN, &mut bytes);
        bytes
    }

    /// An entry of the list that the peer writes, perhaps just now. The length is written last: once that is there, so is
    /// the rest, for whoever looks again.
    pub(super) fn target(&self, index: usize) -> Span {
        let look = || {
            let mut bytes = [0; Span::LEN];
            // The list is in bounds.
            let _ = self.exposed.read(index * Span::LEN, &mut bytes);
            Span::from_native(bytes)
        };
        look();
        look()
    }

    pub(super) fn clear_target(&self, index: usize) {
        let _ = self.exposed.write(index * Span::LEN, &[0; Span::LEN]);
    }
}
