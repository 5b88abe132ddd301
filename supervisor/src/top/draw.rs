//! Draws the state of the view as a frame of any size. Parts that do not fit are left out, the least important first.
//! This file decides only layout and wording.

mod chart;
mod columns;
mod layout;
mod panes;

use std::time::Duration;

use opt_shared::units::Bytes;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Wrap};

use self::columns::fit;
use self::layout::{Layout, Wanted, layout};
use super::keys::KEYS;
use super::model::{Model, Pane, Popup};

/// The colours and styles of the screen. Without colours, the screen uses words, and bold, dim and reversed text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theme {
    pub color: bool,
}

impl Theme {
    fn tint(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }

    fn good(self) -> Style {
        self.tint(Color::Green)
    }

    fn bad(self) -> Style {
        self.tint(Color::Red)
    }

    fn busy(self) -> Style {
        self.tint(Color::Cyan)
    }

    fn warning(self) -> Style {
        self.tint(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, theme: Theme) {
    let area = frame.area();
    if area.width == 0 || area.height == 0 {
        return;
    }
    let Layout { header, panes: shown, footer } = layout(area, model.focus, wanted(model));
    frame.render_widget(Paragraph::new(head(model, theme, header)), header);
    for (pane, area) in shown {
        let inner = framed(frame, model, theme, pane, area);
        match pane {
            Pane::Memory => chart::draw(frame.buffer_mut(), model, theme, inner),
            Pane::Workers => panes::workers(frame, model, theme, inner),
            Pane::Candidates => panes::candidates(frame, model, theme, inner),
            Pane::Policy => panes::policy(frame, model, theme, inner),
        }
    }
    frame.render_widget(Paragraph::new(foot(model, theme, footer)), footer);
    popup(frame, model, theme);
}

/// Returns the number of rows that the workers and the policy log could fill. The candidates get the rows that the
/// other panes leave.
fn wanted(model: &Model) -> Wanted {
    let rows = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
    let workers: usize = model.workers.iter().map(|it| 1 + it.runners.len()).sum();
    Wanted { workers: rows(workers), decisions: rows(model.policy.len()) }
}

/// Draws the line with a pane's title, and returns the area below it.
fn framed(frame: &mut Frame<'_>, model: &Model, theme: Theme, pane: Pane, area: Rect) -> Rect {
    let is_chosen = model.focus == pane;
    let style = if is_chosen { theme.strong() } else { theme.faint() };
    let mark = if is_chosen { "▸ " } else { "" };
    let title = fit(&format!(" {mark}{} ", title(model, pane)), usize::from(area.width.saturating_sub(2)));
    let block = Block::new().borders(Borders::TOP).border_style(style).title(Span::styled(title, style));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    inner
}

fn title(model: &Model, pane: Pane) -> String {
    match pane {
        Pane::Memory if model.over.is_some() => "memory: █ owed  • reclaimable".to_owned(),
        Pane::Memory => {
            let memory = &model.memory;
            let peak = |peak: Option<Bytes>| {
                peak.map_or_else(String::new, |peak| format!(" (peak {})", amount(Some(peak))))
            };
            let owed = format!("█ {} owed{}", amount(memory.owed), peak(memory.peak));
            match memory.device {
                None => format!("memory: {owed}  • {} reclaimable", amount(memory.reclaimable)),
                // A narrow screen has no room for the reclaimable memory in addition.
                Some(it) => format!(
                    "{owed}  device {}{} of {}",
                    amount(Some(it.held)),
                    peak(it.peak),
                    amount(Some(it.ceiling))
                ),
            }
        }
        Pane::Workers => "workers and runners".to_owned(),
        Pane::Candidates => format!("candidates: {} of {} have ended", model.ended(), model.run.candidates),
        Pane::Policy if 0 < model.back => format!("policy, scrolled back by {}", model.back),
        Pane::Policy => "policy (UTC)".to_owned(),
    }
}

fn head(model: &Model, theme: Theme, area: Rect) -> Vec<Line<'static>> {
    let width = usize::from(area.width);
    let (run, memory) = (&model.run, &model.memory);
    let (state, style) = state(model, theme);
    let mut first =
        vec![(run.name.clone(), theme.strong()), (state, style), (clock(run.elapsed), Style::new())];
    let plain = |text: String| (text, Style::new());
    if model.over.is_some() {
        // Owed memory is not shown, because the last known value is out of date.
        return vec![segments(first, width), segments(vec![plain(run.folder.clone())], width)];
    }
    first
        .push(plain(run.remaining.map_or_else(|| "ETA ?".to_owned(), |left| format!("ETA {}", clock(left)))));
    first.extend(run.per_minute.map(|rate| plain(format!("{rate:.1} candidates/min"))));
    let second = [
        format!("owed {}", amount(memory.owed)),
        format!("charged {} of {}", amount(memory.charged), amount(memory.ceiling)),
        format!("available {}", amount(memory.available)),
        format!("floor {}", amount(memory.floor)),
    ];
    let second = second.map(plain).to_vec();
    vec![segments(first, width), segments(second, width)]
}

fn state(model: &Model, theme: Theme) -> (String, Style) {
    let run = &model.run;
    if let Some(over) = &model.over {
        return (over.clone(), theme.warning());
    }
    if model.silent != Duration::ZERO {
        return (format!("no answer for {} s", model.silent.as_secs()), theme.warning());
    }
    match (run.ending.as_str(), run.paused, &run.waits) {
        ("drain", _, _) => ("ending after the running leases".to_owned(), theme.warning()),
        ("now", _, _) => ("ending".to_owned(), theme.warning()),
        (_, true, _) => ("paused".to_owned(), theme.warning()),
        // The part after the colon contains only figures, so it is left out.
        (_, _, Some(waits)) => {
            (format!("waits for {}", waits.split(':').next().unwrap_or_default()), theme.warning())
        }
        ("", _, _) => ("connecting".to_owned(), Style::new()),
        _ if run.open => ("running, stays open".to_owned(), theme.good()),
        _ => ("running".to_owned(), theme.good()),
    }
}

/// Returns a line with as many of the segments as fit, from the first on. If even the first does not fit, it is
/// shortened.
fn segments(all: Vec<(String, Style)>, width: usize) -> Line<'static> {
    let mut line = Line::default();
    for (text, style) in all {
        let gap = if line.spans.is_empty() { 1 } else { 2 };
        let width_left = width.saturating_sub(line.width() + gap);
        let text = if line.spans.is_empty() { fit(&text, width_left) } else { text };
        let span = Span::styled(text, style);
        if width_left < span.width() {
            break;
        }
        line.push_span(Span::raw(" ".repeat(gap)));
        line.push_span(span);
    }
    line
}

fn foot(model: &Model, theme: Theme, area: Rect) -> Line<'static> {
    let width = usize::from(area.width);
    if let Some(note) = &model.note {
        return Line::styled(fit(&format!(" {note}"), width), theme.strong());
    }
    if model.over.is_some() {
        let all = format!(" q quit   `opt-supervisor report {}` shows the result", model.run.folder);
        return Line::styled(fit(&all, width), theme.strong());
    }
    let mut line = Line::default();
    // As many keys as fit are shown, the most important ones first.
    let by_importance = ["q", "?", "p", "r", "R", "c", "w", "tab", "↑↓"];
    for wanted in by_importance {
        let Some((key, word, _)) = KEYS.iter().find(|(key, _, _)| *key == wanted) else { continue };
        let word = if *key == "p" && model.run.paused { "resume" } else { word };
        let spans = [Span::styled(format!(" {key}"), theme.strong()), Span::raw(format!(" {word} "))];
        if width < line.width() + spans.iter().map(Span::width).sum::<usize>() {
            break;
        }
        line.extend(spans);
    }
    line
}

fn popup(frame: &mut Frame<'_>, model: &Model, theme: Theme) {
    let (title, lines) = match &model.popup {
        Popup::None => return,
        Popup::Help => {
            let line = |(key, _, sentence): &(&str, &str, &str)| {
                Line::from(vec![
                    Span::styled(format!("{key:<4} "), theme.strong()),
                    Span::raw((*sentence).to_owned()),
                ])
            };
            (" keys ", KEYS.iter().map(line).collect())
        }
        Popup::Confirm { question, .. } => {
            let answers = Line::from(vec![
                Span::styled("y", theme.strong()),
                Span::raw(" yes   "),
                Span::styled("n", theme.strong()),
                Span::raw(" no"),
            ]);
            (" sure? ", vec![Line::raw(question.clone()), answers])
        }
        Popup::Text(text) => (" any key closes ", vec![Line::raw(text.clone())]),
    };
    let screen = frame.area();
    let width = screen.width.min(76);
    let within = usize::from(width.saturating_sub(4)).max(1);
    // Wrapping at words needs more space than the letters alone.
    let rows_of = |width: usize| if width <= within { 1 } else { (width * 10 / 9).div_ceil(within) };
    let rows: usize = lines.iter().map(|line: &Line<'_>| rows_of(line.width())).sum();
    let height = u16::try_from(rows + 2).unwrap_or(u16::MAX).min(screen.height);
    let area = Rect {
        x: screen.x + (screen.width - width) / 2,
        y: screen.y + (screen.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, area);
    let block = Block::bordered()
        .border_style(theme.strong())
        .title(title)
        .padding(ratatui::widgets::Padding::horizontal(1));
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }).block(block), area);
}

fn amount(bytes: Option<Bytes>) -> String {
    bytes.map_or_else(|| "?".to_owned(), |bytes| bytes.to_string())
}

/// Returns a time as text, such as `0:07`, `1:02:03` or `49 h`.
fn clock(seconds: f64) -> String {
    let all = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default().as_secs();
    let (hours, minutes, seconds) = (all / 3600, all / 60 % 60, all % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        1..=23 => format!("{hours}:{minutes:02}:{seconds:02}"),
        _ => format!("{hours} h"),
    }
}
