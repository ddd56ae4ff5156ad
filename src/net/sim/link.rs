//! One direction of a link between two hosts, and random numbers from a seed.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The most bytes of a segment: with its headers it fits the length field of IP.
const MOST: usize = 65_000;

/// The settings of a link, one direction of it.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The time that a segment is on its way.
    pub(crate) latency: RangeInclusive<Duration>,
    /// Bytes per second; `None` is without limit.
    pub(crate) bandwidth: Option<u64>,
    /// The most bytes that a segment has.
    pub(crate) segments: RangeInclusive<usize>,
    /// The time without a segment after which a box on the way drops a connection.
    pub(crate) idle_limit: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        let latency = Duration::from_millis(1);
        Self { latency: latency..=latency, bandwidth: None, segments: 1460..=1460, idle_limit: None }
    }
}

/// A link, one direction of it.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) settings: Settings,
    /// The time at which the last segment has left the host.
    pub(super) free_at: Duration,
    /// Every segment is lost until then.
    pub(super) cut_until: Duration,
    /// No segment leaves the host until then.
    pub(super) stalled_until: Duration,
}

impl Link {
    /// Returns when a segment of this length that is sent now arrives, and when it would without the rest of the stall.
    pub(super) fn carry(&mut self, now: Duration, length: usize, rng: &mut Rng) -> (Duration, Duration) {
        let start = now.max(self.free_at).max(self.stalled_until);
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let time = self.settings.bandwidth.map_or(0, |bandwidth| {
            let time = length as u128 * 1_000_000_000 / u128::from(bandwidth.max(1));
            u64::try_from(time).unwrap_or(u64::MAX)
        });
        self.free_at = start.saturating_add(Duration::from_nanos(time));
        let latency = nanos(*self.settings.latency.start())..=nanos(*self.settings.latency.end());
        let arrival = self.free_at.saturating_add(Duration::from_nanos(rng.within(&latency)));
        (arrival, arrival.saturating_sub(self.stalled_until.saturating_sub(now)))
    }

    /// Returns the most bytes of the next segment.
    pub(super) fn segment(&self, rng: &mut Rng) -> usize {
        let (start, end) = (*self.settings.segments.start() as u64, *self.settings.segments.end() as u64);
        usize::try_from(rng.within(&(start..=end))).unwrap_or(usize::MAX).clamp(1, MOST)
    }
}

/// A generator (SplitMix64): the same numbers from the same seed.
#[derive(Debug, Default)]
pub(super) struct Rng(pub(super) u64);

impl Rng {
    /// Returns the next number.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number of the range; its start if it is empty.
    pub(super) fn within(&mut self, range: &RangeInclusive<u64>) -> u64 {
        let (start, end) = (*range.start(), *range.end());
        if start >= end {
            return start;
        }
        // The high half of a product: as even as a test needs it.
        let count = u128::from(end - start) + 1;
        let offset = (u128::from(self.next()) * count) >> 64;
        start + u64::try_from(offset).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_takes_its_time() {
        let (second, zero) = (Duration::from_secs(1), Duration::ZERO);
        let settings = Settings { latency: second..=second, bandwidth: Some(1000), ..Settings::default() };
        let (mut link, mut rng) = (Link { settings, ..Link::default() }, Rng(1));
        let (first, next) = (Duration::from_millis(1500), Duration::from_millis(2000));
        assert_eq!(link.carry(zero, 500, &mut rng), (first, first));
        // The second waits for the first.
        assert_eq!(link.carry(zero, 500, &mut rng), (next, next));
        link.stalled_until = 10 * second;
        assert_eq!(link.carry(5 * second, 0, &mut rng), (11 * second, 6 * second));
    }

    #[test]
    fn random_numbers_follow_range_and_seed() {
        let draw = |seed| {
            let mut rng = Rng(seed);
            (0..100).map(|_| rng.within(&(3..=5))).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        for number in 3..=5 {
            assert!(draw(1).contains(&number));
        }
        assert!(draw(1).iter().all(|number| (3..=5).contains(number)));
        let mut rng = Rng(7);
        assert_eq!(rng.within(&(9..=9)), 9);
        assert!((0..1000).map(|_| rng.within(&(0..=u64::MAX))).any(|number| number > u64::MAX / 2));
    }
}
