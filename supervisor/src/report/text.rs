//! Renders the result of a run as text, for a terminal or for a file.
//!
//! Foreign texts in the output cannot control the terminal.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use opt_shared::device::DeviceKind;
use opt_shared::outcome::{Blame, Status};
use opt_shared::units::Bytes;

use super::digest::WorstPhases;
use super::figures::{
    counted, head_of, median, one_line, percent, printable, shorten, small, speedup, time, weaker_tiers,
};
use super::marks::{is_doubtful, is_unvaried, legend, marks, same_inputs};
use super::replays::ReplayText;
use super::{memory, summary};
use crate::record::timeline::Timeline;
use crate::record::{CandidateRecord, CapturesForm, JobRecord, JobStatus, Ranking, RunRecord};

#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// The longest line, in characters. Long names are shortened, and other texts are wrapped or cut. Only lines that
    /// contain the run's folder can be longer.
    pub width: usize,
    pub color: bool,
    pub detail: Detail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// A short answer at the end of a run: the ranking, a line for each failure, and where to find more.
    Answer,
    /// Everything, including feedback, memory over time and decisions.
    Everything,
}

impl Default for Style {
    fn default() -> Self {
        Self { width: 80, color: false, detail: Detail::Everything }
    }
}

/// The smallest width for which a table can be laid out. If a style asks for less, lines have this width.
const MIN_WIDTH: usize = FIXED + MIN_NAME;
/// The smallest width of the name column. Names that are shortened to this width can usually still be told apart.
const MIN_NAME: usize = 12;
/// The largest number of failed candidates of a job that get a paragraph, or a line in a short answer.
const MAX_FAILURES_SHOWN: usize = 20;
/// The largest number of lines of one feedback.
const MAX_FEEDBACK_LINES: usize = 24;

const RANK: usize = 4;
const STATUS: usize = 6;
/// The width of a speed-up such as `0.500x [0.499–0.501]`.
const SPEEDUP: usize = 20;
const TIME: usize = 8;
const NOISE: usize = 6;
const OWED: usize = 9;
const GAP: &str = "  ";
/// The indent of the lines about failed candidates.
const INDENT: &str = "  ";
/// The width of all columns except the name's, including the gaps between columns.
const FIXED: usize = RANK + STATUS + SPEEDUP + TIME + NOISE + OWED + 6 * GAP.len();

/// Prints the result, with as much detail as the style asks for. An empty timeline is not drawn.
pub fn render(run: &RunRecord, timeline: &Timeline, folder: &Path, style: Style) -> String {
    let mut page = Page { text: String::new(), style: Style { width: style.width.max(MIN_WIDTH), ..style } };
    for job in &run.jobs {
        page.job(job);
        page.line("");
    }
    let winner = |job: &str| run.jobs.iter().find(|it| it.name == job)?.winner.as_deref();
    for line in run.replays.iter().flat_map(|replay| ReplayText::of(replay, winner).lines()) {
        page.wrapped("", &line);
    }
    if style.detail == Detail::Everything {
        page.predictions_and_timeline(run, timeline);
    }
    if run.run.device_kind != DeviceKind::Cpu {
        page.wrapped("", &format!("device: {}", one_line(&run.run.device)));
    }
    page.memory(run);
    if style.detail == Detail::Everything {
        page.policy(run);
    }
    if 0 < run.run.without_verdict {
        let (count, have) = match run.run.without_verdict {
            1 => ("1 candidate".to_owned(), "has"),
            count => (format!("{count} candidates"), "have"),
        };
        page.wrapped(
            "",
            &format!(
                "{count} {have} no verdict, because a worker or the host failed (`run --resume` tries again)"
            ),
        );
    }
    page.line(&format!(
        "run {}: {}, {}",
        one_line(&run.run.name),
        run.run.status,
        folder.join(summary::FILE_NAME).display()
    ));
    if style.detail == Detail::Answer {
        page.line(&format!("`opt-supervisor report {}` shows everything", folder.display()));
    }
    page.text
}

/// Returns one line that names the winner with its speed-up or its time, or explains why there is no winner.
pub fn headline(job: &JobRecord) -> String {
    let find = |name: &str| job.candidates.iter().find(|candidate| candidate.name == name);
    let others = job.candidates.iter().filter(|candidate| Some(&candidate.name) != job.baseline.as_ref());
    headline_of(job, find, others.count())
}

/// Like [`headline`], but for a job whose candidates are not loaded and are looked up by name.
pub(super) fn headline_of<'a, Candidates>(
    job: &JobRecord<Candidates>,
    find: impl Fn(&str) -> Option<&'a CandidateRecord>,
    others: usize,
) -> String {
    let name = one_line(&job.name);
    let baseline = job.baseline.as_deref().map(one_line);
    if let Some(winner) = &job.winner {
        let candidate = find(winner);
        let winner = one_line(winner);
        let ratio = candidate.and_then(|candidate| candidate.speedup);
        let same = same_inputs(candidate);
        let unsettled = job.ranking == Some(Ranking::Unsettled);
        let wins = if unsettled { "is ahead, but the ranking is not settled" } else { "wins" };
        if let (Some(ratio), Some(baseline)) = (ratio, &baseline) {
            let confirmed = match job.winner_confirmed {
                _ if unsettled => "",
                true => ", confirmed",
                false => ", not confirmed",
            };
            return format!(
                "{name}: {winner} {wins}, {} against {baseline}{confirmed}{same}",
                speedup(&ratio)
            );
        }
        let wins = match candidate.and_then(|winner| median(winner, None)) {
            Some(median) if unsettled => format!("{name}: {winner} {wins}, {}{same}", time(median)),
            Some(median) => format!("{name}: {winner} wins with {}{same}", time(median)),
            None => format!("{name}: {winner} {wins}"),
        };
        // If the baseline failed, the run ends as if no candidate had won. The line must say why.
        return match (job.status, job.detail.as_deref().map(one_line)) {
            (JobStatus::BaselineFailed, Some(detail)) => format!("{wins}, {} ({detail})", job.status),
            (JobStatus::BaselineFailed, None) => format!("{wins}, {}", job.status),
            _ => wins,
        };
    }
    let why = match job.status {
        JobStatus::Pending => "no winner yet".to_owned(),
        JobStatus::BaselineFailed => {
            let status = job.baseline.as_deref().and_then(&find).and_then(|candidate| candidate.status);
            // If there is a detail, it names the status.
            let status = status.filter(|_| job.detail.is_none()).map(|status| format!(" ({status})"));
            let status = status.unwrap_or_default();
            format!("no winner, the baseline {} failed{status}", baseline.unwrap_or_default())
        }
        JobStatus::Passed if others == 0 => {
            "the baseline passed, but there is nothing to compare it with".to_owned()
        }
        JobStatus::Passed if job.ranking.is_none() => "passed, but nothing is ranked".to_owned(),
        JobStatus::Passed => "no winner: no candidate is certainly faster".to_owned(),
        // The detail says how far the candidates got.
        JobStatus::NonePassed if job.detail.is_some() => "no winner".to_owned(),
        JobStatus::NonePassed => {
            format!("no winner, none of {} passed", counted(others, "candidate", "candidates"))
        }
        status => format!("no winner, {status}"),
    };
    match job.detail.as_deref().map(str::trim).filter(|detail| !detail.is_empty()) {
        Some(detail) => format!("{name}: {why}: {}", one_line(detail)),
        None => format!("{name}: {why}"),
    }
}

/// Returns true if the candidate has ended, and neither passed nor was skipped on purpose.
fn has_failed(candidate: &CandidateRecord) -> bool {
    candidate.status.is_some_and(|status| !matches!(status, Status::Passed | Status::Skipped))
}

#[derive(Clone, Copy)]
enum Tone {
    Bold,
    Good,
    Bad,
    /// A failure that is not the candidate's fault, or figures that are uncertain.
    Other,
    Faint,
}

impl Tone {
    const fn code(self) -> &'static str {
        match self {
            Self::Bold => "1",
            Self::Good => "32",
            Self::Bad => "31",
            Self::Other => "33",
            Self::Faint => "2",
        }
    }

    fn of(candidate: &CandidateRecord) -> Self {
        match (candidate.status, candidate.blame) {
            (Some(Status::Passed), _) => Self::Good,
            (None, _) => Self::Faint,
            (_, Some(Blame::Candidate)) => Self::Bad,
            _ => Self::Other,
        }
    }
}

struct Page {
    text: String,
    style: Style,
}

impl Page {
    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// Colours a text. The text must already be padded, because padding would also count the colour codes.
    fn paint(&self, text: String, tone: Tone) -> String {
        if self.style.color { format!("\x1b[{}m{text}\x1b[0m", tone.code()) } else { text }
    }

    fn job(&mut self, job: &JobRecord) {
        for line in wrap(&headline(job), self.style.width) {
            let line = self.paint(line, Tone::Bold);
            self.line(&line);
        }
        if let Some(because) = &job.unsettled_because {
            for line in wrap(&format!("UNSETTLED: {}", one_line(because)), self.style.width) {
                let line = self.paint(line, Tone::Bad);
                self.line(&line);
            }
        }
        let captures = &job.captures;
        let mut facts = Vec::new();
        if let Some(entries) = captures.entries {
            facts.push(format!("{entries} {}", if entries == 1 { "entry" } else { "entries" }));
        }
        if let Some(bytes) = captures.bytes {
            facts.push(match captures.unique_bytes {
                Some(unique) => format!("{bytes} captured, {unique} without repeats"),
                None => format!("{bytes} captured"),
            });
        }
        if captures.form == Some(CapturesForm::Store) {
            facts.push("from a store".to_owned());
        }
        if !facts.is_empty() {
            self.wrapped("  ", &facts.join(", "));
        }
        if job.candidates.is_empty() {
            return;
        }
        let name_width = self.name_width(job);
        self.line("");
        self.line(&format!(
            "{:>RANK$}{GAP}{:<name_width$}{GAP}{:<STATUS$}{GAP}{:>SPEEDUP$}{GAP}{:>TIME$}{GAP}{:>NOISE$}{GAP}{:>OWED$}",
            "rank", "candidate", "status", "speed-up", "median", "noise", "peak owed"
        ));
        let mut ranked: Vec<_> = job.candidates.iter().collect();
        // Candidates without a rank follow those with one. The sort is stable, so equals stay in the plan's order.
        ranked.sort_by(|one, other| {
            let rank = |it: &CandidateRecord| it.rank.unwrap_or(u32::MAX);
            // The baseline has no speed-up in its record, because the speed-up would always be 1.
            let value = |it: &CandidateRecord| it.speedup.map_or(1.0, |speedup| speedup.value);
            rank(one).cmp(&rank(other)).then_with(|| value(other).total_cmp(&value(one)))
        });
        let baseline = job.candidates.iter().find(|it| Some(&it.name) == job.baseline.as_ref());
        let shows_everything = self.style.detail == Detail::Everything;
        // In a short answer, a failed candidate has a line with the reason instead of a row.
        for candidate in ranked.iter().filter(|candidate| shows_everything || !has_failed(candidate)) {
            self.row(candidate, baseline, name_width);
        }
        for explanation in legend(ranked.iter().copied()) {
            self.wrapped("      ", &explanation);
        }
        let passed = ranked.iter().filter(|candidate| candidate.status == Some(Status::Passed));
        let reasons: BTreeSet<&str> =
            passed.filter_map(|candidate| candidate.not_timed_because.as_deref()).collect();
        // If nothing was timed in a job, the job's first line already contains the reason.
        let is_new = |reason: &&str| !job.detail.as_deref().is_some_and(|detail| detail.contains(*reason));
        for reason in reasons.into_iter().filter(is_new) {
            self.wrapped("      ", &format!("not timed: {}", one_line(reason)));
        }
        if let Some(weaker) = weaker_tiers(job.candidates.iter()) {
            self.wrapped("      ", &weaker);
        }
        let failed: Vec<_> = ranked.iter().filter(|candidate| has_failed(candidate)).collect();
        if !shows_everything && !failed.is_empty() {
            self.line("");
        }
        for candidate in failed.iter().take(MAX_FAILURES_SHOWN) {
            if shows_everything {
                self.failure(candidate);
            } else {
                self.failure_line(candidate);
            }
        }
        if let Some(more) = failed.len().checked_sub(MAX_FAILURES_SHOWN).filter(|&more| more > 0) {
            self.line("");
            self.line(&format!("{more} more failed; {} has all of them", summary::FILE_NAME));
        }
    }

    /// Returns the width of the name column, which is the length of the longest name if the line has room for it.
    fn name_width(&self, job: &JobRecord) -> usize {
        let longest = job.candidates.iter().map(|candidate| candidate.name.chars().count()).max();
        let room = self.style.width.saturating_sub(FIXED);
        longest.unwrap_or(0).clamp("candidate".len(), room.max("candidate".len()))
    }

    fn row(&mut self, candidate: &CandidateRecord, baseline: Option<&CandidateRecord>, name_width: usize) {
        let unknown = || "-".to_owned();
        let rank = candidate.rank.map_or_else(unknown, |rank| rank.to_string());
        let name = shorten(&one_line(&candidate.name), name_width);
        let owed = candidate.resources.runner_peak_owed_bytes.map_or_else(unknown, |peak| peak.to_string());
        // The mark for inputs that did not vary is in the gap after the noise.
        let in_gap = usize::from(is_unvaried(candidate));
        let room_for_owed = GAP.len() + OWED - in_gap;
        // An uncertain figure must not look as good as a certain one.
        let tone = if is_doubtful(candidate) { Tone::Other } else { Tone::of(candidate) };
        let figures = if candidate.profile.is_some() && candidate.status == Some(Status::Passed) {
            let times = candidate.profile.as_ref().map(|profile| &profile.times);
            let ratio = candidate.speedup.as_ref().map_or_else(unknown, speedup);
            let median = median(candidate, baseline).map_or_else(unknown, time);
            let noise = times.and_then(|times| times.noise).map_or_else(unknown, percent);
            let noise = format!("{noise}{}", marks(candidate));
            let room = NOISE + in_gap;
            let status = self.paint(format!("{:<STATUS$}", Status::Passed), tone);
            format!("{status}{GAP}{ratio:>SPEEDUP$}{GAP}{median:>TIME$}{GAP}{noise:>room$}")
        } else {
            // A candidate without times has its status and blame in these columns.
            const ROOM: usize = STATUS + SPEEDUP + TIME + NOISE + 3 * GAP.len();
            let words = match (candidate.status, candidate.blame) {
                (None, _) => "not finished".to_owned(),
                (Some(status), Some(Blame::Candidate)) => status.to_string(),
                (Some(status), Some(blame)) => format!("{status}, blame: {}", blame.name()),
                (Some(Status::Passed), None) if candidate.not_timed_because.is_some() => {
                    format!("{}, not timed", Status::Passed)
                }
                (Some(status), None) => status.to_string(),
            };
            self.paint(format!("{words:<ROOM$}"), tone)
        };
        self.line(&format!("{rank:>RANK$}{GAP}{name:<name_width$}{GAP}{figures}{owed:>room_for_owed$}"));
    }

    fn failure_line(&mut self, candidate: &CandidateRecord) {
        let name = one_line(&candidate.name);
        let status = candidate.status.map(Status::name).unwrap_or_default();
        let blame = match candidate.blame {
            Some(blame) if blame != Blame::Candidate => format!(", blame: {}", blame.name()),
            _ => String::new(),
        };
        let detail = candidate.detail.as_deref().map(|detail| format!(": {}", one_line(detail)));
        let line = format!("{name}: {status}{blame}{}", detail.unwrap_or_default());
        let line = head_of(&line, self.style.width - INDENT.len());
        let line = self.paint(line, Tone::of(candidate));
        self.line(&format!("{INDENT}{line}"));
    }

    fn failure(&mut self, candidate: &CandidateRecord) {
        self.line("");
        let name = shorten(&one_line(&candidate.name), self.style.width - 1);
        let name = self.paint(name, Tone::of(candidate));
        self.line(&format!("{name}:"));
        if let Some(feedback) = candidate.feedback.as_deref().filter(|feedback| !feedback.trim().is_empty()) {
            let feedback = printable(feedback);
            for line in feedback.lines().take(MAX_FEEDBACK_LINES) {
                self.wrapped("    ", line);
            }
            return;
        }
        let stage = candidate.failed_stage.map(|stage| format!(" in {stage}")).unwrap_or_default();
        let status = candidate.status.map(Status::name).unwrap_or_default();
        let detail = candidate.detail.as_deref().map(|detail| format!(": {}", one_line(detail)));
        self.wrapped("    ", &format!("{status}{stage}{}", detail.unwrap_or_default()));
        let Some(failure) = candidate.failures.first() else { return };
        self.wrapped("    ", &one_line(&format!("{}({})", failure.entry, failure.args.join(", "))));
        if let Some(found) = &failure.mismatch {
            self.wrapped(
                "    ",
                &format!(
                    "{} at {:?}: expected {}, got {}; {} of {} elements fail, relative L2 error {}",
                    found.output,
                    found.index,
                    one_line(&found.expected),
                    one_line(&found.actual),
                    found.failed,
                    found.elements,
                    small(found.relative_l2)
                ),
            );
        }
    }

    fn predictions_and_timeline(&mut self, run: &RunRecord, timeline: &Timeline) {
        let mut worst = WorstPhases::default();
        for phase in &run.memory.phases {
            worst.take(phase.clone());
        }
        let width = self.style.width;
        for lines in [memory::predictions(&worst, width), memory::timeline(timeline, width)] {
            for line in &lines {
                self.line(line);
            }
            if !lines.is_empty() {
                self.line("");
            }
        }
    }

    fn memory(&mut self, run: &RunRecord) {
        let totals = &run.memory.totals;
        let facts: Vec<String> = [
            ("peak", totals.peak_owed_bytes),
            ("ceiling", totals.host_ceiling_bytes),
            ("predicted without candidates and compilers", totals.predicted_peak_owed_bytes),
            ("swap peak", totals.swap_peak_bytes),
            ("least available", totals.min_available_bytes),
            ("peak on the device", totals.device_peak_bytes),
            ("device ceiling", totals.device_ceiling_bytes),
        ]
        .into_iter()
        .filter_map(|(name, bytes): (&str, Option<Bytes>)| Some(format!("{name} {}", bytes?)))
        .collect();
        // The peak and the limit are enough for a short answer.
        let shown = if self.style.detail == Detail::Answer { 2 } else { facts.len() };
        if !facts.is_empty() {
            self.wrapped("", &format!("memory owed: {}", facts[..shown.min(facts.len())].join(", ")));
        }
    }

    fn policy(&mut self, run: &RunRecord) {
        if run.policy.is_empty() {
            return;
        }
        let mut decisions: BTreeMap<String, usize> = BTreeMap::new();
        for row in &run.policy {
            *decisions.entry(one_line(&row.decision)).or_default() += 1;
        }
        let list: Vec<_> = decisions.iter().map(|(decision, count)| format!("{decision} {count}")).collect();
        let rows = counted(run.policy.len(), "memory decision", "memory decisions");
        self.wrapped("", &format!("{rows}: {}", list.join(", ")));
    }

    fn wrapped(&mut self, indent: &str, text: &str) {
        for line in wrap(text, self.style.width.saturating_sub(indent.len())) {
            self.line(&format!("{indent}{line}"));
        }
    }
}

/// Breaks lines at spaces, or anywhere in a word that is longer than a line. Other spaces are kept, because compilers
/// use them to align their marks.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = Vec::new();
    let mut line: Vec<char> = Vec::new();
    let mut begins = true;
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        if !begins && line.len() + 1 + word.len() > width {
            lines.push(line.drain(..).collect());
            begins = true;
        }
        if !begins {
            line.push(' ');
        }
        while word.len() > width {
            let rest = word.split_off(width);
            lines.push(word.into_iter().collect());
            word = rest;
        }
        line.extend(word);
        begins = false;
    }
    lines.push(line.into_iter().collect());
    lines
}

#[cfg(test)]
mod tests;
