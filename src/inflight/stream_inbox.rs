//! Delivers the Sends of a stream's peer, for a provider that needs no receives for them.
//!
//! A Send that announces data goes to the stream where it arrives. While the stream is in use, and for all others, a queue
//! keeps them until a task of the stream takes them.

use std::collections::VecDeque;
use std::mem::take;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use tokio::io::ReadBuf;

#[cfg(feature = "soft")]
use super::WakeList;
#[cfg(feature = "soft")]
use super::stream_bytes::OutOfBounds;
use super::stream_bytes::{LIST, StreamBytes};
use crate::sync::Mutex;
#[cfg(feature = "soft")]
use crate::sync::MutexGuard;

/// The length of the word that a Send of a stream begins with.
pub(crate) const WORD: usize = 4;

/// The key of the ring and the list of a stream, on its connection. It stands in no table of keys.
pub(crate) const STREAM_KEY: u32 = 0x5374_7200;

/// A Send of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamSend {
    /// One that begins with this word. The bytes behind it have been taken.
    Word([u8; WORD]),
    /// One of fewer bytes, or of another kind.
    Other(usize),
}

/// The stream that an inbox belongs to. Its methods are called while the provider has its own locks.
pub(crate) trait StreamSink: Send + Sync {
    /// Takes a Send that has arrived, if no other thread uses the stream and the Send only announces data, of which so many bytes are
    /// readable, and counts it in `unprocessed`. Returns whether it did: if not, nothing has changed, and the Send waits in the inbox
    /// for a task of the stream.
    fn take(&self, word: [u8; WORD], readable: usize, unprocessed: &AtomicUsize) -> bool;

    /// Collects the wakers of the tasks that wait for a Send or for the end.
    #[cfg(feature = "soft")]
    fn collect_wakers(&self, wakes: &mut WakeList);
}

/// What comes from the peer of a stream: its bytes, and its Sends. These go to the stream itself, or in order into a queue until the
/// stream takes them.
#[derive(Debug)]
pub(crate) struct StreamInbox {
    bytes: Mutex<StreamBytes>,
    /// The number of bytes that can be read. It changes with the lock of `bytes`.
    readable: AtomicUsize,
    inbox: Mutex<Inbox>,
    /// There is news in the inbox.
    has_news: AtomicBool,
    /// The number of Sends that the stream has taken where they arrived, until it has processed what follows from them.
    /// It changes while the stream is locked.
    unprocessed: AtomicUsize,
    /// Tasks wait for news.
    listens: AtomicBool,
    /// The next frames are likely to be large: then the provider reads for a reader that waits.
    expects_large: AtomicBool,
    sink: OnceLock<Weak<dyn StreamSink>>,
    depth: usize,
}

#[derive(Debug, Default)]
struct Inbox {
    sends: VecDeque<StreamSend>,
    /// The peer has confirmed the end of this direction, which was not taken yet.
    is_confirmed: bool,
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
    /// The peer's device has received the end of this direction, and all before it. Taken once.
    Confirmed,
    /// Nothing more comes. Taken once.
    Ended,
}

impl StreamInbox {
    /// Creates an inbox for at most `depth` Sends and `ring` bytes at a time.
    pub(crate) fn new(depth: usize, ring: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes: Mutex::new(StreamBytes::new(ring)),
            readable: AtomicUsize::new(0),
            inbox: Mutex::default(),
            has_news: AtomicBool::new(false),
            unprocessed: AtomicUsize::new(0),
            listens: AtomicBool::new(false),
            expects_large: AtomicBool::new(false),
            sink: OnceLock::new(),
            depth,
        })
    }

    /// Returns the number of bytes that can be read.
    pub(crate) fn readable(&self) -> usize {
        self.readable.load(Ordering::SeqCst)
    }

    /// Moves the first bytes to `into`, at most `most`, and returns their number.
    pub(crate) fn read(&self, into: &mut ReadBuf<'_>, most: usize) -> usize {
        self.with_bytes(|bytes| bytes.read(into, most))
    }

    /// Copies the first bytes to `into`, at most `most`.
    pub(crate) fn peek(&self, into: &mut ReadBuf<'_>, most: usize) {
        self.bytes.lock().peek(into, most);
    }

    /// Has `act` look at the list of targets.
    pub(crate) fn with_list<R>(&self, act: impl FnOnce(&mut [u8; LIST]) -> R) -> R {
        act(self.bytes.lock().list())
    }

    fn with_bytes<R>(&self, act: impl FnOnce(&mut StreamBytes) -> R) -> R {
        let mut bytes = self.bytes.lock();
        let result = act(&mut bytes);
        self.readable.store(bytes.len(), Ordering::SeqCst);
        result
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
            (None, _) if take(&mut inbox.is_confirmed) => Some(StreamNews::Confirmed),
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

    /// Has the tasks that wait woken, once, when there is news, or bytes have come. Returns `true` if there is already, for one that
    /// reads also if there are bytes. The caller has locked the stream, and found there nothing that the tasks wait for.
    pub(crate) fn listen(&self, reads: bool) -> bool {
        let is_due = || !self.is_empty() || reads && self.readable() > 0;
        if is_due() {
            return true;
        }
        // Either this sees later news, or `notify` sees that tasks wait.
        self.listens.store(true, Ordering::SeqCst);
        is_due()
    }

    /// Returns whether the next frames are likely to be large.
    pub(crate) fn expects_large(&self) -> bool {
        self.expects_large.load(Ordering::Relaxed)
    }
}

#[cfg(feature = "soft")]
impl StreamInbox {
    /// Checks that the peer may write so many bytes, at least one, to this offset.
    ///
    /// # Errors
    /// It may not.
    pub(crate) fn check(&self, to: u64, length: usize) -> Result<(), OutOfBounds> {
        self.bytes.lock().check(to, length)
    }

    /// Takes bytes that the peer writes to this offset, which was [checked](Self::check). [`came`](Self::came) follows.
    ///
    /// # Errors
    /// The pieces that are ahead of the next byte are too many.
    pub(crate) fn write(&self, to: u64, payload: &[u8]) -> Result<(), OutOfBounds> {
        self.with_bytes(|bytes| bytes.write(to, payload))
    }

    /// Takes a whole Write of the peer.
    ///
    /// # Errors
    /// As [`check`](Self::check) and [`write`](Self::write).
    pub(crate) fn take_write(&self, to: u64, payload: &[u8]) -> Result<(), OutOfBounds> {
        self.with_bytes(|bytes| {
            bytes.check(to, payload.len())?;
            bytes.write(to, payload)
        })
    }

    /// Checks that there is room for so many bytes behind those that have come.
    ///
    /// # Errors
    /// There is not.
    pub(crate) fn check_next(&self, length: usize) -> Result<(), OutOfBounds> {
        self.bytes.lock().check_next(length)
    }

    /// Takes the next bytes, which the peer has sent without a place. [`came`](Self::came) follows.
    ///
    /// # Errors
    /// There is no [room](Self::check_next) for them.
    pub(crate) fn append(&self, payload: &[u8]) -> Result<(), OutOfBounds> {
        self.with_bytes(|bytes| {
            bytes.check_next(payload.len())?;
            bytes.append(payload);
            Ok(())
        })
    }

    /// Returns the offset of the next byte.
    pub(crate) fn next(&self) -> u64 {
        self.bytes.lock().next()
    }

    /// Takes bytes that the peer writes to this offset from `read`, which is given room for at most `length`, and returns their number and
    /// a result. `None`, without a call, if they are not the next ones.
    pub(crate) fn write_from<R>(
        &self,
        to: u64,
        length: usize,
        read: impl FnOnce(&mut [u8]) -> (usize, R),
    ) -> Option<R> {
        self.with_bytes(|bytes| {
            if !bytes.is_next(to) {
                return None;
            }
            let (filled, result) = read(bytes.spare_whole(length));
            bytes.filled(filled);
            Some(result)
        })
    }

    /// Counts bytes that have gone to the room of a reader. Returns whether others, which were behind them, can be read now.
    pub(crate) fn skip(&self, length: usize) -> bool {
        self.with_bytes(|bytes| {
            let before = bytes.len();
            bytes.skip(length);
            bytes.len() > before
        })
    }

    /// Collects the wakers of the tasks that wait for bytes.
    pub(crate) fn came(&self, wakes: &mut WakeList) {
        if self.listens.load(Ordering::SeqCst) {
            self.notify(self.sink.get().and_then(Weak::upgrade).as_deref(), wakes);
        }
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
        let taken = match (send, &sink) {
            (StreamSend::Word(word), Some(sink)) if is_next => {
                sink.take(word, self.readable(), &self.unprocessed)
            }
            _ => false,
        };
        if !taken {
            let mut inbox = self.inbox.lock();
            if inbox.sends.len() + unprocessed >= self.depth {
                return false;
            }
            inbox.sends.push_back(send);
            self.has_news.store(true, Ordering::SeqCst);
        }
        self.notify(sink.as_deref(), wakes);
        true
    }

    /// Collects the wakers of the tasks that wait for news.
    fn notify(&self, sink: Option<&dyn StreamSink>, wakes: &mut WakeList) {
        if self.listens.load(Ordering::SeqCst)
            && self.listens.swap(false, Ordering::SeqCst)
            && let Some(sink) = sink
        {
            sink.collect_wakers(wakes);
        }
    }

    /// Notes the news in the inbox, and collects the wakers of the tasks that wait for it.
    fn announce(&self, inbox: MutexGuard<'_, Inbox>, wakes: &mut WakeList) {
        self.has_news.store(true, Ordering::SeqCst);
        drop(inbox);
        self.notify(self.sink.get().and_then(Weak::upgrade).as_deref(), wakes);
    }

    /// Delivers the news that the peer has confirmed the end of this direction.
    pub(crate) fn confirm(&self, wakes: &mut WakeList) {
        let mut inbox = self.inbox.lock();
        inbox.is_confirmed = true;
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
        self.sends.is_empty() && !self.is_confirmed && self.end != End::Reached
    }
}

#[cfg(all(test, feature = "soft", not(tokio_rdma_model)))]
mod tests {
    use super::*;

    /// A stream that another thread may use.
    #[derive(Default)]
    struct Sink {
        in_use: AtomicBool,
        taken: Mutex<Vec<[u8; WORD]>>,
    }

    impl StreamSink for Sink {
        fn take(&self, word: [u8; WORD], _readable: usize, unprocessed: &AtomicUsize) -> bool {
            let takes = !self.in_use.load(Ordering::SeqCst);
            unprocessed.fetch_add(usize::from(takes), Ordering::Relaxed);
            self.taken.lock().extend(takes.then_some(word));
            takes
        }

        fn collect_wakers(&self, wakes: &mut WakeList) {
            wakes.extend([std::task::Waker::noop().clone()]);
        }
    }

    /// Delivers a Send with this content. Returns whether there was room, and whether a task was woken.
    fn deliver(inbox: &StreamInbox, content: u8) -> (bool, bool) {
        let mut wakes = WakeList::default();
        let has_room = inbox.deliver(StreamSend::Word([content; WORD]), &mut wakes);
        (has_room, !wakes.is_empty())
    }

    /// Creates an inbox for four Sends, and its stream.
    fn connected() -> (Arc<StreamInbox>, Arc<Sink>) {
        let (inbox, sink) = (StreamInbox::new(4, 64), Arc::<Sink>::default());
        let stream: Weak<Sink> = Arc::downgrade(&sink);
        inbox.connect(stream);
        (inbox, sink)
    }

    // A Send that arrives while a task uses the stream waits, and so do those behind it, until that task takes them.
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
    #[test]
    fn send_wakes_listening_tasks_once() {
        let (inbox, sink) = connected();
        for in_use in [false, true] {
            sink.in_use.store(in_use, Ordering::SeqCst);
            assert!(!inbox.listen(false));
            assert_eq!([1, 2].map(|content| deliver(&inbox, content)), [(true, true), (true, false)]);
        }
        assert!(inbox.listen(false), "two Sends are queued");
    }

    // The limit counts the Sends that the stream has taken but whose credits it has not returned (IO-04).
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
