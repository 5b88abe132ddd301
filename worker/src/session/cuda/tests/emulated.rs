//! Tests verification on the emulated device: PTX runs and is checked, and faults are reported with their line.

use super::*;
use crate::session::cuda::driver::emulated::EmulatedDriver;

const PTX: &str = include_str!("relu.ptx");
const STORE: &str = "st.global.f32 [%rd7], %f2;";

/// Returns a verification of the kernel with these instructions in place of its store.
fn kernel(harm: &str) -> Attempt {
    let mut attempt = Attempt::on(Box::new(EmulatedDriver::new()));
    attempt.image = PTX.replace("HARM", harm).into_bytes();
    attempt
}

#[test]
fn right_kernel_passes_on_the_emulated_device() {
    let attempt = Attempt { entries: vec![0, 1], ..kernel(STORE) };
    let (head, verified, device) = attempt.run();
    assert_eq!((head.status, verified.entries_passed), (Status::Passed, 2), "{}", head.detail);
    let left = device.driver.lock().memory().expect("figures");
    assert_eq!(left.free, left.total);
}

#[test]
fn kernel_fault_is_reported_with_its_line() {
    let line = |harm: &str| {
        PTX.lines().position(|line| line.contains("HARM")).expect("a line to replace") + harm.lines().count()
    };
    let bad = |lines: &[&str]| lines.join("\n");
    let out = bad(&["add.s64 %rd7, %rd7, 4;", STORE]);
    let cases = [
        (out.clone(), Status::OutOfBounds, "0 bytes past the end of the output `output`"),
        (bad(&["add.s64 %rd7, %rd7, 1;", STORE]), Status::Crashed, "MISALIGNED"),
        (bad(&["mov.u64 %rd7, 16;", STORE]), Status::Crashed, "CUDA_ERROR_ILLEGAL_ADDRESS (700)"),
        (bad(&["trap;"]), Status::Crashed, "CUDA_ERROR_LAUNCH_FAILED (719)"),
    ];
    for (harm, status, words) in cases {
        let place = "in launch 1 (`relu`), block (";
        let line = format!("PTX line {}", line(&harm));
        let device = ends_as(kernel(&harm), status, &[words, place, &line]);
        assert!(device.is_usable(), "another context replaces it");
    }
}

#[test]
fn wrong_outputs_and_changed_inputs_are_found_after_the_call() {
    ends_as(kernel(""), Status::UnwrittenOutput, &["never written"]);
    ends_as(
        kernel(&format!("{STORE}\nst.global.f32 [%rd6], 0f40e00000;")),
        Status::InputMutated,
        &["`input`"],
    );
    ends_as(kernel("st.global.f32 [%rd7], %f1;"), Status::IncorrectNumerical, &[]);
}

#[test]
fn endless_kernel_is_ended_by_its_limit() {
    let settings = VerifySettings { call_timeout: Duration::from_millis(50), ..verify_settings() };
    let attempt = Attempt { settings, ..kernel("AGAIN:\nbra AGAIN;") };
    let device = ends_as(attempt, Status::Timeout, &["launch 1 (`relu`)"]);
    assert!(device.is_usable());
}

#[test]
fn race_is_reported_as_nondeterministic() {
    let lines = [
        ".shared .align 4 .b32 total;",
        "cvt.rn.f32.u32 %f2, %r3;",
        "st.shared.f32 [total], %f2;",
        "st.global.f32 [%rd7], %f2;",
    ];
    let words = [
        "race: write of 4 bytes",
        "and an earlier write by thread (0, 0, 0)",
        "no barrier or fence orders them",
    ];
    let device = ends_as(kernel(&lines.join("\n")), Status::Nondeterministic, &words);
    assert!(device.is_usable(), "another context replaces it");
}

#[test]
fn unsupported_instruction_blames_the_host() {
    let (head, verified, _) = kernel("wgmma.fence.sync.aligned;").run();
    assert_eq!((head.status, head.blame()), (Status::Unsupported, Some(Blame::Host)), "{}", head.detail);
    assert!(head.detail.contains("PTX line"), "{}", head.detail);
    assert_eq!(verified.entries_unsupported, 1);
}

#[test]
fn invalid_ptx_and_missing_kernels_are_load_errors() {
    ends_as(kernel("this is no instruction"), Status::LoadError, &["PTX line"]);
    let mut attempt = kernel(STORE);
    attempt.launch.steps[0].symbol = "gelu".to_owned();
    ends_as(attempt, Status::LoadError, &["there is no kernel `gelu`"]);
}
