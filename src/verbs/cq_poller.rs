//! Decides when the completion queues of a group are polled, and when their channel is read.
//!
//! A queue is armed only before a sleep. Until then completions are found by polling, which costs no system call,
//! neither here nor for an event. The tasks that were woken run in between, and what they post has often completed when
//! they have. The event that has ended a sleep is taken from the channel after that, because no task waits for it. A
//! queue raises one event until it is armed again, so a channel with one queue has no other event then.
//!
//! Before a sleep there are some more looks if such looks have found something lately. A sleep costs the program that
//! it ends a wake-up, which takes longer than the answer of a peer that is awake.

use std::io;
use std::time::Duration;

use tracing::debug;

use super::completions::CompletionGroup;
use super::reactor::TURN;
use crate::sync::Spin;
use crate::sys::{CompletionChannel, Keys};

/// The number of times that the queues are polled before the channel is: the other queues behind the channel must not wait
/// for long.
const LOOKS: u32 = 16;

/// The number of looks before a sleep after which other tasks have a turn. A turn for others wakes another thread of the runtime.
const AT_ONCE: u32 = 64;

/// The state of polling the completion channel and the queues behind it.
pub(super) struct CqPoller {
    /// The queues of the last events, which are polled.
    last: Keys,
    /// The queues of events that were taken since they were armed.
    told: Keys,
    /// The channel may have events that were not taken.
    unread: bool,
    /// The number of events that are taken at once: one after a sleep, as there most often is no other, then more.
    most: usize,
    /// The time during which the queues are polled without an event.
    spin: Spin,
    /// There is such a time.
    spins: bool,
    patience: Patience,
    /// The number of times that the queues were polled since the channel was.
    looks: u32,
    /// The value of [`CompletionGroup::finds`] at the last look.
    finds: usize,
}

impl CqPoller {
    pub(super) fn new(spin: Duration) -> Self {
        Self {
            last: Keys::default(),
            told: Keys::default(),
            unread: true,
            most: 1,
            spin: Spin::new(spin),
            spins: !spin.is_zero(),
            patience: Patience::default(),
            looks: 0,
            finds: 0,
        }
    }

    /// Processes completions and takes events. Returns whether to look again before the next sleep.
    ///
    /// # Errors
    /// Those of ibv_get_cq_event(3).
    pub(super) fn turn(&mut self, group: &CompletionGroup, channel: &CompletionChannel) -> io::Result<bool> {
        let mut found = self.find(group);
        self.looks += 1;
        if !found && self.unread || self.looks > LOOKS && !self.is_alone(group) {
            self.take_events(group, channel)?;
            found |= self.find(group);
        }
        if found {
            self.patience.rewarded();
        }
        let spinning = self.spin.is_spinning() && group.is_armed();
        if found || self.unread || spinning || group.is_armed() && self.looks_on(group) {
            return Ok(true);
        }
        // Arm first, then look: a completion that comes in between raises an event.
        self.arm(group);
        self.unread = true;
        let found = self.find(group);
        if !found {
            self.spin.stop();
        }
        Ok(found)
    }

    /// Looks a few more times, if that has paid lately. Returns whether completions were found, or looks are left.
    fn looks_on(&mut self, group: &CompletionGroup) -> bool {
        for _ in 0..AT_ONCE {
            if !self.patience.looks_again() {
                return false;
            }
            if self.find(group) {
                self.patience.rewarded();
                break;
            }
        }
        true
    }

    /// Takes some of the events of the channel.
    fn take_events(&mut self, group: &CompletionGroup, channel: &CompletionChannel) -> io::Result<()> {
        self.looks = 0;
        let before = self.told.len();
        let more = channel.next(self.most, &mut self.told)?;
        if before == 0 && !self.told.is_empty() && !self.spin.is_started() {
            self.last.clear();
        }
        self.last.extend_from_slice(&self.told[before..]);
        for keys in [&mut self.last, &mut self.told] {
            keys.sort_unstable();
            keys.dedup();
        }
        self.unread = more && !self.is_alone(group);
        self.most = if self.unread { (self.most * 2).min(TURN) } else { 1 };
        Ok(())
    }

    /// Returns whether the group has no other queue than the one that has raised the last event.
    fn is_alone(&self, group: &CompletionGroup) -> bool {
        !self.spins && matches!(self.last.as_slice(), [key] if group.notifies_once(*key))
    }

    /// Arms the queues that have raised an event since they were armed.
    fn arm(&mut self, group: &CompletionGroup) {
        if !group.is_armed() {
            return;
        }
        for key in self.told.drain(..) {
            if let Some(queue) = group.by_key(key)
                && let Err(error) = queue.arm()
            {
                debug!(%error, "completion queue not armed");
            }
        }
    }

    /// Processes the completions of the queues. Returns whether there were any, or another task has found some since
    /// the last time.
    fn find(&mut self, group: &CompletionGroup) -> bool {
        for queue in self.last.iter().filter_map(|key| group.by_key(*key)) {
            group.process(&queue, None);
        }
        let finds = group.finds();
        let found = std::mem::replace(&mut self.finds, finds) != finds;
        if found && group.is_armed() {
            self.spin.start();
        }
        found
    }
}

/// The decision whether a task that has found nothing looks some more times before it sleeps. It depends on whether
/// such looks have paid: doubts come with looks that found nothing, and go with those that found something. The more
/// doubts, the more sleeps come before the next such looks.
///
/// Looks in vain cost several times what others save. A program whose peer needs the same processor finds the
/// completions of its own sends, and never the answer.
#[derive(Default)]
struct Patience {
    /// It is looking, for at most so many more times.
    looking: bool,
    left: u32,
    doubts: u32,
    /// Sleeps without looks since the last ones.
    sleeps: u32,
}

impl Patience {
    /// The number of looks. They take ten to twenty microseconds of a processor of today.
    const LOOKS: u32 = 256;
    /// The doubts that come with looks in vain. Looks that pay take one.
    const IN_VAIN: u32 = 4;
    /// At most 2 to this power sleeps come before the next looks.
    const DOUBTS: u32 = 6;

    /// Records that something was found. If the looks before a sleep have found it, doubts go.
    fn rewarded(&mut self) {
        if std::mem::take(&mut self.looking) {
            self.doubts = self.doubts.saturating_sub(1 + Self::IN_VAIN);
        }
    }

    /// Returns whether to look once more after a look that found nothing. If not, the task sleeps.
    fn looks_again(&mut self) -> bool {
        if !std::mem::replace(&mut self.looking, true) {
            let due = self.sleeps >= (1 << self.doubts.min(Self::DOUBTS)) - 1;
            self.left = if due { Self::LOOKS } else { 0 };
            self.sleeps = if due { 0 } else { self.sleeps + 1 };
            if due {
                // Until it pays.
                self.doubts = (self.doubts + Self::IN_VAIN).min(Self::DOUBTS + Self::IN_VAIN);
            }
        }
        self.looking = self.left > 0;
        self.left = self.left.saturating_sub(1);
        self.looking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks until it sleeps. Returns how often.
    fn until_sleep(patience: &mut Patience) -> u32 {
        (0..).find(|_| !patience.looks_again()).expect("without end")
    }

    #[test]
    fn looks_that_find_nothing_become_rare() {
        let mut patience = Patience::default();
        let sleeps: Vec<_> = (0..300).filter(|_| until_sleep(&mut patience) > 0).collect();
        assert_eq!(sleeps, [0, 16, 80, 144, 208, 272]);
    }

    // A completion of its own sends, and then an answer that does not come before it sleeps.
    #[test]
    fn looks_that_pay_every_other_time_become_rare() {
        let mut patience = Patience::default();
        let mut looks = 0;
        for _ in 0..1000 {
            if patience.looks_again() {
                patience.rewarded();
            }
            looks += u32::from(until_sleep(&mut patience) > 0);
        }
        assert!(looks < 50, "{looks} of 1000");
    }

    #[test]
    fn looks_that_pay_go_on() {
        let mut patience = Patience::default();
        for looks in 1..=Patience::LOOKS {
            assert!((0..looks).all(|_| patience.looks_again()), "look {looks}");
            patience.rewarded();
        }
        assert_eq!(until_sleep(&mut patience), Patience::LOOKS);
        // A completion that has ended a sleep is no merit of the looks before it.
        patience.rewarded();
        assert_eq!(until_sleep(&mut patience), 0);
    }
}
