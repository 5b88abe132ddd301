//! Draws the tables of the view: workers and their runners, candidates, and decisions.

use opt_shared::units::Bytes;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Text};

use super::columns::{Cell, fit, lines};
use super::{Theme, amount, clock};
use crate::top::answer::counted_steps;
use crate::top::model::{Candidate, CandidateState, Lease, Model, Pane, Replay};

/// The width below which there is no room for all columns of the workers.
const NARROW: u16 = 64;

pub(super) fn workers(frame: &mut Frame<'_>, model: &Model, theme: Theme, area: Rect) {
    if model.workers.is_empty() {
        frame.render_widget(Text::raw(" no worker is running").style(theme.faint()), area);
        return;
    }
    let head = ["worker", "state", "age", "owed", "peak", "lease, entry", "rate"];
    let mut rows = vec![head.map(|word| Cell::new(word, theme.faint()))];
    // The row of the selected worker. Rows of runners cannot be selected.
    let mut chosen = 0;
    for (index, it) in model.workers.iter().enumerate() {
        if index == model.chosen_worker() {
            chosen = rows.len();
        }
        let state = if it.is_ending { "ending" } else { &it.state };
        rows.push([
            Cell::plain(format!("{} {}", it.id, it.role)),
            Cell::new(state, if it.lease.is_some() { theme.busy() } else { Style::new() }),
            Cell::right(it.age.map_or_else(|| "?".to_owned(), clock)),
            Cell::right(amount(it.owed)),
            Cell::right(amount(it.peak)),
            Cell::plain(it.lease.as_ref().map_or_else(String::new, activity)),
            Cell::plain(it.lease.as_ref().and_then(rate).unwrap_or_default()),
        ]);
        for runner in &it.runners {
            let limit = runner.limit.map_or_else(String::new, |limit| format!("may owe {limit}"));
            rows.push([
                Cell::plain(format!("└ pid {}", runner.pid)),
                Cell::plain("runner"),
                Cell::right(runner.age.map_or_else(|| "?".to_owned(), clock)),
                Cell::right(amount(runner.owed)),
                Cell::right(amount(runner.peak)),
                Cell::new(limit, theme.faint()),
                Cell::plain(""),
            ]);
        }
    }
    if area.width < NARROW {
        for row in &mut rows {
            // There is no room for all columns. The activity matters more than the age and the peak, so these are left
            // empty.
            [row[2], row[4]] = [Cell::plain(""), Cell::plain("")];
        }
    }
    let lines = lines(rows, 5, 28, usize::from(area.width));
    table(frame, theme, area, lines, (model.focus == Pane::Workers).then_some(chosen), chosen);
}

fn activity(lease: &Lease) -> String {
    let entries = lease.entries.map_or_else(String::new, |(done, all)| format!(" {done}/{all}"));
    format!("{}{entries} {}", lease.stage, lease.candidate)
}

/// Returns the rate at which a lease verifies captures. There is no rate for other stages, or in a lease's first
/// second.
fn rate(lease: &Lease) -> Option<String> {
    let bytes = lease.bytes.filter(|_| lease.stage == "verify")?;
    let held = lease.held.filter(|held| 1.0 <= *held)?;
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate for people"
    )]
    let rate = Bytes::new((bytes.get() as f64 / held) as u64);
    Some(format!("{rate}/s"))
}

pub(super) fn candidates(frame: &mut Frame<'_>, model: &Model, theme: Theme, area: Rect) {
    let order = model.order();
    let chosen = model.chosen_candidate(&order);
    // Only visible rows are formatted, because there may be thousands.
    let height = usize::from(area.height).saturating_sub(1).max(1);
    let first = (chosen + 1).saturating_sub(height);
    let mut rows =
        vec![["rank", "candidate", "status", "speed-up", "95 %"].map(|it| Cell::new(it, theme.faint()))];
    rows.extend(order.iter().skip(first).take(height).map(|it| candidate(it, theme)));
    let lines = lines(rows, 1, 16, usize::from(area.width));
    let highlight = (model.focus == Pane::Candidates && !order.is_empty()).then_some(chosen + 1 - first);
    table(frame, theme, area, lines, highlight, 0);
}

fn candidate(it: &Candidate, theme: Theme) -> [Cell; 5] {
    let (state, style) = match &it.state {
        CandidateState::Running(stage) => (format!("in {stage}"), theme.busy()),
        CandidateState::Waiting(stage) => (format!("waits for {stage}"), theme.faint()),
        CandidateState::Ended(status) if status == "PASSED" => (status.clone(), theme.good()),
        CandidateState::Ended(status) if status == "SKIPPED" => (status.clone(), theme.faint()),
        CandidateState::Ended(status) => (status.clone(), theme.bad()),
        CandidateState::Unknown => ("?".to_owned(), theme.faint()),
    };
    let (value, interval) = match it.speedup {
        _ if it.replay.is_some() => it.replay.as_ref().map(replayed).unwrap_or_default(),
        Some([value, low, high]) => {
            let mark = if it.same_inputs { " =" } else { "" };
            (format!("{value:.2}x"), format!("{low:.2}-{high:.2}{mark}"))
        }
        None if it.is_baseline => ("baseline".to_owned(), String::new()),
        None => (String::new(), String::new()),
    };
    [
        Cell::right(it.rank.map_or_else(String::new, |rank| rank.to_string())),
        Cell::plain(it.name.clone()),
        Cell::new(state, style),
        Cell::right(value),
        Cell::plain(interval),
    ]
}

/// Describes the time that a replay took, and the part of it that was spent waiting. Before the replay has a result,
/// describes its number of steps and its budget.
fn replayed(it: &Replay) -> (String, String) {
    match (it.total, it.stalled) {
        (Some(total), Some(stalled)) => (format!("{total:.2} s"), format!("{stalled:.2} s stalled")),
        _ => {
            let steps = it.steps.map_or_else(String::new, counted_steps);
            (steps, format!("in {}", amount(it.budget)))
        }
    }
}

pub(super) fn policy(frame: &mut Frame<'_>, model: &Model, theme: Theme, area: Rect) {
    let height = usize::from(area.height);
    let back = model.back.min(model.policy.len().saturating_sub(1));
    let last = model.policy.len() - back;
    let width = usize::from(area.width);
    let rows = model.policy.iter().take(last).skip(last.saturating_sub(height)).map(|it| {
        let figures = if it.figures.is_empty() { String::new() } else { format!("  ({})", it.figures) };
        let text = format!(" {} {:<14} {}{figures}", it.at, it.decision, it.reason);
        Line::raw(head_of(&text, width))
    });
    let lines: Vec<Line<'static>> = rows.collect();
    let chosen = lines.len().checked_sub(1);
    table(frame, theme, area, lines, chosen.filter(|_| model.focus == Pane::Policy), 0);
}

/// Returns the beginning of a text, which is its most important part.
fn head_of(text: &str, width: usize) -> String {
    if Line::raw(text).width() <= width {
        return text.to_owned();
    }
    let short: String = text.chars().take(width.saturating_sub(1)).collect();
    fit(&format!("{short}…"), width)
}

/// Draws a table, which is scrolled so that `visible_row` and the row below it can be seen. The first line, which may
/// be a header, always stays.
fn table(
    frame: &mut Frame<'_>,
    theme: Theme,
    area: Rect,
    mut lines: Vec<Line<'static>>,
    highlighted: Option<usize>,
    visible_row: usize,
) {
    if let Some(line) = highlighted.and_then(|row| lines.get_mut(row)) {
        let missing = usize::from(area.width).saturating_sub(line.width());
        line.push_span(" ".repeat(missing));
        *line = std::mem::take(line).patch_style(theme.chosen());
    }
    let height = usize::from(area.height);
    // If a worker has a runner, the row below the worker is its first runner.
    let hidden = (visible_row + 2).min(lines.len()).saturating_sub(height);
    if 0 < hidden && 1 < lines.len() {
        lines.drain(1..=hidden.min(lines.len() - 1));
    }
    frame.render_widget(Text::from(lines), area);
}
