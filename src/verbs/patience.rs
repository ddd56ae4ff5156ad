//! The looks at completion queues before a sleep: how many, and whether they pay.

/// The decision whether a task that has found nothing looks some more times before it sleeps. It depends on whether
/// such looks have paid: doubts come with looks that found nothing, and go with those that found something. The more
/// doubts, the more sleeps come before the next such looks.
///
/// Looks in vain cost several times what others save. A program whose peer needs the same processor finds the
/// completions of its own sends, and never the answer.
#[derive(Default)]
pub(super) struct Patience {
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
    pub(super) fn rewarded(&mut self) {
        if std::mem::take(&mut self.looking) {
            self.doubts = self.doubts.saturating_sub(1 + Self::IN_VAIN);
        }
    }

    /// Returns whether to look once more after a look that found nothing. If not, the task sleeps.
    pub(super) fn looks_again(&mut self) -> bool {
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
