//! Holds the state of the view: what is known about the run, and what the user is looking at. Updates and keys change
//! the state, and `draw` shows it.

use std::collections::VecDeque;
use std::time::Duration;

use opt_shared::units::Bytes;
use serde_json::Value;

use super::answer::{MAX_ROWS, bytes, clean, figures, list, number, seconds, text};
use super::memory::Memory;

/// The number of decisions that are kept for scrolling back.
const MAX_DECISIONS: usize = 500;
/// The largest number of replays that are shown. No plan can have that many.
const MAX_REPLAYS: usize = 64;
/// The largest number of slots in the history. The run sends at most 512.
const MAX_SLOTS: usize = 4096;

/// A report from the threads of `link` to the view.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Update {
    Status(Value),
    Workers(Value),
    Candidates(Value),
    History(Value),
    Decisions(Value),
    Event(Value),
    /// The answer to a request.
    Message(String),
    /// The explanation of a worker or candidate that the user asked for.
    Why(String),
    /// A connection to the run is lost. The thread that used it sends no more updates.
    Lost(String),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pane {
    Memory,
    Workers,
    #[default]
    Candidates,
    Policy,
}

/// A window in front of the panes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Popup {
    #[default]
    None,
    Help,
    /// Asks the user to confirm a command.
    Confirm {
        question: String,
        command: Command,
    },
    Text(String),
}

/// The command that a key press gives. All commands but `Quit` are sent to the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Quit,
    Pause,
    Resume,
    Recycle { worker: u32, now: bool },
    Cancel { job: String, candidate: String },
    WhyWorker(u32),
    WhyCandidate(String),
}

/// The state of the run. Times are in seconds. `per_minute` is the number of candidates that end in a minute.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RunState {
    pub name: String,
    pub folder: String,
    pub paused: bool,
    pub open: bool,
    /// How the run is ending: `no`, `drain` or `now`.
    pub ending: String,
    pub elapsed: f64,
    pub remaining: Option<f64>,
    pub per_minute: Option<f64>,
    /// Why the next lease must wait, if it must.
    pub waits: Option<String>,
    pub ended: usize,
    pub candidates: usize,
}

/// The highest owed and the highest reclaimable memory in a time slot. The slot begins `at` seconds after the
/// supervisor was started. If the run was resumed, the last start counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Slot {
    pub at: f64,
    pub owed: Bytes,
    pub reclaimable: Bytes,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Worker {
    pub id: u32,
    pub role: String,
    pub state: String,
    pub is_ending: bool,
    pub age: Option<f64>,
    pub owed: Option<Bytes>,
    pub peak: Option<Bytes>,
    pub lease: Option<Lease>,
    pub runners: Vec<Runner>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Lease {
    pub candidate: String,
    pub stage: String,
    /// The number of seconds since the lease was sent.
    pub held: Option<f64>,
    /// The number of entries that are done, and the total number of entries.
    pub entries: Option<(u32, u32)>,
    pub bytes: Option<Bytes>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Runner {
    pub pid: u32,
    pub age: Option<f64>,
    pub owed: Option<Bytes>,
    pub peak: Option<Bytes>,
    pub limit: Option<Bytes>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum CandidateState {
    #[default]
    Unknown,
    Running(String),
    Waiting(String),
    Ended(String),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Candidate {
    pub name: String,
    pub is_baseline: bool,
    pub state: CandidateState,
    pub rank: Option<u32>,
    /// The speed-up, and the two ends of its interval.
    pub speedup: Option<[f64; 3]>,
    /// Whether no timed entry had inputs that varied.
    pub same_inputs: bool,
    /// The figures of the replay, if this row is a replay of the plan.
    pub replay: Option<Replay>,
}

/// Those figures of a replay that are shown beside its name and state.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Replay {
    pub steps: Option<u32>,
    pub budget: Option<Bytes>,
    /// Figures of a replay that passed: seconds in total and spent waiting, bytes moved, and peak use of the pool.
    pub total: Option<f64>,
    pub stalled: Option<f64>,
    pub moved: Option<Bytes>,
    pub peak: Option<Bytes>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Decision {
    pub at: String,
    pub decision: String,
    pub reason: String,
    pub figures: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Model {
    pub run: RunState,
    pub memory: Memory,
    pub history: Vec<Slot>,
    /// The width of a slot, in seconds.
    width: f64,
    pub workers: Vec<Worker>,
    /// The candidates of all jobs, in the plan's order.
    pub candidates: Vec<Candidate>,
    /// The replays, in the plan's order.
    pub replays: Vec<Candidate>,
    pub policy: VecDeque<Decision>,
    /// How the run has ended, or why the connection was lost.
    pub over: Option<String>,
    /// How long no answer or event has arrived. It is zero if this is too short to be reported.
    pub silent: Duration,

    pub focus: Pane,
    pub popup: Popup,
    /// A note that is shown until the next key.
    pub note: Option<String>,
    /// The selected worker and the selected candidate or replay.
    pub worker: Option<u32>,
    pub candidate: Option<String>,
    /// The number of decisions by which the view is scrolled back from the latest one.
    pub back: usize,
}

impl Model {
    pub(super) fn receive(&mut self, update: Update) {
        match update {
            Update::Status(answer) => self.status(&answer),
            Update::Workers(answer) => self.workers = list(&answer["workers"]).iter().map(worker).collect(),
            Update::Candidates(answer) => self.page(&answer),
            Update::History(answer) => self.slots(&answer),
            Update::Decisions(answer) => {
                // Some of these decisions may already have arrived as events.
                let received = std::mem::take(&mut self.policy);
                self.policy = list(&answer["decisions"]).iter().map(decision).collect();
                for it in received {
                    if !self.policy.contains(&it) {
                        self.policy.push_back(it);
                    }
                }
            }
            Update::Event(event) => self.event(&event),
            Update::Message(what) => self.note = Some(clean(&what)),
            Update::Why(what) => self.popup = Popup::Text(clean(&what)),
            Update::Lost(why) => self.end(clean(&why)),
        }
    }

    /// Records that the run has ended or cannot be reached. If this is called again, the first reason is kept.
    fn end(&mut self, how: String) {
        self.over.get_or_insert(how);
        self.workers.clear();
        self.run.remaining = None;
        if matches!(self.popup, Popup::Confirm { .. }) {
            self.popup = Popup::None;
        }
    }

    fn status(&mut self, answer: &Value) {
        let (run, pace) = (&answer["run"], &answer["pace"]);
        let count =
            |field: &str| -> u64 { list(&answer["jobs"]).iter().filter_map(|job| job[field].as_u64()).sum() };
        let size = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        self.run = RunState {
            name: text(&run["name"]),
            folder: text(&run["folder"]),
            paused: run["paused"] == true,
            open: run["open"] == true,
            ending: text(&run["ending"]),
            elapsed: seconds(&run["elapsed_s"]).unwrap_or_default(),
            remaining: seconds(&pace["remaining_s"]),
            per_minute: seconds(&pace["candidates_per_minute"]),
            waits: answer["waiting"]["for"].as_str().map(clean),
            ended: size(count("passed") + count("not_passed")),
            candidates: size(count("candidates")),
        };
        self.replays = list(&answer["replays"]).iter().take(MAX_REPLAYS).map(replay).collect();
        self.memory = Memory::of(answer);
    }

    /// Inserts a page of candidates. Pages are loaded in rotation. A submission moves the candidates of later jobs, so
    /// it is shown completely only after all pages have been loaded once.
    fn page(&mut self, answer: &Value) {
        let from = answer["from"].as_u64().and_then(|from| usize::try_from(from).ok()).unwrap_or(0);
        for (row, place) in list(&answer["candidates"]).iter().zip(from..MAX_ROWS) {
            let row = candidate(row);
            if place == self.candidates.len() {
                self.candidates.push(row);
            } else if let Some(known) = self.candidates.get_mut(place) {
                *known = row;
            } else {
                return;
            }
        }
    }

    fn slots(&mut self, answer: &Value) {
        let width = seconds(&answer["width_s"]).unwrap_or_default();
        let slots: Vec<Slot> = list(&answer["slots"])
            .iter()
            .filter_map(|slot| {
                Some(Slot { at: seconds(&slot[0])?, owed: bytes(&slot[1])?, reclaimable: bytes(&slot[2])? })
            })
            .collect();
        let first = slots.first().map_or(f64::INFINITY, |slot| slot.at);
        self.history.retain(|slot| slot.at < first);
        self.history.extend(slots);
        if self.width < width {
            self.width = width;
            // Neighbouring slots are merged in the same way as in the run.
            let mut merged: Vec<Slot> = Vec::with_capacity(self.history.len());
            for slot in self.history.drain(..) {
                let at = (slot.at / width).floor() * width;
                match merged.last_mut() {
                    Some(last) if last.at == at => {
                        last.owed = last.owed.max(slot.owed);
                        last.reclaimable = last.reclaimable.max(slot.reclaimable);
                    }
                    _ => merged.push(Slot { at, ..slot }),
                }
            }
            self.history = merged;
        }
        let surplus = self.history.len().saturating_sub(MAX_SLOTS);
        self.history.drain(..surplus);
    }

    fn event(&mut self, event: &Value) {
        match event["kind"].as_str() {
            Some("policy") => {
                let row = decision(event);
                if !self.policy.contains(&row) {
                    self.policy.push_back(row);
                    // If the user has scrolled back, the same rows stay visible.
                    self.back += usize::from(0 < self.back);
                }
                while MAX_DECISIONS < self.policy.len() {
                    self.policy.pop_front();
                }
            }
            Some("candidate") => {
                let update = candidate(event);
                if let Some(known) = self.candidates.iter_mut().find(|it| it.name == update.name) {
                    *known = Candidate { is_baseline: known.is_baseline, ..update };
                }
            }
            Some("replay") => {
                let update = replay(event);
                if let Some(known) = self.replays.iter_mut().find(|it| it.name == update.name) {
                    *known = update;
                }
            }
            Some("run") => {
                let code = event["exit_code"].as_u64().map(|code| format!(" with exit code {code}"));
                self.end(String::new());
                // The exit code says more than a closed connection. It therefore replaces that reason, even if it
                // arrives later.
                self.over = Some(format!("the run has ended{}", code.unwrap_or_default()));
            }
            _ => {}
        }
    }

    /// Returns all rows in the order in which they are shown: running replays and candidates, replays that have ended,
    /// candidates that passed (by job and rank), other candidates that have ended, and waiting candidates and replays.
    pub(super) fn order(&self) -> Vec<&Candidate> {
        let class = |it: &Candidate| match &it.state {
            CandidateState::Running(_) => 0,
            CandidateState::Ended(status) if status == "PASSED" => 1,
            CandidateState::Ended(_) => 2,
            CandidateState::Waiting(_) | CandidateState::Unknown => 3,
        };
        let is_over = |it: &&Candidate| matches!(it.state, CandidateState::Ended(_));
        let (over, others): (Vec<_>, Vec<_>) = self.replays.iter().partition(is_over);
        let mut jobs: Vec<&str> = Vec::new();
        let mut rows: Vec<(u8, usize, u32, &Candidate)> = Vec::with_capacity(self.candidates.len());
        for it in &self.candidates {
            let job = it.name.split('/').next().unwrap_or_default();
            // Candidates of a job are adjacent in the plan, so the search from the end nearly always finds the
            // job at once.
            let index = jobs.iter().rposition(|known| *known == job).unwrap_or_else(|| {
                jobs.push(job);
                jobs.len() - 1
            });
            let class = class(it);
            // Candidates that have not passed stay in the plan's order.
            let (job, rank) = if class == 1 { (index, it.rank.unwrap_or(u32::MAX)) } else { (0, 0) };
            rows.push((class, job, rank, it));
        }
        rows.sort_by_key(|&(class, job, rank, _)| (class, job, rank));
        let mut rows: Vec<&Candidate> = rows.into_iter().map(|(_, _, _, it)| it).collect();
        let running = rows.iter().take_while(|it| class(it) == 0).count();
        rows.splice(running..running, over);
        let (first, last): (Vec<_>, Vec<_>) = others.into_iter().partition(|it| class(it) == 0);
        rows.splice(0..0, first);
        rows.extend(last);
        rows
    }

    /// Returns the number of candidates that have ended. If the whole list is loaded, they are counted in the list,
    /// because events keep the list up to date.
    pub(super) fn ended(&self) -> usize {
        if self.candidates.len() < self.run.candidates {
            return self.run.ended;
        }
        self.candidates.iter().filter(|it| matches!(it.state, CandidateState::Ended(_))).count()
    }

    /// Returns the position of the selected candidate in `order`, or 0 if none is selected.
    pub(super) fn chosen_candidate(&self, order: &[&Candidate]) -> usize {
        let chosen = self.candidate.as_ref();
        chosen.and_then(|name| order.iter().position(|it| it.name == *name)).unwrap_or(0)
    }

    pub(super) fn chosen_worker(&self) -> usize {
        self.worker.and_then(|id| self.workers.iter().position(|it| it.id == id)).unwrap_or(0)
    }
}

fn worker(row: &Value) -> Worker {
    Worker {
        id: number(&row["id"]).unwrap_or_default(),
        role: text(&row["role"]),
        state: text(&row["state"]),
        is_ending: row["asked_to_go"] == true,
        age: seconds(&row["age_s"]),
        owed: bytes(&row["owed_bytes"]),
        peak: bytes(&row["peak_owed_bytes"]),
        lease: row["lease"].is_object().then(|| lease(&row["lease"])),
        runners: list(&row["runners"])
            .iter()
            .map(|it| Runner {
                pid: number(&it["pid"]).unwrap_or_default(),
                age: seconds(&it["age_s"]),
                owed: bytes(&it["owed_bytes"]),
                peak: bytes(&it["peak_owed_bytes"]),
                limit: bytes(&it["limit_bytes"]),
            })
            .collect(),
    }
}

fn lease(row: &Value) -> Lease {
    let entries = (number(&row["entries_done"]), number(&row["entries"]));
    Lease {
        candidate: text(&row["candidate"]),
        stage: text(&row["stage"]),
        held: seconds(&row["seconds"]),
        entries: match entries {
            (Some(done), Some(all)) if 0 < all => Some((done, all)),
            _ => None,
        },
        bytes: bytes(&row["bytes_done"]).filter(|bytes| *bytes != Bytes::ZERO),
    }
}

fn candidate(row: &Value) -> Candidate {
    let stage = || text(&row["stage"]);
    let speedup = ["value", "ci_low", "ci_high"].map(|field| row["speedup"][field].as_f64());
    Candidate {
        name: text(&row["candidate"]),
        is_baseline: row["baseline"] == true,
        state: match (row["status"].as_str(), row["running"].as_bool()) {
            (Some(status), _) => CandidateState::Ended(clean(status)),
            (None, Some(true)) => CandidateState::Running(stage()),
            (None, Some(false)) => CandidateState::Waiting(stage()),
            (None, None) => CandidateState::Unknown,
        },
        rank: number(&row["rank"]),
        speedup: match speedup {
            [Some(value), Some(low), Some(high)] => Some([value, low, high]),
            _ => None,
        },
        same_inputs: row["same_inputs"] == true,
        replay: None,
    }
}

fn replay(row: &Value) -> Candidate {
    let is_running = row["running"] == true;
    Candidate {
        name: format!("replay {}", text(&row["name"])),
        state: match row["status"].as_str() {
            Some(status) => CandidateState::Ended(clean(status)),
            None if is_running => CandidateState::Running("replay".to_owned()),
            None => CandidateState::Waiting("the jobs".to_owned()),
        },
        replay: Some(Replay {
            steps: number(&row["steps"]),
            budget: bytes(&row["budget_bytes"]),
            total: seconds(&row["total_ms"]).map(|ms| ms / 1e3),
            stalled: seconds(&row["stall_ms"]).map(|ms| ms / 1e3),
            moved: bytes(&row["bytes_moved"]),
            peak: bytes(&row["peak_pool_bytes"]),
        }),
        ..Candidate::default()
    }
}

fn decision(row: &Value) -> Decision {
    Decision {
        // The form is 2026-01-31T12:34:56.789Z.
        at: text(&row["t"]).chars().skip(11).take(8).collect(),
        decision: text(&row["decision"]),
        reason: text(&row["reason"]),
        figures: figures(row),
    }
}
