//! Tests sessions on a device that is lost or lacks a feature.

use opt_shared::language::Launcher;
use opt_shared::outcome::Blame;

use super::*;

#[test]
fn verify_stops_when_no_other_session_can_be_started() {
    for (lost_after, run, lost) in [(1, 1, true), (2, 2, true), (usize::MAX, 3, false)] {
        let mut backend = ScriptedBackend::playing(&vec![Script::of(&[Play::Right]); run]);
        backend.lost_after = lost_after;
        let report = verify(&backend, &task(&[0, 1, 2]));
        assert_eq!((report.body.entries_run as usize, report.head.context_lost), (run, lost));
    }
}

#[test]
fn verify_names_what_the_device_lacks_unless_the_candidate_failed() {
    let lacking =
        Script { death: (Status::Unsupported, "needs 9 GiB of the device"), ..Script::of(&[Play::Dies]) };
    let backend = ScriptedBackend::playing(&[lacking.clone(), Script::of(&[Play::Right])]);
    let report = verify(&backend, &task(&[0, 1]));
    assert_eq!((report.head.status, report.head.blamed), (Status::Unsupported, Some(Blame::Host)));
    assert_eq!(report.head.detail, "entry_000000: needs 9 GiB of the device");
    assert_eq!((report.body.entries_unsupported, report.body.entries_passed), (1, 1));
    let backend = ScriptedBackend::playing(&[lacking, Script::of(&[Play::WrongFrom(0)])]);
    let report = verify(&backend, &task(&[0, 1]));
    assert_eq!((report.head.status, report.head.blamed), (Status::IncorrectNumerical, None));
}

#[test]
fn text_about_the_device_is_believed_only_if_the_candidate_has_one() {
    let text = "opt.Unsupported: the emulated device does not support clusters";
    let refused = Called { result: 7, raised: Some(text.to_owned()), ..Called::default() };
    for (launcher, blamed) in [
        (Launcher::Dlopen, None),
        (Launcher::Interpreter, None),
        (Launcher::CudaRuntime, Some(Blame::Host)),
        (Launcher::CudaLibtorch, Some(Blame::Host)),
    ] {
        let backend = ScriptedBackend::playing(&[Script::of(&[Play::Claims(refused.clone())])]);
        let mut task = task(&[0]);
        task.callee.launcher = launcher;
        let report = verify(&backend, &task);
        assert_eq!((report.head.status, report.head.blamed), (Status::Unsupported, blamed), "{launcher:?}");
    }
}
