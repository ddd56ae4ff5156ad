//! Medians, quartiles, and whether a goal was reached.

use serde_json::{Value, json};

/// The three values that cut sorted samples into four parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Quartiles {
    /// A quarter of the samples is not above it.
    pub(crate) low: f64,
    /// Half of them are not.
    pub(crate) median: f64,
    /// Three quarters are not.
    pub(crate) high: f64,
}

impl Quartiles {
    /// Those of the samples; `None` when there are none.
    pub(crate) fn of(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.into_iter().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |part| quantile(&sorted, part);
        Some(Self { low: at(0.25)?, median: at(0.5)?, high: at(0.75)? })
    }

    /// For programs.
    pub(crate) fn json(self) -> Value {
        json!({ "median": self.median, "quartiles": [self.low, self.high] })
    }
}

/// The value that this part of sorted samples is not above, between two samples on the line between them.
fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    let place = sorted.len().checked_sub(1)? as f64 * part;
    let (below, above) = (*sorted.get(place.floor() as usize)?, *sorted.get(place.ceil() as usize)?);
    Some(below + (above - below) * place.fract())
}

/// Sample by sample, the first divided by the second: both come from one batch.
pub(crate) fn ratios(samples: &[f64], reference: &[f64]) -> Vec<f64> {
    samples.iter().zip(reference).map(|(sample, reference)| sample / reference).collect()
}

/// The value that a figure has to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// Not more than this.
    AtMost(f64),
    /// Not less than this.
    AtLeast(f64),
}

impl Goal {
    /// The number itself.
    pub(crate) fn limit(self) -> f64 {
        match self {
            Self::AtMost(limit) | Self::AtLeast(limit) => limit,
        }
    }

    /// For people.
    pub(crate) fn text(self) -> String {
        match self {
            Self::AtMost(limit) => format!("≤ {limit}"),
            Self::AtLeast(limit) => format!("≥ {limit}"),
        }
    }

    /// Whether the value reaches it.
    pub(crate) fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }

    /// The verdict on the measured values. The median decides; when the goal lies between the quartiles, another run may
    /// decide otherwise, and the verdict says so.
    pub(crate) fn verdict(self, measured: Quartiles) -> &'static str {
        let all = [measured.low, measured.median, measured.high].map(|value| self.is_met_by(value));
        match (all[1], all[0] == all[2]) {
            (true, true) => "met",
            (true, false) => "met, within the spread",
            (false, false) => "missed, within the spread",
            (false, true) => "missed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_the_samples() {
        let quartiles = Quartiles::of([4.0, 1.0, 3.0, 2.0, 5.0]).expect("samples");
        assert_eq!(quartiles, Quartiles { low: 2.0, median: 3.0, high: 4.0 });
        let quartiles = Quartiles::of([2.0, 1.0]).expect("samples");
        assert_eq!(quartiles, Quartiles { low: 1.25, median: 1.5, high: 1.75 });
        let quartiles = Quartiles::of([7.0]).expect("a sample");
        assert_eq!(quartiles, Quartiles { low: 7.0, median: 7.0, high: 7.0 });
    }

    #[test]
    fn nothing_has_no_median() {
        assert_eq!(Quartiles::of([]), None);
    }

    #[test]
    fn a_ratio_is_of_one_batch() {
        assert_eq!(ratios(&[2.0, 9.0], &[1.0, 3.0]), [2.0, 3.0]);
        assert_eq!(ratios(&[2.0, 9.0], &[1.0]), [2.0], "a batch that failed has none");
    }

    #[test]
    fn verdict_follows_median_and_quartiles() {
        let measured = Quartiles { low: 1.0, median: 1.1, high: 1.2 };
        assert_eq!(Goal::AtMost(1.2).verdict(measured), "met");
        assert_eq!(Goal::AtMost(1.1).verdict(measured), "met, within the spread");
        assert_eq!(Goal::AtMost(1.05).verdict(measured), "missed, within the spread");
        assert_eq!(Goal::AtMost(0.9).verdict(measured), "missed");
        assert_eq!(Goal::AtLeast(0.9).verdict(measured), "met");
        assert_eq!(Goal::AtLeast(1.05).verdict(measured), "met, within the spread");
        assert_eq!(Goal::AtLeast(1.15).verdict(measured), "missed, within the spread");
        assert_eq!(Goal::AtLeast(1.3).verdict(measured), "missed");
    }
}
