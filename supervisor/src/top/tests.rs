//! Tests `top`: the screens of a fixed run in several sizes, which are compared character by character, the effects of
//! keys, and hostile answers.

use std::path::Path;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use serde_json::{Value, json};

use super::draw::{Theme, draw};
use super::keys::press;
use super::link::request;
use super::model::{CandidateState, Command, Model, Pane, Popup, Update};
use crate::snapshot;

const MIB: u64 = 1 << 20;

fn status() -> Value {
    json!({
        "run": {
            "name": "demo", "folder": "/home/ann/kernels/runs/demo", "pid": 4711, "elapsed_s": 93.4,
            "paused": false, "open": false, "ending": "no", "metrics": null
        },
        "pace": { "candidates_ended": 6, "candidates_per_minute": 3.854, "remaining_s": 47.2 },
        "jobs": [
            { "name": "embedding", "candidates": 2, "waiting": 0, "running": 0, "passed": 2, "not_passed": 0 },
            { "name": "softmax", "candidates": 7, "waiting": 2, "running": 1, "passed": 2, "not_passed": 2 },
        ],
        "leases": [],
        "waiting": null,
        "memory": {
            "host_ceiling_bytes": 6 * 1024 * MIB, "host_floor_bytes": 1200 * MIB, "charged_bytes": 2580 * MIB,
            "owed_bytes": 2211 * MIB, "reclaimable_bytes": 96 * MIB, "available_bytes": 20 * 1024 * MIB,
            "peak_owed_bytes": 2400 * MIB
        },
    })
}

fn workers() -> Value {
    json!({ "workers": [
        {
            "id": 3, "role": "verifier", "state": "leased", "pid": 100, "age_s": 71.0, "leases": 9,
            "lease": {
                "id": 17, "candidate": "softmax/bad/one_with_a_rather_long_name", "stage": "verify", "attempt": 1,
                "seconds": 4.2, "deadline_in_s": 100.0, "entries_done": 11, "entries": 20,
                "bytes_done": 5000 * MIB
            },
            "runners": [{
                "pid": 31337, "age_s": 0.4, "owed_bytes": 2200 * MIB, "peak_owed_bytes": 2300 * MIB,
                "limit_bytes": 2568 * MIB
            }],
            "owed_bytes": 2205 * MIB, "peak_owed_bytes": 2305 * MIB, "charged_bytes": 2572 * MIB,
            "validated_bytes": 0, "asked_to_go": true
        },
        {
            "id": 4, "role": "profiler", "state": "idle", "pid": 101, "age_s": 3700.0, "leases": 2, "lease": null,
            "runners": [], "owed_bytes": 2 * MIB, "peak_owed_bytes": 640 * MIB, "charged_bytes": 8 * MIB,
            "validated_bytes": 0, "asked_to_go": false
        },
    ] })
}

fn candidates() -> Value {
    let speedup = |value: f64| json!({ "value": value, "ci_low": value * 0.98, "ci_high": value * 1.03 });
    json!({ "total": 9, "from": 0, "candidates": [
        { "candidate": "embedding/naive", "baseline": true, "status": "PASSED", "rank": 2, "speedup": null },
        { "candidate": "embedding/fast", "baseline": false, "status": "PASSED", "rank": 1, "speedup": speedup(1.52) },
        { "candidate": "softmax/naive", "baseline": true, "status": "PASSED", "rank": 2, "speedup": null },
        {
            "candidate": "softmax/fast", "baseline": false, "status": "PASSED", "rank": 1, "speedup": speedup(11.25),
            "same_inputs": true
        },
        { "candidate": "softmax/bad/segfaults", "baseline": false, "status": "CRASHED" },
        { "candidate": "softmax/bad/wrong", "baseline": false, "status": "INCORRECT_NUMERICAL" },
        {
            "candidate": "softmax/bad/one_with_a_rather_long_name", "baseline": false, "stage": "verify",
            "attempt": 1, "running": true
        },
        { "candidate": "softmax/later", "baseline": false, "stage": "profile", "attempt": 1, "running": false },
        { "candidate": "softmax/last", "baseline": false, "stage": "build", "attempt": 1, "running": false },
    ] })
}

fn history() -> Value {
    let slots: Vec<Value> = (0..180)
        .map(|step: u32| {
            let owed = match step % 60 {
                0..=9 => 8,
                up @ 10..=39 => u64::from(up - 9) * 80,
                down => u64::from(60 - down) * 100,
            };
            json!([f64::from(step) / 2.0, owed * MIB, u64::from(step % 90) * 10 * MIB])
        })
        .collect();
    json!({ "width_s": 0.5, "slots": slots })
}

fn decision(second: u32, decision: &str, reason: &str) -> Value {
    json!({
        "t": format!("2026-01-31T12:34:{second:02}.789Z"), "decision": decision, "reason": reason,
        "numbers": { "worker": 3, "owed_bytes": 48 * MIB }
    })
}

fn decisions() -> Value {
    json!({ "decisions": [
        decision(1, "admit", "the first lease fits"),
        decision(7, "batch", "entries are timed together up to 2.00 GiB"),
        decision(31, "recycle", "the verifier validated 1.20 GiB since its birth, which is large"),
        decision(32, "wait", "the next lease needs 2.51 GiB, and 2.52 GiB of 6.00 GiB are charged"),
        decision(40, "kill", "a runner owed more than it may"),
    ] })
}

/// Returns the state of the view for a fixed run.
fn model() -> Model {
    let mut model = Model::default();
    for update in [
        Update::Decisions(decisions()),
        Update::Status(status()),
        Update::Workers(workers()),
        Update::History(history()),
        Update::Candidates(candidates()),
    ] {
        model.receive(update);
    }
    model
}

fn frame(model: &Model, width: u16, height: u16, color: bool) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a backend");
    terminal.draw(|frame| draw(frame, model, Theme { color })).expect("drawn");
    terminal.backend().buffer().clone()
}

fn letters(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let rows = buffer.content().chunks(width).map(|row| {
        let row: String = row.iter().map(|cell| cell.symbol()).collect();
        row.trim_end().to_owned() + "\n"
    });
    rows.collect()
}

fn assert_snapshot(screens: &[(&str, String)]) {
    snapshot::assert_snapshot(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/snapshots"), screens);
}

#[test]
fn screens_match_their_snapshots() {
    let model = model();
    let at = |width, height| letters(&frame(&model, width, height, false));
    assert_snapshot(&[("80x24", at(80, 24)), ("200x50", at(200, 50)), ("50x12", at(50, 12))]);
}

#[test]
fn narrow_screen_shows_the_memory_of_a_card_with_its_peak() {
    let mut answer = status();
    let device = json!({
        "device_owed_bytes": 300 * MIB, "device_ceiling_bytes": 8 * 1024 * MIB, "device_peak_bytes": 700 * MIB
    });
    answer["device"] = device;
    let mut model = model();
    model.receive(Update::Status(answer));
    let screen = letters(&frame(&model, 80, 24, false));
    assert!(screen.contains("(peak 2.34 GiB)  device 300 MiB (peak 700 MiB) of 8.00 GiB"), "{screen}");
}

#[test]
fn popups_match_their_snapshots() {
    let (mut help, mut sure) = (model(), model());
    press(&mut help, KeyEvent::from(KeyCode::Char('?')));
    press(&mut sure, KeyEvent::from(KeyCode::Char('R')));
    assert_snapshot(&[
        ("help_80x24", letters(&frame(&help, 80, 24, false))),
        ("confirm_50x12", letters(&frame(&sure, 50, 12, false))),
    ]);
}

#[test]
fn frame_of_any_size_is_drawn_within_its_bounds() {
    let mut models = vec![Model::default(), model(), model(), model()];
    models[2].popup = Popup::Help;
    models[3].popup = Popup::Text("a sentence with words ".repeat(30));
    for model in &mut models {
        for focus in [Pane::Memory, Pane::Workers, Pane::Candidates, Pane::Policy] {
            model.focus = focus;
            for (width, height) in [
                (0, 0),
                (1, 1),
                (2, 3),
                (7, 4),
                (10, 30),
                (20, 5),
                (40, 10),
                (60, 15),
                (139, 29),
                (140, 30),
                (400, 3),
            ] {
                frame(model, width, height, true);
            }
        }
    }
}

#[test]
fn plain_theme_draws_no_colour() {
    let mut model = model();
    for popup in [Popup::None, Popup::Help] {
        model.popup = popup;
        let plain = frame(&model, 100, 30, false);
        assert!(plain.content().iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    }
    let colored = frame(&model, 100, 30, true);
    assert!(colored.content().iter().any(|cell| cell.fg != Color::Reset));
}

#[test]
fn foreign_text_cannot_control_the_terminal() {
    let nasty = "a\u{1b}[2J\u{7}\u{202e}b\r\n\u{9b}31m\u{200b}c";
    let mut model = model();
    model.receive(Update::Candidates(json!({ "total": 1, "from": 0, "candidates": [
        { "candidate": format!("softmax/{nasty}"), "status": nasty }
    ] })));
    model.receive(Update::Event(
        json!({ "kind": "policy", "t": nasty, "decision": nasty, "reason": nasty, "numbers": { nasty: 1 } }),
    ));
    model.receive(Update::Status(json!({ "run": { "name": nasty, "folder": nasty, "ending": nasty } })));
    model.receive(Update::Message(nasty.to_owned()));
    for popup in [Popup::None, Popup::Help] {
        model.popup = popup;
        let seen = frame(&model, 160, 40, true);
        let cells = seen.content().iter().flat_map(|cell| cell.symbol().chars());
        assert!(
            cells
                .clone()
                .all(|c| !c.is_control() && !('\u{2000}'..='\u{200f}').contains(&c) && c != '\u{202e}')
        );
    }
    model.receive(Update::Why(nasty.to_owned()));
    let Popup::Text(text) = &model.popup else { panic!("{:?}", model.popup) };
    assert!(text.chars().all(|c| !c.is_control()), "{text:?}");
}

#[test]
fn nonsense_answers_do_no_harm() {
    let nothing = [
        Value::Null,
        json!([]),
        json!({}),
        json!("x"),
        json!({ "workers": [null, 1], "slots": [[], ["a"], [-1, 2, 3]] }),
    ];
    let mut model = model();
    for answer in &nothing {
        for update in [
            Update::Status,
            Update::Workers,
            Update::Candidates,
            Update::History,
            Update::Decisions,
            Update::Event,
        ] {
            model.receive(update(answer.clone()));
            frame(&model, 80, 24, false);
        }
    }
    model.receive(Update::Candidates(json!({ "from": u64::MAX, "total": 1, "candidates": [{}] })));
    model.receive(Update::Candidates(json!({ "from": 5_000, "total": 1, "candidates": [{}] })));
    assert_eq!(model.candidates.len(), 9, "a page out of order is ignored");
}

#[test]
fn events_update_the_view() {
    let mut model = model();
    let name = "softmax/bad/one_with_a_rather_long_name";
    assert_eq!(model.order()[0].name, name, "running candidates are first");
    let names: Vec<&str> = model.order().iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names[1..5], ["embedding/fast", "embedding/naive", "softmax/fast", "softmax/naive"]);
    model.receive(Update::Event(
        json!({ "kind": "candidate", "candidate": name, "status": "PASSED", "rank": 1 }),
    ));
    let now = model.candidates.iter().find(|it| it.name == name).expect("the candidate is listed");
    assert_eq!((&now.state, now.rank), (&CandidateState::Ended("PASSED".to_owned()), Some(1)));
    // The decision arrives three times, twice as an event and once in an answer, but has one row.
    let row = decision(41, "kill", "another");
    let mut event = row.clone();
    event["kind"] = json!("policy");
    model.receive(Update::Event(event.clone()));
    model.receive(Update::Event(event));
    model.receive(Update::Decisions(json!({ "decisions": [row] })));
    assert_eq!(model.policy.iter().filter(|it| it.reason == "another").count(), 1);
    model.receive(Update::Lost("the run closed the connection".to_owned()));
    model.receive(Update::Event(json!({ "kind": "run", "state": "ended", "exit_code": 1 })));
    model.receive(Update::Lost("whatever".to_owned()));
    assert_eq!(model.over.as_deref(), Some("the run has ended with exit code 1"));
    assert!(model.workers.is_empty());
    let seen = letters(&frame(&model, 80, 24, false));
    assert!(seen.contains("the run has ended with exit code 1") && seen.contains("q quit"), "{seen}");
}

#[test]
fn view_shows_replays_while_they_run_and_when_they_end() {
    let mut model = model();
    let state = |status: Value, running: bool, total: Value| {
        json!({
            "name": "model", "status": status, "running": running, "steps": 12, "budget_bytes": 512 * MIB,
            "total_ms": total, "stall_ms": total, "bytes_moved": 900 * MIB, "peak_pool_bytes": 500 * MIB
        })
    };
    let shown = |model: &Model| letters(&frame(model, 140, 50, false));
    let row = |model: &Model| {
        let screen = shown(model);
        let row = screen.lines().find(|line| line.contains("replay model"));
        row.unwrap_or_else(|| panic!("no row\n{screen}")).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for (status, running, total, wanted) in [
        (Value::Null, false, Value::Null, "replay model waits for the jobs 12 steps in 512 MiB"),
        (Value::Null, true, Value::Null, "replay model in replay 12 steps in 512 MiB"),
        (json!("CAPTURE_ERROR"), false, Value::Null, "replay model CAPTURE_ERROR 12 steps in 512 MiB"),
    ] {
        let mut answer = self::status();
        answer["replays"] = json!([state(status, running, total)]);
        model.receive(Update::Status(answer));
        assert!(row(&model).contains(wanted), "{wanted}: {}", row(&model));
    }
    // The last change comes as an event, because the run is over before it is polled again.
    let mut event = state(json!("PASSED"), false, json!(1500.0));
    event["kind"] = json!("replay");
    model.receive(Update::Event(event));
    assert!(row(&model).contains("replay model PASSED 1.50 s 1.50 s stalled"), "{}", row(&model));
    let order: Vec<&str> = model.order().iter().take(3).map(|it| it.name.as_str()).collect();
    assert_eq!(
        order[1..],
        ["replay model", "embedding/fast"],
        "after running candidates, before the ranking"
    );
    model.focus = Pane::Candidates;
    press(&mut model, KeyEvent::from(KeyCode::Down));
    assert_eq!(model.candidate.as_deref(), Some("replay model"));
    assert_eq!(press(&mut model, KeyEvent::from(KeyCode::Char('w'))), None);
    let Popup::Text(text) = &model.popup else { panic!("{:?}", model.popup) };
    assert!(text.contains("500 MiB in the pool, 900 MiB moved"), "{text}");
    model.popup = Popup::None;
    press(&mut model, KeyEvent::from(KeyCode::Char('c')));
    assert_eq!((&model.popup, model.note.is_some()), (&Popup::None, true));
}

#[test]
fn history_coarsens_with_the_runs_history() {
    let mut model = Model::default();
    let slot = |at: f64, mib: u64| json!([at, mib * MIB, 0]);
    model.receive(Update::History(
        json!({ "width_s": 0.25, "slots": [slot(0.0, 1), slot(0.25, 7), slot(0.5, 2)] }),
    ));
    model.receive(Update::History(json!({ "width_s": 0.25, "slots": [slot(0.5, 3), slot(0.75, 1)] })));
    let owed =
        |model: &Model| model.history.iter().map(|it| (it.at, it.owed.get() / MIB)).collect::<Vec<_>>();
    assert_eq!(owed(&model), [(0.0, 1), (0.25, 7), (0.5, 3), (0.75, 1)]);
    model.receive(Update::History(json!({ "width_s": 0.5, "slots": [slot(0.5, 4), slot(1.0, 5)] })));
    assert_eq!(owed(&model), [(0.0, 7), (0.5, 4), (1.0, 5)]);
}

/// Presses keys one after the other, and returns the request that the last one makes.
fn keys(model: &mut Model, keys: &[KeyCode]) -> Option<Command> {
    keys.iter().map(|key| press(model, KeyEvent::from(*key))).last().flatten()
}

#[test]
fn each_key_makes_its_request() {
    use KeyCode::{BackTab, Char, Down, End, Enter, Esc, Home, PageDown, Tab, Up};
    let cancel =
        |candidate: &str| Command::Cancel { job: "softmax".to_owned(), candidate: candidate.to_owned() };
    let recycle = |worker, now| Command::Recycle { worker, now };
    let long = "bad/one_with_a_rather_long_name";
    let table: Vec<(&[KeyCode], Option<Command>)> = vec![
        (&[Char('q')], Some(Command::Quit)),
        (&[Char('p')], Some(Command::Pause)),
        (&[Char('r')], None),
        (&[Char('r'), Char('y')], Some(recycle(3, false))),
        (&[Char('R'), Char('y')], Some(recycle(3, true))),
        (&[Char('R'), Char('n')], None),
        (&[Char('R'), Char('x'), Char('y')], Some(recycle(3, true))),
        (&[Char('R'), Esc, Char('y')], None),
        (&[Char('R'), Char('q')], None),
        (&[BackTab, Down, Char('r'), Char('y')], Some(recycle(4, false))),
        (&[BackTab, Down, Down, Up, Char('r'), Char('y')], Some(recycle(3, false))),
        (&[Char('c'), Char('y')], Some(cancel(long))),
        (&[Char('c'), Enter], None),
        (&[End, Char('c'), Char('y')], Some(cancel("last"))),
        (&[End, Up, Char('c'), Char('y')], Some(cancel("later"))),
        (&[PageDown, Home, Char('c'), Char('y')], Some(cancel(long))),
        // A candidate that has ended cannot be cancelled, so no confirmation is requested.
        (&[Down, Char('c'), Char('y')], None),
        (&[Char('w')], Some(Command::WhyCandidate(format!("softmax/{long}")))),
        (&[BackTab, Enter], Some(Command::WhyWorker(3))),
        (&[Tab, Char('w')], None),
        (&[Tab, Tab, Char('w')], None),
        (&[Char('?'), Char('q')], None),
        (&[Char('?'), Char('q'), Char('q')], Some(Command::Quit)),
        (&[Char('z')], None),
    ];
    for (pressed, command) in table {
        assert_eq!(keys(&mut model(), pressed), command, "{pressed:?}");
    }
    let mut paused = model();
    paused.run.paused = true;
    assert_eq!(keys(&mut paused, &[Char('p')]), Some(Command::Resume));
    let control = KeyEvent::new(Char('c'), KeyModifiers::CONTROL);
    for popup in [Popup::None, Popup::Help] {
        let mut model = model();
        model.popup = popup;
        assert_eq!(press(&mut model, control), Some(Command::Quit), "Ctrl-C quits, whatever is shown");
    }
}

#[test]
fn ended_or_empty_run_gets_no_requests() {
    use KeyCode::{Char, Down, Enter};
    let mut over = model();
    keys(&mut over, &[Char('R')]);
    over.receive(Update::Lost("it is gone".to_owned()));
    assert_eq!(keys(&mut over, &[Char('y')]), None, "the pending confirmation is gone");
    for key in ['p', 'r', 'R', 'c', 'w'] {
        assert_eq!(keys(&mut over, &[Char(key), Char('y')]), None);
    }
    assert_eq!(keys(&mut over, &[Char('q')]), Some(Command::Quit));
    for focus in [Pane::Memory, Pane::Workers, Pane::Candidates, Pane::Policy] {
        let mut empty = Model::default();
        empty.focus = focus;
        for key in [Down, Enter, Char('r'), Char('R'), Char('c'), Char('w')] {
            assert_eq!(keys(&mut empty, &[key]), None);
            assert_eq!(empty.popup, Popup::None);
        }
    }
}

#[test]
fn selection_survives_a_change_of_order() {
    use KeyCode::{Char, End};
    let mut model = model();
    keys(&mut model, &[End]);
    model.receive(Update::Event(
        json!({ "kind": "candidate", "candidate": "softmax/later", "status": "CRASHED" }),
    ));
    let command = keys(&mut model, &[Char('c'), Char('y')]);
    assert_eq!(command, Some(Command::Cancel { job: "softmax".to_owned(), candidate: "last".to_owned() }));
    // While the policy log is scrolled back, new rows do not move the view.
    model.focus = Pane::Policy;
    keys(&mut model, &[KeyCode::Up]);
    assert_eq!(model.back, 1);
    let mut event = decision(50, "wait", "more");
    event["kind"] = json!("policy");
    model.receive(Update::Event(event));
    assert_eq!(model.back, 2);
    keys(&mut model, &[End]);
    assert_eq!(model.back, 0);
}

#[test]
fn command_is_sent_as_a_request_to_the_socket() {
    let table = [
        (Command::Pause, "pause", json!({})),
        (Command::Resume, "resume", json!({})),
        (Command::Recycle { worker: 3, now: false }, "recycle", json!({ "worker": 3, "mode": "drain" })),
        (Command::Recycle { worker: 3, now: true }, "recycle", json!({ "worker": 3, "mode": "now" })),
        (
            Command::Cancel { job: "j".to_owned(), candidate: "a/b".to_owned() },
            "cancel",
            json!({ "job": "j", "candidate": "a/b" }),
        ),
        (Command::WhyWorker(3), "why", json!({ "worker": 3 })),
        (Command::WhyCandidate("j/c".to_owned()), "why", json!({ "candidate": "j/c" })),
    ];
    for (command, method, params) in table {
        assert_eq!(request(&command), Some((method, params)), "{command:?}");
    }
    assert_eq!(request(&Command::Quit), None);
}
