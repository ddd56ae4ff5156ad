//! The number of measurements, and their output.

use serde_json::{Value, json};

/// How much is measured.
pub(crate) struct Plan {
    pub(crate) batches: usize,
    pub(crate) round_trips: u32,
    pub(crate) blocks: u32,
}

impl Plan {
    pub(crate) const FULL: Self = Self { batches: 15, round_trips: 400, blocks: 256 };
    pub(crate) const QUICK: Self = Self { batches: 5, round_trips: 100, blocks: 32 };

    /// How often the progress moves.
    pub(crate) fn steps(&self) -> u64 {
        3 * self.batches as u64
    }
}

/// One line of the result: medians, and the median of the ratios.
pub(crate) struct Figure {
    name: &'static str,
    unit: &'static str,
    pub(crate) rdma: Vec<f64>,
    pub(crate) tcp: Vec<f64>,
    /// Every single RDMA sample, for the percentiles.
    pub(crate) samples: Vec<f64>,
}

impl Figure {
    pub(crate) fn new(name: &'static str, unit: &'static str) -> Self {
        Self { name, unit, rdma: Vec::new(), tcp: Vec::new(), samples: Vec::new() }
    }

    /// RDMA to TCP, batch by batch.
    fn ratio(&self) -> f64 {
        quantile(self.rdma.iter().zip(&self.tcp).map(|(rdma, tcp)| rdma / tcp), 0.5)
    }

    /// For people.
    pub(crate) fn line(&self) -> String {
        let (rdma, tcp) = (quantile(self.rdma.iter().copied(), 0.5), quantile(self.tcp.iter().copied(), 0.5));
        let Self { name, unit, .. } = self;
        let mut line = format!(
            "{name:<10} {rdma:>9.2} {unit:<5} raw TCP {tcp:>9.2} {unit:<5} median of ratios {:.3}",
            self.ratio()
        );
        if !self.samples.is_empty() {
            let at = |q| quantile(self.samples.iter().copied(), q);
            line += &format!(
                "   p50 {:.1}  p90 {:.1}  p99 {:.1}  p99.9 {:.1}",
                at(0.5),
                at(0.9),
                at(0.99),
                at(0.999)
            );
        }
        line
    }

    /// For programs.
    pub(crate) fn json(&self) -> [(String, Value); 3] {
        let Self { name, unit, .. } = self;
        let unit = unit.replace('/', "_per_").to_lowercase();
        [
            (format!("{name}_ratio"), json!(self.ratio())),
            (format!("{name}_rdma_{unit}"), json!(quantile(self.rdma.iter().copied(), 0.5))),
            (format!("{name}_tcp_{unit}"), json!(quantile(self.tcp.iter().copied(), 0.5))),
        ]
    }
}

/// The value that this part of all is not above.
pub(crate) fn quantile(values: impl Iterator<Item = f64>, at: f64) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let place = (sorted.len().saturating_sub(1) as f64 * at).round();
    sorted.get(place as usize).copied().unwrap_or(f64::NAN)
}
