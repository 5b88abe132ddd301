//! Shows progress on a terminal: a line for each running attempt, and a permanent line for each candidate or replay
//! that has ended.
//!
//! Nothing is shown unless progress is enabled. If the terminal blocks, lines are dropped. Only `clear` waits for the
//! terminal, and only for a short time.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use opt_shared::ids::LeaseId;
use opt_shared::units::Bytes;

use crate::outlet::{ItemWriter, Outlet, QueueLimits};

/// The limits on changes that are waiting for a blocked terminal. Each change weighs 1, so only their number counts.
const QUEUE: QueueLimits = QueueLimits { items: 1024, weight: 1024 };
/// The timeout for writing the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

pub struct Progress {
    screen: Option<Outlet<Change>>,
    /// The attempts that should be on the screen. If changes were dropped, all of these attempts are sent again.
    running: BTreeMap<LeaseId, ShownAttempt>,
    /// Whether a change was dropped, and the screen has not been brought up to date since.
    missed: bool,
}

/// The facts about an attempt that its line shows.
#[derive(Clone)]
struct ShownAttempt {
    stage: &'static str,
    name: String,
    /// The number of entries to process, or 0 if the stage does not count them.
    total: u64,
    /// Whether to show bytes and their rate. They make sense only for a verification.
    shows_bytes: bool,
}

enum Change {
    Started(LeaseId, ShownAttempt),
    Update {
        lease: LeaseId,
        done: u32,
        total: u32,
        bytes: Bytes,
    },
    Ended(LeaseId),
    /// A permanent line.
    Line(String),
    /// The attempts that are running. The lines of all other attempts are removed.
    Only(BTreeMap<LeaseId, ShownAttempt>),
}

impl Progress {
    /// Starts the thread if progress is enabled. Without a thread, nothing is shown.
    pub fn new(enabled: bool) -> Self {
        let screen = enabled.then(|| Outlet::open("progress", QUEUE, Screen::default()).ok()).flatten();
        Self { screen, running: BTreeMap::new(), missed: false }
    }

    /// Adds a line for an attempt. `total` is the number of entries to process, or 0 if the stage does not count them.
    pub fn started(
        &mut self,
        lease: LeaseId,
        stage: &'static str,
        name: String,
        total: u64,
        shows_bytes: bool,
    ) {
        if self.screen.is_some() {
            let attempt = ShownAttempt { stage, name, total, shows_bytes };
            self.running.insert(lease, attempt.clone());
            self.show(Change::Started(lease, attempt));
        }
    }

    pub fn update(&mut self, lease: LeaseId, done: u32, total: u32, bytes: Bytes) {
        self.show(Change::Update { lease, done, total, bytes });
    }

    pub fn ended(&mut self, lease: LeaseId) {
        if self.running.remove(&lease).is_some() {
            self.show(Change::Ended(lease));
        }
    }

    /// Prints a permanent line.
    pub fn print(&mut self, line: String) {
        self.show(Change::Line(line));
    }

    pub fn clear(&mut self) {
        self.running.clear();
        self.show(Change::Only(BTreeMap::new()));
        if let Some(screen) = &self.screen {
            screen.flush(FLUSH_TIMEOUT);
        }
    }

    fn show(&mut self, change: Change) {
        let Some(screen) = &self.screen else { return };
        if self.missed {
            self.missed = !screen.put(Change::Only(self.running.clone()), 1);
        }
        self.missed |= !screen.put(change, 1);
    }
}

/// The state of the terminal.
#[derive(Default)]
struct Screen {
    bars: MultiProgress,
    running: BTreeMap<LeaseId, Running>,
}

struct Running {
    bar: ProgressBar,
    attempt: ShownAttempt,
}

impl ItemWriter<Change> for Screen {
    fn write(&mut self, change: Change) {
        match change {
            Change::Started(lease, attempt) => self.started(lease, attempt),
            Change::Update { lease, done, total, bytes } => self.update(lease, done, total, bytes),
            Change::Ended(lease) => self.ended(lease),
            Change::Line(line) => drop(self.bars.println(line)),
            Change::Only(running) => {
                let ended: Vec<LeaseId> =
                    self.running.keys().copied().filter(|lease| !running.contains_key(lease)).collect();
                for lease in ended {
                    self.ended(lease);
                }
                for (lease, attempt) in running {
                    if !self.running.contains_key(&lease) {
                        self.started(lease, attempt);
                    }
                }
            }
        }
    }

    fn lost(&mut self, items: u64) {
        let _ =
            self.bars.println(format!("progress updates dropped, because the terminal was blocked: {items}"));
    }
}

impl Screen {
    fn started(&mut self, lease: LeaseId, attempt: ShownAttempt) {
        let bar = self.bars.add(ProgressBar::new(attempt.total));
        let template = if attempt.total == 0 {
            "{spinner} {prefix:<8} {wide_msg} {elapsed}"
        } else {
            "{spinner} {prefix:<8} {wide_msg} {pos}/{len} {bar:16} {elapsed}"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(attempt.stage);
        bar.set_message(attempt.name.clone());
        bar.enable_steady_tick(Duration::from_millis(200));
        self.running.insert(lease, Running { bar, attempt });
    }

    fn update(&mut self, lease: LeaseId, done: u32, total: u32, bytes: Bytes) {
        let Some(Running { bar, attempt }) = self.running.get(&lease) else { return };
        bar.set_length(u64::from(total));
        bar.set_position(u64::from(done));
        let seconds = bar.elapsed().as_secs_f64();
        if attempt.shows_bytes && bytes != Bytes::ZERO && 0.5 < seconds {
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a rate that is only displayed"
            )]
            let rate = Bytes::new((bytes.get() as f64 / seconds) as u64);
            bar.set_message(format!("{}  {bytes} at {rate}/s", attempt.name));
        }
    }

    fn ended(&mut self, lease: LeaseId) {
        if let Some(running) = self.running.remove(&lease) {
            running.bar.finish_and_clear();
        }
    }
}
