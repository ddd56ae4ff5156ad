//! Samples, one a batch, and their ratios.

use serde_json::{Map, Value, json};

/// The samples of one contender, batch by batch.
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) samples: Vec<f64>,
}

/// A quantile of unsorted samples; 0 when there are none.
pub(crate) fn quantile(samples: &[f64], at: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let place = (sorted.len().saturating_sub(1) as f64 * at).round() as usize;
    sorted.get(place).copied().unwrap_or(0.0)
}

/// Contenders that took turns; the first one is what the others are measured against.
pub(crate) struct Race {
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) figures: Vec<Figure>,
}

impl Race {
    pub(crate) fn new(
        title: &'static str,
        unit: &'static str,
        names: impl IntoIterator<Item = &'static str>,
    ) -> Self {
        let figures = names.into_iter().map(|name| Figure { name, samples: Vec::new() }).collect();
        Self { title, unit, figures }
    }

    /// The ratio to the first contender in each batch.
    fn ratios(&self, figure: &Figure) -> Vec<f64> {
        let reference = self.figures.first().map_or(&[][..], |first| &first.samples);
        figure.samples.iter().zip(reference).map(|(sample, reference)| sample / reference).collect()
    }

    pub(crate) fn table(&self) -> String {
        let mut text = format!("{}\n", self.title);
        for figure in &self.figures {
            let ratios = self.ratios(figure);
            let [low, median, high] = [0.25, 0.5, 0.75].map(|at| quantile(&ratios, at));
            let value = quantile(&figure.samples, 0.5);
            text += &format!(
                "  {:<28} {value:>9.1} {}   ratio {median:.3} ({low:.3} to {high:.3})\n",
                figure.name, self.unit
            );
        }
        text
    }

    pub(crate) fn json(&self) -> Value {
        let figure = |figure: &Figure| {
            let ratios = self.ratios(figure);
            let quartiles = [0.25, 0.5, 0.75].map(|at| quantile(&ratios, at));
            let median = quantile(&figure.samples, 0.5);
            (figure.name.to_owned(), json!({"median": median, "ratio_quartiles": quartiles}))
        };
        let figures: Map<_, _> = self.figures.iter().map(figure).collect();
        json!({"unit": self.unit, "batches": self.figures.first().map(|f| f.samples.len()), "figures": figures})
    }
}
