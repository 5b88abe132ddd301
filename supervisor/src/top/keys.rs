//! Handles the keys that the user presses: each changes the view, or sends a request to the run. Requests that cannot
//! be undone are sent only after a confirmation.

use opt_shared::units::Bytes;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::answer::counted_steps;
use super::model::{Candidate, CandidateState, Command, Model, Pane, Popup};

const OVER: &str = "the run has ended, or the connection to it is lost: q quits";
/// The number of rows by which page up and page down move.
const PAGE: isize = 10;

/// Each key, with a short name for the bottom line and a description for the help.
pub(super) const KEYS: [(&str, &str, &str); 10] = [
    ("q", "quit", "leave the view; the run continues"),
    ("p", "pause", "stop granting leases, or resume; running leases go on"),
    ("r", "recycle", "replace the chosen worker after its lease; nothing is lost"),
    ("R", "now", "replace the chosen worker at once; its attempt is repeated"),
    ("c", "cancel", "end the chosen candidate as SKIPPED"),
    ("w", "why", "explain the state of the chosen worker or candidate"),
    ("tab", "pane", "go to the next pane; on small terminals it replaces another"),
    ("↑↓", "choose", "move in the pane; so do page up, page down, home and end"),
    ("?", "help", "show this help"),
    ("esc", "close", "close the window above the panes"),
];

pub(super) fn press(model: &mut Model, key: KeyEvent) -> Option<Command> {
    model.note = None;
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return matches!(key.code, KeyCode::Char('c')).then_some(Command::Quit);
    }
    match std::mem::take(&mut model.popup) {
        Popup::None => {}
        Popup::Confirm { question, command } => {
            return match key.code {
                KeyCode::Char('y' | 'Y') => Some(command),
                KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc => None,
                // If any other key is pressed, the question stays on the screen.
                _ => {
                    model.popup = Popup::Confirm { question, command };
                    None
                }
            };
        }
        Popup::Help | Popup::Text(_) => return None,
    }
    match key.code {
        KeyCode::Char('q') => return Some(Command::Quit),
        KeyCode::Char('?' | 'h') => model.popup = Popup::Help,
        KeyCode::Tab => model.focus = next(model.focus),
        KeyCode::BackTab => model.focus = next(next(next(model.focus))),
        KeyCode::Up | KeyCode::Char('k') => move_selection(model, -1),
        KeyCode::Down | KeyCode::Char('j') => move_selection(model, 1),
        KeyCode::PageUp => move_selection(model, -PAGE),
        KeyCode::PageDown => move_selection(model, PAGE),
        KeyCode::Home => move_selection(model, isize::MIN),
        KeyCode::End => move_selection(model, isize::MAX),
        KeyCode::Char('p' | 'r' | 'R' | 'c' | 'w') | KeyCode::Enter if model.over.is_some() => {
            model.note = Some(OVER.to_owned());
        }
        KeyCode::Char('p') => return Some(if model.run.paused { Command::Resume } else { Command::Pause }),
        KeyCode::Char('r') => recycle(model, false),
        KeyCode::Char('R') => recycle(model, true),
        KeyCode::Char('c') => cancel(model),
        KeyCode::Char('w') | KeyCode::Enter => return why(model),
        _ => {}
    }
    None
}

fn next(pane: Pane) -> Pane {
    match pane {
        Pane::Memory => Pane::Workers,
        Pane::Workers => Pane::Candidates,
        Pane::Candidates => Pane::Policy,
        Pane::Policy => Pane::Memory,
    }
}

fn move_selection(model: &mut Model, by: isize) {
    let within = |at: usize, count: usize| at.saturating_add_signed(by).min(count.saturating_sub(1));
    match model.focus {
        Pane::Memory => {}
        Pane::Workers => {
            let to = within(model.chosen_worker(), model.workers.len());
            model.worker = model.workers.get(to).map(|it| it.id);
        }
        Pane::Candidates => {
            let order = model.order();
            let to = within(model.chosen_candidate(&order), order.len());
            model.candidate = order.get(to).map(|it| it.name.clone());
        }
        // Moving down leads to later decisions, so `back` shrinks.
        Pane::Policy => {
            let last_row = model.policy.len().saturating_sub(1);
            let back = model.back.min(last_row);
            model.back = back.saturating_add_signed(by.saturating_neg()).min(last_row);
        }
    }
}

fn recycle(model: &mut Model, now: bool) {
    let Some(it) = model.workers.get(model.chosen_worker()) else {
        model.note = Some("there is no worker to recycle".to_owned());
        return;
    };
    let doing = it.lease.as_ref().map(|lease| format!("{} of {}", lease.stage, lease.candidate));
    let (role, id) = (&it.role, it.id);
    let question = match (doing, now) {
        (Some(doing), false) => format!("Recycle {role} worker-{id} after its lease ({doing})?"),
        (Some(doing), true) => {
            format!("Kill {role} worker-{id} now? The next worker repeats stage {doing}.")
        }
        (None, _) => format!("Recycle {role} worker-{id}?"),
    };
    model.popup = Popup::Confirm { question, command: Command::Recycle { worker: id, now } };
}

fn cancel(model: &mut Model) {
    let order = model.order();
    let chosen = order.get(model.chosen_candidate(&order));
    if chosen.is_some_and(|it| it.replay.is_some()) {
        model.note = Some("a replay cannot be cancelled by itself (`ctl shutdown` ends the run)".to_owned());
        return;
    }
    let Some((job, candidate)) = chosen.and_then(|it| it.name.split_once('/')) else {
        model.note = Some("there is no candidate to cancel".to_owned());
        return;
    };
    if let Some(CandidateState::Ended(status)) = chosen.map(|it| &it.state) {
        model.note = Some(format!("{job}/{candidate} has ended as {status}, so it cannot be cancelled"));
        return;
    }
    let question = format!("Cancel {job}/{candidate}? It ends as SKIPPED.");
    let command = Command::Cancel { job: job.to_owned(), candidate: candidate.to_owned() };
    model.popup = Popup::Confirm { question, command };
}

fn why(model: &mut Model) -> Option<Command> {
    match model.focus {
        Pane::Workers => model.workers.get(model.chosen_worker()).map(|it| Command::WhyWorker(it.id)),
        Pane::Candidates => {
            let order = model.order();
            let chosen = order.get(model.chosen_candidate(&order));
            if let Some(text) = chosen.and_then(|it| about_replay(it)) {
                model.popup = Popup::Text(text);
                return None;
            }
            chosen.map(|it| Command::WhyCandidate(it.name.clone()))
        }
        Pane::Policy => {
            let at = model.policy.len().checked_sub(model.back + 1)?;
            let it = model.policy.get(at)?;
            model.popup = Popup::Text(format!("{} {}: {} ({})", it.at, it.decision, it.reason, it.figures));
            None
        }
        Pane::Memory => None,
    }
}

/// Describes a replay with all of its figures that are known to the view.
fn about_replay(it: &Candidate) -> Option<String> {
    let replay = it.replay.as_ref()?;
    let size = |bytes: Option<Bytes>| bytes.map_or_else(|| "?".to_owned(), |bytes| bytes.to_string());
    let steps = replay.steps.map_or_else(|| "? steps".to_owned(), counted_steps);
    let state = match &it.state {
        CandidateState::Ended(status) => status.clone(),
        CandidateState::Running(_) => "runs".to_owned(),
        CandidateState::Waiting(_) | CandidateState::Unknown => "waits for the jobs".to_owned(),
    };
    let plan = format!("{}: {state}, {steps} under a budget of {}", it.name, size(replay.budget));
    let Some((total, stalled)) = replay.total.zip(replay.stalled) else { return Some(plan) };
    let (peak, moved) = (size(replay.peak), size(replay.moved));
    Some(format!(
        "{plan}; {total:.2} s, {stalled:.2} s of it waiting for tensors; at most {peak} in the pool, {moved} moved into it"
    ))
}
