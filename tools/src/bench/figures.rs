//! Prints the figures of a benchmark and the conditions under which they were measured, as Markdown or JSON.
//!
//! Each subcommand decides which figures it measures, and which requirements they must meet.

use std::time::Duration;

use anyhow::{Context, Result};
use opt_supervisor::memory::host::Host;
use serde_json::{Value, json};

#[derive(Clone, Debug, Default)]
pub(crate) struct Figures(Vec<f64>);

impl Figures {
    pub(crate) fn push(&mut self, figure: f64) {
        self.0.push(figure);
    }

    pub(crate) fn push_us(&mut self, time: Duration) {
        self.push(time.as_secs_f64() * 1e6);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the quantile at `at` (0 to 1), by the nearest rank.
    pub(crate) fn quantile(&self, at: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is clamped below")]
        let index = (at * sorted.len() as f64).ceil() as usize;
        sorted.get(index.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(crate) fn p95(&self) -> f64 {
        self.quantile(0.95)
    }

    pub(crate) fn max(&self) -> f64 {
        self.quantile(1.0)
    }

    /// Divides these figures by those of `other`, pair by pair.
    pub(crate) fn over(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(figure, other)| figure / other).collect())
    }

    /// Returns the medians of the first and of the last quarter, in the order of measurement.
    pub(crate) fn first_and_last_quarter(&self) -> (f64, f64) {
        let quarter = (self.0.len() / 4).max(1).min(self.0.len());
        let median = |part: &[f64]| Self(part.to_vec()).median();
        (median(&self.0[..quarter]), median(&self.0[self.0.len() - quarter..]))
    }

    pub(crate) fn to_json(&self, unit: &str) -> Value {
        json!({ "unit": unit, "count": self.count(), "median": number(self.median()), "p95": number(self.p95()),
                "max": number(self.max()) })
    }

    /// Returns the cells of a Markdown row: median, p95 and maximum.
    pub(crate) fn cells(&self, digits: usize) -> String {
        format!("{:.digits$} | {:.digits$} | {:.digits$}", self.median(), self.p95(), self.max())
    }
}

/// Rounds a figure to three decimals. Returns null for NaN and infinities, which JSON cannot represent.
fn number(figure: f64) -> Value {
    if figure.is_finite() { json!((figure * 1e3).round() / 1e3) } else { Value::Null }
}

/// Describes the machine, its current load, and the state of the page cache in the caller's words.
pub(crate) fn conditions(cache: &str) -> Result<Value> {
    let host = Host::detect();
    let load = std::fs::read_to_string("/proc/loadavg").context("reading /proc/loadavg")?;
    let load: Vec<f64> = load.split(' ').take(3).filter_map(|word| word.parse().ok()).collect();
    Ok(json!({
        "cpu": host.cpu, "cores": host.cores, "ram_bytes": host.ram, "kernel": host.kernel,
        "load": load, "cache": cache, "build": if cfg!(debug_assertions) { "debug" } else { "release" },
    }))
}

/// Prints either one JSON document, or the conditions followed by the caller's lines.
pub(crate) fn show(json: bool, sheet: &Value, lines: impl FnOnce()) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(sheet)?);
        return Ok(());
    }
    let of = |name: &str| sheet["conditions"][name].clone();
    let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    println!(
        "{} cores ({}), {}, load {}, {} build; cache: {}\n",
        of("cores"),
        text(of("cpu")),
        text(of("kernel")),
        of("load"),
        text(of("build")),
        text(of("cache"))
    );
    lines();
    Ok(())
}

pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(figures: &[f64]) -> Figures {
        Figures(figures.to_vec())
    }

    #[test]
    fn medians_and_ratios_are_right() {
        let five = figures(&[5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!((five.median(), five.p95(), five.max()), (3.0, 5.0, 5.0));
        assert_eq!(five.over(&figures(&[5.0, 2.0, 1.0, 1.0, 1.0])).median(), 2.0);
        assert_eq!(five.first_and_last_quarter(), (5.0, 3.0));
        assert!(Figures::default().median().is_nan());
        assert_eq!(Figures::default().to_json("us")["median"], Value::Null);
    }
}
