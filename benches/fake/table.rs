//! The tables that are printed.

use serde_json::{Map, Value, json};

use crate::figures::quantile;

/// A line that was measured: the medians, and the quartiles of the ratio in each batch.
#[derive(Clone)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) ours: f64,
    pub(crate) c: f64,
    pub(crate) ratio: [f64; 3],
    pub(crate) goal: &'static str,
}

impl Row {
    pub(crate) fn new(name: &'static str, ours: &[f64], c: &[f64], goal: &'static str) -> Self {
        let ratios: Vec<f64> = ours.iter().zip(c).map(|(ours, c)| ours / c).collect();
        let ratio = [0.25, 0.5, 0.75].map(|at| quantile(&ratios, at));
        Self { name, ours: quantile(ours, 0.5), c: quantile(c, 0.5), ratio, goal }
    }
}

#[derive(Clone)]
pub(crate) struct Table {
    /// The name in JSON.
    pub(crate) key: &'static str,
    title: &'static str,
    pub(crate) rows: Vec<Row>,
}

impl Table {
    pub(crate) fn new(key: &'static str, title: &'static str) -> Self {
        Self { key, title, rows: Vec::new() }
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!("{:<58}{:>8}{:>9}   {:<24}goal\n", self.title, "ours", "C", "ratio");
        for Row { name, ours, c, ratio: [low, median, high], goal } in &self.rows {
            let places = if *ours < 10.0 { 2 } else { 0 };
            let ratio = match low == high {
                true => format!("{median:.2}"),
                false => format!("{median:.2} ({low:.2} to {high:.2})"),
            };
            let line = match *c > 0.0 {
                true => format!("  {name:<56}{ours:>8.places$}{c:>9.places$}   {ratio:<24}{goal}"),
                false => format!("  {name:<56}{ours:>8.places$}{:>9}   {:<24}{goal}", "-", "-"),
            };
            text += &format!("{}\n", line.trim_end());
        }
        text
    }

    pub(crate) fn json(&self) -> Value {
        let row = |Row { name, ours, c, ratio, goal }: &Row| {
            (name.trim().to_owned(), json!({"ours": ours, "c": c, "ratio_quartiles": ratio, "goal": goal}))
        };
        Value::Object(self.rows.iter().map(row).collect::<Map<_, _>>())
    }
}
