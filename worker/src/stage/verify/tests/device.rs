//! Tests of sessions on a device that is lost or lacks a feature.

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
