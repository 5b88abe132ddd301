//! Tests how recorded outputs are compared: several outputs of one call, and captures that cannot be read to the end.

use super::*;

/// Returns a task with an entry that has two outputs, `output[0]` and `output[1]`.
fn two_outputs() -> VerifyTask {
    let (entries, signature) = entries_of("torch_nn_functional_max_pool2d", &[1]);
    VerifyTask { callee: callee("fast", signature), entries, ..task(&[0]) }
}

#[test]
fn verify_names_the_first_of_several_wrong_outputs() {
    let report = verify(&ScriptedBackend::playing(&[Script::of(&[Play::WrongFrom(0)])]), &two_outputs());
    assert_eq!(report.head.status, Status::IncorrectNumerical);
    assert!(report.head.detail.contains("output[0]"), "{}", report.head.detail);
    let mismatch = report.head.failures[0].mismatch.as_ref().expect("a mismatch");
    assert_eq!(mismatch.output, "output[0]");
}

#[test]
fn verify_keeps_the_first_of_equal_errors() {
    let right = || ScriptedBackend::playing(&[Script::of(&[Play::Right]), Script::of(&[Play::Right])]);
    let of_outputs = verify(&ScriptedBackend::playing(&[Script::of(&[Play::Right])]), &two_outputs());
    assert_eq!(of_outputs.body.worst.expect("compared").output, "output[0]");
    let of_entries = verify(&right(), &task(&[0, 1]));
    assert_eq!(of_entries.body.worst.expect("compared").entry, "entry_000000");
}

/// Copies the capture of the first entry, so that a test can damage the copy.
fn copied(folder: &tempfile::TempDir, mut task: VerifyTask) -> VerifyTask {
    let copy = folder.path().join("copy.pt");
    std::fs::copy(&task.entries[0].path, &copy).expect("copied");
    task.entries[0].path = copy;
    task
}

/// The recorded output is read to compute its tolerance (float32), or only to be compared (int32).
#[test]
fn verify_blames_a_capture_whose_output_cannot_be_read() {
    for (number, together, read_for) in
        [(0, 1, "sampling"), (0, 2, "sampling"), (1, 1, "expected output"), (1, 2, "expected output")]
    {
        let folder = tempfile::tempdir().expect("a folder");
        let task = copied(&folder, task(&[number, 2]));
        let silent = Script::of(&[Play::Claims(done(1)), Play::Right]);
        let right = Script::of(&[Play::Right]);
        let scripts = match (number, together) {
            // An entry without tolerances is not called.
            (0, _) => vec![right],
            (_, 1) => vec![silent, right],
            _ => vec![silent],
        };
        let mut backend = ScriptedBackend::playing(&scripts);
        backend.together = together;
        backend.emptied = vec![task.entries[0].path.clone()];
        let report = verify(&backend, &task);
        assert_eq!(report.head.status, Status::CaptureError, "{number}: {}", report.head.detail);
        assert_eq!((report.body.entries_run, report.body.entries_passed), (2, 1), "{number}, {together}");
        let failure = &report.head.failures[0];
        assert_eq!(failure.entry, task.entries[0].name);
        assert!(failure.detail.contains(read_for), "{}", failure.detail);
    }
}

#[test]
fn unreadable_outputs_are_errors_of_the_worker() {
    let backend = ScriptedBackend::playing(&[Script::of(&[Play::Unreadable])]);
    let error = run(&backend, &|_, _, _| {}, &task(&[0]), &mut Head::passed()).expect_err("the worker fails");
    assert!(matches!(error, SessionError::Compare { .. }), "{error:?}");
}
