//! Prints a run's memory for a terminal: predictions beside measurements, and how much each kind of process owed over
//! time.

use std::fmt::Write as _;

use opt_shared::units::Bytes;

use super::digest::WorstPhases;
use super::figures::{elapsed, one_line, shorten};
use crate::record::timeline::{MarkKind, Series, Timeline};
use crate::record::{PhaseRecord, Stage};

const NAME: usize = 18;
/// The width of a column of sizes such as `1023 MiB`.
const SIZE: usize = 9;
const GAP: usize = 2;
/// Characters that fill a cell of the terminal from one eighth to eight eighths.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Returns a line for the worst phase of each stage of each job.
pub(super) fn predictions(phases: &WorstPhases, width: usize) -> Vec<String> {
    let rows = phases.rows();
    if rows.is_empty() {
        return Vec::new();
    }
    const FIXED: usize = 7 + 2 * SIZE + 6 + 5 * GAP;
    let room = width.saturating_sub(FIXED).max(20);
    let longest = rows.iter().map(|(phase, _)| phase.job.chars().count()).max().unwrap_or(0);
    let job = longest.clamp("job".len(), room / 2);
    let worst_width = room - job;
    let mut lines = vec![format!(
        "{:<job$}  {:<7}  {:>SIZE$}  {:>SIZE$}  {:>6}  phases, worst",
        "job", "stage", "predicted", "measured", "share"
    )];
    for (phase, count) in rows {
        let size = |bytes: Option<Bytes>| bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
        let share = match (phase.predicted_bytes, phase.peak_owed_bytes) {
            (Some(predicted), Some(measured)) if predicted != Bytes::ZERO => {
                format!("{} %", percent(measured, predicted))
            }
            _ => "-".to_owned(),
        };
        let whose = phase.candidate.as_deref().map_or_else(String::new, |it| format!(", {}", one_line(it)));
        let worst = shorten(&format!("{count}{whose}"), worst_width);
        lines.push(format!(
            "{:<job$}  {:<7}  {:>SIZE$}  {:>SIZE$}  {share:>6}  {worst}",
            shorten(&one_line(&phase.job), job),
            phase.stage.name(),
            size(phase.predicted_bytes),
            size(phase.peak_owed_bytes),
        ));
    }
    let exceeds = |phase: &PhaseRecord| {
        phase
            .predicted_bytes
            .zip(phase.peak_owed_bytes)
            .is_some_and(|(predicted, measured)| predicted != Bytes::ZERO && predicted < measured)
    };
    if phases.rows().iter().any(|(phase, _)| exceeds(phase)) {
        lines.push(
            "Above the prediction: the candidate or the compiler itself took memory. It has a".to_owned(),
        );
        lines.push("separate limit, which was reserved in addition to the prediction.".to_owned());
    }
    lines
}

pub(super) fn percent(part: Bytes, whole: Bytes) -> u64 {
    let share = u128::from(part.get()) * 100 / u128::from(whole.get().max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Returns a percentage as text. A share below 1 % that is not zero becomes `less than 1 %`.
pub(super) fn share(part: Bytes, whole: Bytes) -> String {
    match percent(part, whole) {
        0 if part != Bytes::ZERO => "less than 1 %".to_owned(),
        percent => format!("{percent} %"),
    }
}

/// Draws a row for each kind of process, all on the same scale, and below them the stages, kills and recycles.
pub(super) fn timeline(timeline: &Timeline, width: usize) -> Vec<String> {
    let columns = width.saturating_sub(NAME + SIZE + 2 * GAP);
    if timeline.is_empty() || columns < 10 {
        return Vec::new();
    }
    let (from, to) = (timeline.from, timeline.to.max(timeline.from + 1));
    let full = timeline.tree.peak();
    let mut lines = vec![format!("memory owed over {}: {}", elapsed(to - from), scale(timeline, full))];
    let mut row = |name: &str, series: &Series| {
        let mut line = format!("{name:<NAME$}  ");
        for owed in series.columns(from, to, columns) {
            line.push(bar(owed, full));
        }
        let _ = write!(line, "  {:>SIZE$}", series.peak().to_string());
        lines.push(line);
    };
    row("all processes", &timeline.tree);
    for (group, series) in &timeline.groups {
        row(group.name(), series);
    }
    let column = |at: u64| {
        let position = u128::from(at.saturating_sub(from)) * columns as u128 / u128::from(to - from);
        usize::try_from(position).unwrap_or(columns).min(columns - 1)
    };
    let mut stages = vec![' '; columns];
    for phase in &timeline.phases {
        let letter = match phase.stage {
            Stage::Build => 'b',
            Stage::Verify => 'v',
            Stage::Screen | Stage::Profile | Stage::Confirm => 'p',
            Stage::Replay => 'r',
        };
        // The other stages serve timing, so timing is shown even if the column contains other stages too.
        for cell in &mut stages[column(phase.started)..=column(phase.ended)] {
            if *cell != 'p' {
                *cell = letter;
            }
        }
    }
    lines.push(format!("{:<NAME$}  {}", "stage (b, v, p, r)", stages.iter().collect::<String>()));
    if !timeline.marks.is_empty() {
        let mut marks = vec![' '; columns];
        for mark in &timeline.marks {
            let cell = &mut marks[column(mark.at)];
            *cell = match (mark.kind, *cell) {
                (MarkKind::KilledRunner | MarkKind::KilledWorker, _) | (MarkKind::Recycled, 'x') => 'x',
                (MarkKind::Recycled, _) => 'r',
            };
        }
        lines.push(format!("{:<NAME$}  {}", "kill x, recycle r", marks.iter().collect::<String>()));
    }
    let (start, end) = ("0", elapsed(to - from));
    lines.push(format!("{:<NAME$}  {start}{end:>room$}", "", room = columns - start.len()));
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

fn scale(timeline: &Timeline, full: Bytes) -> String {
    match timeline.ceiling {
        Some(ceiling) if ceiling != Bytes::ZERO => {
            format!("█ is {full}, {} of the ceiling of {ceiling}", share(full, ceiling))
        }
        _ => format!("█ is {full}"),
    }
}

/// The character for a value. A value above zero is visible, however small it is.
fn bar(owed: Option<Bytes>, full: Bytes) -> char {
    match owed {
        None | Some(Bytes::ZERO) => ' ',
        Some(owed) => {
            let eighths = u128::from(owed.get()) * BARS.len() as u128 / u128::from(full.get().max(1));
            let index = usize::try_from(eighths).unwrap_or(BARS.len()).clamp(1, BARS.len());
            BARS[index - 1]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sketch::timeline as sketch;
    use super::*;

    #[test]
    fn timeline_draws_memory_stages_and_marks_within_eighty_columns() {
        let text = timeline(&sketch(), 80).join("\n");
        assert!(text.contains("over 10.0 s: █ is 400 MiB, 40 % of the ceiling of 1000 MiB"), "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        let row = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).expect("a row").to_owned();
            line.chars().skip(NAME + GAP).collect::<String>()
        };
        // First the supervisor and a worker, then a runner that grows, then no runner, then two at once.
        let all = row("all processes");
        assert!(all.starts_with("▁▁▁▁") && all.contains("▅▅▆") && all.contains("▁███"), "{text}");
        assert!(row("profiler's runners").trim_start().starts_with("▇▇▇"), "{text}");
        assert!(row("stage").contains("bbbb") && row("stage").ends_with("pppp"), "{text}");
        let marks = row("kill x, recycle r");
        assert!(marks.find('x') < marks.find('r'), "{text}");
    }

    #[test]
    fn run_without_samples_or_width_draws_nothing() {
        assert!(timeline(&Timeline::default(), 80).is_empty());
        assert!(timeline(&sketch(), 30).is_empty());
    }

    #[test]
    fn small_value_is_visible_and_zero_is_not() {
        let full = Bytes::gib(1);
        assert_eq!(bar(None, full), ' ');
        assert_eq!(bar(Some(Bytes::ZERO), full), ' ');
        assert_eq!(bar(Some(Bytes::kib(4)), full), '▁');
        assert_eq!(bar(Some(full), full), '█');
        assert_eq!(bar(Some(Bytes::mib(512)), full), '▄');
        assert_eq!(bar(Some(full), Bytes::ZERO), '█');
        assert_eq!(share(Bytes::kib(4), full), "less than 1 %");
        assert_eq!(share(Bytes::ZERO, full), "0 %");
        assert_eq!(share(Bytes::mib(512), full), "50 %");
    }
}
