//! Queues of events behind a descriptor, which is readable while there are any.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use super::Answer;
use super::world::{self, World};

/// A queue of events. The count of the descriptor is the length of the queue.
pub(super) struct EventQueue<T> {
    descriptor: OwnedFd,
    waiting: VecDeque<T>,
    /// Since when the first of them is the first.
    since: Instant,
    /// The longest time that one was the first.
    longest: Duration,
}

impl<T> EventQueue<T> {
    pub(super) fn new() -> Answer<Self> {
        // SAFETY: makes a descriptor, or fails.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(libc::EMFILE);
        }
        // SAFETY: the descriptor is new, and nobody else's.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Self { descriptor, waiting: VecDeque::new(), since: Instant::now(), longest: Duration::ZERO })
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    pub(super) fn push(&mut self, event: T) {
        if self.waiting.is_empty() {
            self.since = Instant::now();
        }
        self.waiting.push_back(event);
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes, which is what the descriptor takes.
        let written = unsafe { libc::write(self.descriptor(), one.as_ptr().cast(), one.len()) };
        assert_eq!(written, 8, "an event counter cannot overflow");
    }

    pub(super) fn take(&mut self) -> Option<T> {
        let event = self.waiting.pop_front()?;
        self.count_down();
        self.longest = self.longest.max(self.since.elapsed());
        self.since = Instant::now();
        Some(event)
    }

    /// The longest time for which a program that takes events one after the other has let one wait, since the last call.
    pub(super) fn take_longest(&mut self) -> Duration {
        std::mem::take(&mut self.longest)
    }

    /// Takes the events for which `goes` is true.
    pub(super) fn extract(&mut self, mut goes: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut gone = Vec::new();
        // Most often there is none, of many.
        if !self.waiting.iter().any(&mut goes) {
            return gone;
        }
        for _ in 0..self.waiting.len() {
            let Some(event) = self.waiting.pop_front() else { break };
            if goes(&event) { gone.push(event) } else { self.waiting.push_back(event) }
        }
        gone.iter().for_each(|_| self.count_down());
        gone
    }

    pub(super) fn count(&self, counts: impl Fn(&T) -> bool) -> usize {
        self.waiting.iter().filter(|event| counts(event)).count()
    }

    fn count_down(&self) {
        let mut count = [0_u8; 8];
        // SAFETY: room for eight bytes. It never waits: the count is that of the queue.
        let read = unsafe { libc::read(self.descriptor(), count.as_mut_ptr().cast(), count.len()) };
        assert_eq!(read, 8, "the count is the length of the queue");
    }
}

/// The next event of a queue, for which a descriptor that blocks is waited for.
pub(super) fn next<T>(descriptor: RawFd, mut take: impl FnMut(&mut World) -> Answer<Option<T>>) -> Answer<T> {
    loop {
        if let Some(event) = take(&mut world::lock())? {
            return Ok(event);
        }
        if !blocks(descriptor) {
            return Err(libc::EAGAIN);
        }
        let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which outlives the call.
        unsafe { libc::poll(&mut poll, 1, -1) };
    }
}

pub(super) fn blocks(descriptor: c_int) -> bool {
    // SAFETY: reads the flags of an open descriptor.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    flags & libc::O_NONBLOCK == 0
}
