//! Progress on a terminal: one line for what is running, one lasting line for each candidate that ends.
//!
//! Shows what it is told; on anything but a terminal it shows nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use opt_shared::ids::LeaseId;
use opt_shared::units::Bytes;

pub struct Progress {
    bars: Option<MultiProgress>,
    running: BTreeMap<LeaseId, ProgressBar>,
}

impl Progress {
    pub fn new(enabled: bool) -> Self {
        Self { bars: enabled.then(MultiProgress::new), running: BTreeMap::new() }
    }

    pub fn started(&mut self, lease: LeaseId, stage: &str, candidate: &str) {
        let Some(bars) = &self.bars else { return };
        let bar = bars.add(ProgressBar::new(0));
        let style = ProgressStyle::with_template(
            "{spinner} {prefix:<8} {wide_msg} {pos}/{len} {bar:16} {elapsed_precise}",
        );
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.set_prefix(stage.to_owned());
        bar.set_message(candidate.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        self.running.insert(lease, bar);
    }

    pub fn update(&mut self, lease: LeaseId, done: u32, total: u32, bytes: Bytes) {
        let Some(bar) = self.running.get(&lease) else { return };
        bar.set_length(u64::from(total));
        bar.set_position(u64::from(done));
        let seconds = bar.elapsed().as_secs_f64();
        if bytes != Bytes::ZERO && 0.5 < seconds {
            let name = bar.message();
            let name = name.split("  ").next().unwrap_or_default().to_owned();
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a rate for people"
            )]
            let rate = Bytes::new((bytes.get() as f64 / seconds) as u64);
            bar.set_message(format!("{name}  {bytes} at {rate}/s"));
        }
    }

    pub fn ended(&mut self, lease: LeaseId) {
        if let Some(bar) = self.running.remove(&lease) {
            bar.finish_and_clear();
        }
    }

    /// A line that stays.
    pub fn said(&self, line: &str) {
        if let Some(bars) = &self.bars {
            let _ = bars.println(line);
        }
    }

    pub fn clear(&mut self) {
        for (_, bar) in std::mem::take(&mut self.running) {
            bar.finish_and_clear();
        }
    }
}
