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
    running: BTreeMap<LeaseId, Running>,
}

struct Running {
    bar: ProgressBar,
    name: String,
    /// Bytes and their rate say something where captures are gone through.
    shows_bytes: bool,
}

impl Progress {
    pub fn new(enabled: bool) -> Self {
        Self { bars: enabled.then(MultiProgress::new), running: BTreeMap::new() }
    }

    /// `total` entries are to be gone through; 0 where the stage does not count.
    pub fn started(&mut self, lease: LeaseId, stage: &str, name: String, total: u64, shows_bytes: bool) {
        let Some(bars) = &self.bars else { return };
        let bar = bars.add(ProgressBar::new(total));
        let template = if total == 0 {
            "{spinner} {prefix:<8} {wide_msg} {elapsed}"
        } else {
            "{spinner} {prefix:<8} {wide_msg} {pos}/{len} {bar:16} {elapsed}"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(stage.to_owned());
        bar.set_message(name.clone());
        bar.enable_steady_tick(Duration::from_millis(200));
        self.running.insert(lease, Running { bar, name, shows_bytes });
    }

    pub fn update(&mut self, lease: LeaseId, done: u32, total: u32, bytes: Bytes) {
        let Some(Running { bar, name, shows_bytes }) = self.running.get(&lease) else { return };
        bar.set_length(u64::from(total));
        bar.set_position(u64::from(done));
        let seconds = bar.elapsed().as_secs_f64();
        if *shows_bytes && bytes != Bytes::ZERO && 0.5 < seconds {
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
        if let Some(running) = self.running.remove(&lease) {
            running.bar.finish_and_clear();
        }
    }

    /// A line that stays.
    pub fn said(&self, line: &str) {
        if let Some(bars) = &self.bars {
            let _ = bars.println(line);
        }
    }

    pub fn clear(&mut self) {
        for (_, running) in std::mem::take(&mut self.running) {
            running.bar.finish_and_clear();
        }
    }
}
