//! Tests entries that share a session: which results are reported, and which entries are repeated alone.

use super::*;

fn sharing(scripts: &[Script], together: usize) -> ScriptedBackend {
    let mut backend = ScriptedBackend::playing(scripts);
    backend.together = together;
    backend
}

fn started(backend: &ScriptedBackend) -> Vec<usize> {
    let asked = backend.asked.borrow();
    let sizes = asked.iter().filter_map(|it| match it {
        Asked::Start(_, entries) => Some(entries.len()),
        _ => None,
    });
    sizes.collect()
}

#[test]
fn verify_calls_entries_of_one_session_one_after_another() {
    let backend = sharing(&[Script::of(&[Play::Right])], 3);
    let report = verify(&backend, &task(&[0, 1, 2]));
    assert_eq!((report.head.status, report.body.entries_passed), (Status::Passed, 3));
    assert!(report.body.worst.is_some(), "comparisons in a shared session count");
    assert_eq!(started(&backend), [3]);
    let called: Vec<usize> = backend
        .asked
        .borrow()
        .iter()
        .filter_map(|it| match it {
            Asked::Call(entry, ..) => Some(*entry),
            _ => None,
        })
        .collect();
    assert_eq!(called, [0, 0, 1, 1, 2, 2]);
    assert_eq!(backend.asked.borrow().last(), Some(&Asked::GiveBack(3)));
}

#[test]
fn verify_repeats_an_entry_alone_if_the_process_died_in_a_shared_session() {
    // The second entry kills the shared process. In separate processes, the second and third entries are right.
    let shared = Script::of(&[Play::Right, Play::Right, Play::Dies]);
    let right = Script::of(&[Play::Right]);
    let backend = sharing(&[shared, right.clone(), right], 3);
    let report = verify(&backend, &task(&[0, 1, 2]));
    assert_eq!(
        (report.head.status, report.body.entries_run, report.body.entries_passed),
        (Status::Passed, 3, 3)
    );
    assert_eq!(started(&backend), [3, 1, 1]);
}

#[test]
fn verify_blames_a_candidate_for_failures_that_occur_only_after_other_entries() {
    let raised = Play::code(4);
    let beside = Play::WritesBeside(StrayWrite { output: 0, past: 3 });
    for (play, status) in [
        (Play::WrongFrom(0), Status::Nondeterministic),
        (Play::UnwrittenFrom(0), Status::Nondeterministic),
        (raised, Status::RuntimeError),
        (beside, Status::OutOfBounds),
    ] {
        let end = RunnerEnd { stderr_tail: "stale".to_owned(), ..RunnerEnd::default() };
        let shared = Script { end: end.clone(), ..Script::of(&[Play::Right, Play::Right, play.clone()]) };
        let right = Script::of(&[Play::Right]);
        let backend = sharing(&[shared, right.clone(), right], 3);
        let report = verify(&backend, &task(&[0, 1, 2]));
        assert_eq!((report.head.status, report.body.entries_passed), (status, 2), "{play:?}");
        let failure = &report.head.failures[0];
        assert_eq!(failure.entry, "entry_000001", "the third entry is not blamed");
        assert!(failure.detail.starts_with("right in a separate process, but not beside other entries: "));
        assert_eq!(report.head.end.as_ref(), Some(&end), "what it printed in the shared session");
        assert_eq!(started(&backend), [3, 1, 1]);
    }
}

#[test]
fn verify_does_not_repeat_an_entry_that_died_because_of_the_host() {
    let killed = (Status::InfraError, "killed in a call to protect the machine");
    let shared = Script { death: killed, ..Script::of(&[Play::Right, Play::Right, Play::Dies]) };
    let mut task = task(&[0, 1]);
    task.verify.stop_after = 1;
    let backend = sharing(&[shared], 2);
    let report = verify(&backend, &task);
    assert_eq!((report.head.status, report.body.entries_run), (Status::InfraError, 2));
    assert_eq!(report.head.failures[0].entry, "entry_000001");
    assert!(report.head.end.is_some(), "how it died is kept");
}

#[test]
fn verify_excuses_failures_while_the_machine_refused_processes() {
    let refused = |play: Play| Script { tasks_refused: true, ..Script::of(&[play]) };
    for play in [Play::Dies, Play::code(11)] {
        let mut task = task(&[0, 1]);
        task.verify.stop_after = 1;
        let backend = sharing(&[refused(play.clone()), refused(play.clone())], 2);
        let report = verify(&backend, &task);
        assert_eq!(report.head.status, Status::InfraError, "{play:?}");
        assert!(report.head.detail.contains("`pids.max`"), "{}", report.head.detail);
        // In a separate session, nothing is refused.
        let right = Script::of(&[Play::Right]);
        let backend = sharing(&[refused(play.clone()), right.clone(), right], 2);
        assert_eq!(verify(&backend, &task).head.status, Status::Passed, "{play:?}");
    }
    // Refusing a process does not cause a wrong output.
    let right = Script::of(&[Play::Right]);
    let backend = sharing(&[refused(Play::WrongFrom(0)), right.clone(), right], 2);
    let report = verify(&backend, &task(&[0, 1]));
    assert_eq!(report.head.status, Status::Nondeterministic, "{}", report.head.detail);
}

#[test]
fn verify_blames_a_candidate_whose_entry_fails_alone_as_well() {
    for (shared, alone, status) in [
        (Script::of(&[Play::Dies]), Script::of(&[Play::Dies]), Status::Crashed),
        (Script::of(&[Play::WrongFrom(0)]), Script::of(&[Play::WrongFrom(0)]), Status::IncorrectNumerical),
        // The status is that of the separate session.
        (Script::of(&[Play::Dies]), Script::of(&[Play::WrongFrom(0)]), Status::IncorrectNumerical),
        // A runner that refuses the load is still alive, and the worker kills it, so its end proves nothing.
        (
            Script {
                load: Answer::Done(Loaded::Refused { text: "no".to_owned() }),
                death: (Status::InfraError, "killed by an unknown sender"),
                ..Script::of(&[Play::Right])
            },
            Script {
                load: Answer::Done(Loaded::Refused { text: "no".to_owned() }),
                death: (Status::InfraError, "killed by an unknown sender"),
                ..Script::of(&[Play::Right])
            },
            Status::LoadError,
        ),
        (
            Script { load: Answer::Died, ..Script::of(&[Play::Right]) },
            Script {
                load: Answer::Done(Loaded::Refused { text: "no".to_owned() }),
                ..Script::of(&[Play::Right])
            },
            Status::LoadError,
        ),
    ] {
        let mut task = task(&[0, 1]);
        task.verify.stop_after = 1;
        let backend = sharing(&[shared, alone], 2);
        let report = verify(&backend, &task);
        assert_eq!((report.head.status, report.body.entries_run), (status, 1));
        assert_eq!(started(&backend), [2, 1]);
    }
}

#[test]
fn verify_does_not_repeat_an_unsupported_entry_of_a_shared_session() {
    let backend = sharing(&[Script::of(&[Play::code(-2), Play::Right])], 2);
    let report = verify(&backend, &task(&[0, 1]));
    assert_eq!((report.body.entries_unsupported, report.body.entries_passed), (1, 1));
    assert_eq!(started(&backend), [2]);
}

#[test]
fn verify_reports_that_a_candidate_returns_its_outputs() {
    let of = |returned| {
        let load = Answer::Done(Loaded::Ready { has_plan: false, returned });
        Script { load, ..Script::of(&[Play::Right]) }
    };
    for together in [1, 2] {
        for (returned, form) in [(true, OutputForm::Returned), (false, OutputForm::default())] {
            let backend = sharing(&vec![of(returned); 3 - together], together);
            assert_eq!(verify(&backend, &task(&[0, 1])).body.output, form, "{together} in a session");
        }
    }
}

#[test]
fn verify_names_the_entry_of_a_group_that_cannot_be_opened() {
    let mut backend = sharing(&[Script::of(&[Play::Right])], 2);
    backend.broken = vec![3];
    let report = verify(&backend, &task(&[0, 1, 2, 3]));
    assert_eq!(report.head.failures[0].entry, "entry_000003");
}

#[test]
fn verify_reports_the_peak_memory_of_the_shared_session() {
    let shared = Script { peak_owed: Bytes::mib(50), ..Script::of(&[Play::WrongFrom(0)]) };
    let backend = sharing(&[shared, Script::of(&[Play::Right]), Script::of(&[Play::Right])], 2);
    assert_eq!(verify(&backend, &task(&[0, 1])).head.peak_owed, Some(Bytes::mib(50)));
}

#[test]
fn verify_numbers_entries_across_groups() {
    let unsupported = Script::of(&[Play::Right, Play::Right, Play::code(-2)]);
    let backend = sharing(&[Script::of(&[Play::Right]), unsupported], 2);
    // The files differ in size, so `bytes_validated` shows which of them were counted.
    let task = task(&[0, 1, 3, 4]);
    assert_eq!(verify(&backend, &task).body.unsupported, [task.entries[3].id]);
    // In the second group, the first entry is right, and the process dies in the last one because of the host. Such an
    // entry is not repeated, so no separate session starts.
    let killed = (Status::InfraError, "killed in a call to protect the machine");
    let dies = Script { death: killed, ..Script::of(&[Play::Right, Play::Right, Play::Dies]) };
    let backend = sharing(&[Script::of(&[Play::Right]), dies], 2);
    let report = verify(&backend, &task);
    assert_eq!((report.body.entries_run, report.body.entries_passed), (4, 3));
    assert_eq!(report.head.failures[0].entry, "entry_000004");
    assert_eq!(report.body.bytes_validated, task.entries.iter().map(|entry| entry.numbers.file).sum());
    assert_eq!(started(&backend), [2, 2]);
}
