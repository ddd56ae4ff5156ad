//! The messages of a byte stream, for a provider that frames them itself.
//!
//! On a device a stream posts requests for registered memory. The soft provider can do without: it takes the bytes of
//! the caller straight to the socket, and returns how many there was room for. It reads into the memory of the caller
//! what the peer writes to the place that is read next. It delivers the Sends of the peer to the stream where they
//! arrive, or, while the stream is in use, puts them into its inbox: no receive is posted for them.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use bytes::BufMut;
use tokio::io::ReadBuf;

use super::work::RemoteAddress;
#[cfg(feature = "soft")]
use crate::inflight::WakeList;
#[cfg(feature = "soft")]
use crate::memory::Target;
use crate::sync::Mutex;
#[cfg(feature = "soft")]
use crate::sync::MutexGuard;

/// The length of the payload of a Send of a stream.
pub(crate) const WORD: usize = 4;

/// A message: bytes of the caller's for memory of the peer, and behind them a Send with their number.
pub(crate) struct StreamMessage<'a> {
    pub(crate) parts: &'a [IoSlice<'a>],
    /// The number of bytes that the peer has room for, at most as many as there are. At least one.
    pub(crate) length: usize,
    pub(crate) to: RemoteAddress,
    /// The payload of the Send behind so many bytes.
    pub(crate) describe: fn(usize) -> [u8; WORD],
}

/// The result of a write of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streamed {
    /// A message with so many bytes is on its way, at least one.
    Sent(usize),
    /// The connection takes nothing now. The waker of the call is woken when it may.
    Blocked,
}

/// The bytes of a connection by which the end of a stream distinguishes a slow path from a peer that does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The number of bytes that the peer's kernel has acknowledged; `None` if it has acknowledged all.
    pub(crate) acknowledged: Option<u64>,
    /// The number of bytes that have come from the peer: its answer is behind what it had queued.
    pub(crate) received: u64,
}

impl Progress {
    /// So many bytes that come from the peer are progress: empty messages are not.
    const RECEIVED: u64 = 64 * 1024;

    /// Returns whether the connection has made progress since then.
    pub(crate) fn is_beyond(&self, before: &Self) -> bool {
        let has_acknowledged = match (before.acknowledged, self.acknowledged) {
            (Some(before), Some(now)) => now > before,
            // The last byte is progress, too. What is sent later, such as a probe, is none for a peer that had everything.
            (Some(_), None) => true,
            (None, _) => false,
        };
        has_acknowledged || self.received >= before.received + Self::RECEIVED
    }
}

/// The buffer of a reader.
pub(crate) trait ReadInto: BufMut {
    /// Returns the part of it that is not filled, as far as it is initialised.
    fn initialized(&mut self) -> &mut [u8];

    /// Marks the first bytes of that part as filled.
    fn advance(&mut self, length: usize);
}

impl ReadInto for ReadBuf<'_> {
    fn initialized(&mut self) -> &mut [u8] {
        let filled = self.filled().len();
        &mut self.initialized_mut()[filled..]
    }

    fn advance(&mut self, length: usize) {
        ReadBuf::advance(self, length);
    }
}

/// The room of a reader, for payload that the peer writes to the place that is read next.
pub(crate) struct StreamRoom<'a> {
    into: &'a mut (dyn ReadInto + 'a),
    /// The number of bytes that it still takes.
    left: usize,
    filled: usize,
    /// The place in the memory of this end that the next byte is for.
    place: RemoteAddress,
}

impl<'a> StreamRoom<'a> {
    /// Creates room for at most `most` of the bytes that are written to `place` and behind it.
    pub(crate) fn new(into: &'a mut (dyn ReadInto + 'a), most: usize, place: RemoteAddress) -> Self {
        let left = most.min(into.remaining_mut());
        Self { into, left, filled: 0, place }
    }

    /// Returns the number of bytes that it has been filled with.
    pub(crate) fn filled(&self) -> usize {
        self.filled
    }
}

#[cfg(feature = "soft")]
impl StreamRoom<'_> {
    /// Returns how many bytes of a payload of this length at this place it takes, from the first one on. None if the payload is
    /// for another place than the next.
    pub(crate) fn takes(&self, place: RemoteAddress, length: usize) -> usize {
        if place == self.place { length.min(self.left) } else { 0 }
    }

    /// Returns the room for the next `length` bytes. [`fill`](Self::fill) follows.
    pub(crate) fn target(&mut self, length: usize) -> Target<'_> {
        Target::append(&mut *self.into, length.min(self.left))
    }

    /// Counts bytes that have been received in [`target`](Self::target).
    pub(crate) fn fill(&mut self, length: usize) {
        self.left -= length;
        self.filled += length;
        self.place.address = self.place.address.wrapping_add(length as u64);
    }

    /// Copies bytes that it [`takes`](Self::takes).
    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        self.into.put_slice(bytes);
        self.fill(bytes.len());
    }

    pub(crate) fn is_full(&self) -> bool {
        self.left == 0
    }

    /// Returns the room as memory, as far as it is initialised, if the next byte is for this place.
    /// [`advance`](Self::advance) follows.
    pub(crate) fn initialized(&mut self, place: RemoteAddress) -> &mut [u8] {
        if place == self.place { self.rest() } else { &mut [] }
    }

    /// Returns the room as memory, as far as it is initialised.
    pub(crate) fn rest(&mut self) -> &mut [u8] {
        let rest = self.into.initialized();
        let length = self.left.min(rest.len());
        &mut rest[..length]
    }

    /// Marks the next bytes of the memory as filled.
    pub(crate) fn advance(&mut self, length: usize) {
        self.into.advance(length);
        self.fill(length);
    }
}

/// A Send of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamSend {
    Word([u8; WORD]),
    /// One of another length, in bytes, or of another kind.
    Other(usize),
}

/// The stream that an inbox belongs to. Its methods are called while the provider has its own locks.
pub(crate) trait StreamSink: Send + Sync {
    /// Takes a Send that has arrived, if no other thread uses the stream and the Send only announces data. Returns whether
    /// it did: if not, nothing has changed, and the Send waits in the inbox for a task of the stream.
    fn take(&self, word: [u8; WORD]) -> bool;

    /// Collects the wakers of the tasks that wait for a Send or for the end.
    #[cfg(feature = "soft")]
    fn collect_wakers(&self, wakes: &mut WakeList);
}

/// The Sends of the peer of a stream: to the stream itself, or in order into a queue until the stream takes them.
#[derive(Debug)]
pub(crate) struct StreamInbox {
    inbox: Mutex<Inbox>,
    /// There is news in the inbox.
    has_news: AtomicBool,
    /// The number of Sends that the stream has taken where they arrived, until it has processed what follows from them.
    unprocessed: AtomicUsize,
    /// Tasks wait for news.
    listens: AtomicBool,
    /// The next frames are likely to be large: then the provider reads for a reader that waits.
    expects_large: AtomicBool,
    sink: OnceLock<Weak<dyn StreamSink>>,
    depth: usize,
    ring: u64,
}

#[derive(Debug, Default)]
struct Inbox {
    sends: VecDeque<StreamSend>,
    /// Nothing has come for a while.
    idle: bool,
    end: End,
}

/// The end of the messages, and whether the stream has taken it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    #[default]
    Open,
    /// Nothing more comes, and that was not taken yet.
    Reached,
    Told,
}

/// The next news in an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamNews {
    Send(StreamSend),
    /// Nothing has been written for the stream for a while: memory that it does not use can be given back.
    Idle,
    /// Nothing more comes. Taken once.
    Ended,
}

impl StreamInbox {
    /// Creates an inbox for at most `depth` Sends at a time. The ring that the peer writes is from the offset `ring`
    /// on.
    pub(crate) fn new(depth: usize, ring: u64) -> Arc<Self> {
        Arc::new(Self {
            inbox: Mutex::default(),
            has_news: AtomicBool::new(false),
            unprocessed: AtomicUsize::new(0),
            listens: AtomicBool::new(false),
            expects_large: AtomicBool::new(false),
            sink: OnceLock::new(),
            depth,
            ring,
        })
    }

    /// Sets the stream, once.
    pub(crate) fn connect(&self, sink: Weak<dyn StreamSink>) {
        let _ = self.sink.set(sink);
    }

    /// Takes the next news, if there is one.
    pub(crate) fn take(&self) -> Option<StreamNews> {
        if self.is_empty() {
            return None;
        }
        let mut inbox = self.inbox.lock();
        let news = match (inbox.sends.pop_front(), inbox.end) {
            (Some(send), _) => Some(StreamNews::Send(send)),
            (None, _) if std::mem::take(&mut inbox.idle) => Some(StreamNews::Idle),
            (None, End::Reached) => {
                inbox.end = End::Told;
                Some(StreamNews::Ended)
            }
            (None, End::Open | End::Told) => None,
        };
        self.has_news.store(!inbox.is_empty(), Ordering::SeqCst);
        news
    }

    /// Returns whether there is no news.
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_news.load(Ordering::SeqCst)
    }

    /// Returns whether the stream has taken Sends where they arrived since [`processed`](Self::processed).
    pub(crate) fn has_unprocessed(&self) -> bool {
        self.unprocessed.load(Ordering::Relaxed) > 0
    }

    /// Notes that the stream has processed what follows from the Sends that it has taken.
    pub(crate) fn processed(&self) {
        self.unprocessed.store(0, Ordering::Relaxed);
    }

    /// Has the tasks that wait woken, once, when there is news. Returns `true` if there is already. The caller has locked the
    /// stream, and found there nothing that the tasks wait for.
    pub(crate) fn listen(&self) -> bool {
        // Either this sees the news, or `notify` sees that tasks wait.
        self.listens.store(true, Ordering::SeqCst);
        !self.is_empty()
    }

    /// Returns whether the next frames are likely to be large.
    pub(crate) fn expects_large(&self) -> bool {
        self.expects_large.load(Ordering::Relaxed)
    }
}

#[cfg(feature = "soft")]
impl StreamInbox {
    /// Returns the offset from where on the peer writes the ring.
    pub(crate) fn ring(&self) -> u64 {
        self.ring
    }

    /// Sets whether the next frames are likely to be large.
    pub(crate) fn set_expects_large(&self, expects_large: bool) {
        self.expects_large.store(expects_large, Ordering::Relaxed);
    }

    /// Delivers a Send of the peer, to the stream if it takes the Send at once. Returns `false` if there are as many as
    /// there may be.
    #[must_use]
    pub(crate) fn deliver(&self, send: StreamSend, wakes: &mut WakeList) -> bool {
        let unprocessed = self.unprocessed.load(Ordering::Relaxed);
        let sink = self.sink.get().and_then(Weak::upgrade);
        // Only this adds to the inbox: if it is empty, and no other thread uses the stream, all Sends before this one have
        // been applied.
        let is_next = self.is_empty() && unprocessed < self.depth;
        if let (true, StreamSend::Word(word), Some(sink)) = (is_next, send, &sink)
            && sink.take(word)
        {
            self.unprocessed.fetch_add(1, Ordering::Relaxed);
            self.notify(&**sink, wakes);
            return true;
        }
        let mut inbox = self.inbox.lock();
        if inbox.sends.len() + unprocessed >= self.depth {
            return false;
        }
        inbox.sends.push_back(send);
        self.announce(inbox, wakes);
        true
    }

    /// Notes the news in the inbox, and collects the wakers of the tasks that wait.
    fn announce(&self, inbox: MutexGuard<'_, Inbox>, wakes: &mut WakeList) {
        self.has_news.store(true, Ordering::SeqCst);
        drop(inbox);
        if let Some(sink) = self.sink.get().and_then(Weak::upgrade) {
            self.notify(&*sink, wakes);
        }
    }

    fn notify(&self, sink: &dyn StreamSink, wakes: &mut WakeList) {
        if self.listens.swap(false, Ordering::SeqCst) {
            sink.collect_wakers(wakes);
        }
    }

    /// Delivers the news that nothing has been written for a while.
    pub(crate) fn rest(&self, wakes: &mut WakeList) {
        let mut inbox = self.inbox.lock();
        inbox.idle = true;
        self.announce(inbox, wakes);
    }

    /// Delivers the news that nothing more comes.
    pub(crate) fn end(&self, wakes: &mut WakeList) {
        let mut inbox = self.inbox.lock();
        if inbox.end == End::Open {
            inbox.end = End::Reached;
            self.announce(inbox, wakes);
        }
    }
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.sends.is_empty() && !self.idle && self.end != End::Reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The last acknowledged byte counts, and so do 64 KiB from the peer; what is sent after that does not (IO-03).
    #[test]
    fn progress_is_bytes_of_either_direction() {
        let progress = |acknowledged, received| Progress { acknowledged, received };
        let before = progress(Some(7), 100);
        for now in [progress(Some(8), 100), progress(None, 100), progress(Some(7), 100 + 65536)] {
            assert!(now.is_beyond(&before), "{now:?}");
        }
        assert!(!progress(Some(7), 100 + 65535).is_beyond(&before));
        assert!(!progress(Some(9), 100).is_beyond(&progress(None, 100)), "a probe");
    }

    /// A stream that another thread may use.
    #[cfg(feature = "soft")]
    #[derive(Default)]
    struct Sink {
        in_use: AtomicBool,
        taken: Mutex<Vec<[u8; WORD]>>,
    }

    #[cfg(feature = "soft")]
    impl StreamSink for Sink {
        fn take(&self, word: [u8; WORD]) -> bool {
            let takes = !self.in_use.load(Ordering::SeqCst);
            self.taken.lock().extend(takes.then_some(word));
            takes
        }

        fn collect_wakers(&self, wakes: &mut WakeList) {
            wakes.extend([std::task::Waker::noop().clone()]);
        }
    }

    /// Delivers a Send with this content. Returns whether there was room, and whether a task was woken.
    #[cfg(feature = "soft")]
    fn deliver(inbox: &StreamInbox, content: u8) -> (bool, bool) {
        let mut wakes = WakeList::default();
        let has_room = inbox.deliver(StreamSend::Word([content; WORD]), &mut wakes);
        (has_room, !wakes.is_empty())
    }

    /// Creates an inbox for four Sends, and its stream.
    #[cfg(feature = "soft")]
    fn connected() -> (Arc<StreamInbox>, Arc<Sink>) {
        let (inbox, sink) = (StreamInbox::new(4, 0), Arc::<Sink>::default());
        let stream: Weak<Sink> = Arc::downgrade(&sink);
        inbox.connect(stream);
        (inbox, sink)
    }

    // A Send that arrives while a task uses the stream waits, and so do those behind it, until that task takes them.
    #[cfg(feature = "soft")]
    #[test]
    fn sends_behind_a_queued_one_wait() {
        let (inbox, sink) = connected();
        for (in_use, content) in [(false, 1), (true, 2), (false, 3)] {
            sink.in_use.store(in_use, Ordering::SeqCst);
            assert_eq!(deliver(&inbox, content), (true, false));
        }
        assert_eq!((inbox.has_unprocessed(), inbox.is_empty()), (true, false));
        let queued = || inbox.take();
        for content in [2, 3] {
            assert_eq!(queued(), Some(StreamNews::Send(StreamSend::Word([content; WORD]))));
        }
        assert_eq!(queued(), None);
        assert_eq!(deliver(&inbox, 4), (true, false));
        assert_eq!(*sink.taken.lock(), [[1; WORD], [4; WORD]]);
    }

    // A task that waits is woken once, whichever way the Send goes.
    #[cfg(feature = "soft")]
    #[test]
    fn send_wakes_listening_tasks_once() {
        let (inbox, sink) = connected();
        for in_use in [false, true] {
            sink.in_use.store(in_use, Ordering::SeqCst);
            assert!(!inbox.listen());
            assert_eq!([1, 2].map(|content| deliver(&inbox, content)), [(true, true), (true, false)]);
        }
        assert!(inbox.listen(), "two Sends are queued");
    }

    // The limit counts the Sends that the stream has taken but whose credits it has not returned (IO-04).
    #[cfg(feature = "soft")]
    #[test]
    fn limit_counts_all_unprocessed_sends() {
        let (inbox, sink) = connected();
        for content in 0..4 {
            sink.in_use.store(content > 1, Ordering::SeqCst);
            assert!(deliver(&inbox, content).0);
        }
        assert!(!deliver(&inbox, 4).0);
        inbox.processed();
        assert!(deliver(&inbox, 5).0 && deliver(&inbox, 6).0 && !deliver(&inbox, 7).0);
        drop(sink);
        assert!(inbox.take().is_some() && deliver(&inbox, 8).0, "the stream has been dropped");
    }
}
