//! Tests CUDA sources whose host code launches the kernels and is called through tvm-ffi, on the emulated device. The
//! tests need nvcc.
//!
//! Launchers that use the C interface of tvm-ffi run with a minimal replacement for `libtvm_ffi.so`, which the test
//! builds. Launchers that use the C++ interface are tried only if tvm-ffi is installed.

use std::path::{Path, PathBuf};

use opt_tests::{Scenario, Summary, data};

use crate::cuda_launchers::toolkit;
use crate::ffi::{build, real_library};

/// One row for each macro that can be defined for the launcher. The macro adds a mistake, except `RIGHT`, which adds
/// none. The row also has the expected status and a text that the detail contains.
const LAUNCHERS: [(&str, &str, &str); 3] = [
    ("RIGHT", "PASSED", ""),
    ("PAST_THE_END", "OUT_OF_BOUNDS", "in launch 1"),
    ("REFUSES", "RUNTIME_ERROR", "is not a multiple of 4"),
];

fn expect_verdicts(
    scenario: &Scenario,
    source: &Path,
    include: &[PathBuf],
    library_path: &Path,
    launchers: &[(&str, &str, &str)],
) {
    let Some(toolkit) = toolkit() else { return };
    let captures = data("captures/torch_nn_functional_relu");
    let mut plan = format!(
        "[run]\ndevice = \"emulated\"\n[build]\ntoolchain = [{toolkit:?}]\ntimeout = \"600s\"\ninclude = {include:?}\n\
         libraries = [\"tvm_ffi\"]\nlibrary_path = [{library_path:?}]\n[verify]\nstop_after = 1\ncall_timeout = \"60s\"\n\
         [[job]]\nname = \"relu\"\ncaptures = {captures:?}\nentries = [\"entry_000000.pt\"]\n"
    );
    for (name, ..) in launchers {
        plan += &format!(
            "[[job.candidate]]\nname = {name:?}\nsources = [{source:?}]\nbuild = {{ extra_flags = [\"-D{name}\"] }}\n"
        );
    }
    scenario.write("plan.toml", plan);
    let outcome = scenario.run(&["run", "plan.toml"]).expect_exit(0);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    for &(name, status, says) in launchers {
        let it = summary.candidate("relu", name);
        let detail = it["detail"].as_str().unwrap_or_default();
        outcome.expect_equal(
            it["status"].as_str(),
            Some(status),
            format_args!("{name}: {detail}: {}", it["build"]["log_head"]),
        );
        outcome.expect(detail.contains(says), format_args!("{name}: {detail:?} contains {says:?}"));
        outcome.expect_equal(it["tier"].as_str(), Some("C"), format_args!("{name}'s tier"));
        let returned = it["verify"]["output"] == "returned";
        outcome.expect_equal(
            returned,
            name.starts_with("RETURNS"),
            format_args!("{name} returns its output"),
        );
    }
}

#[test]
fn launchers_with_the_c_interface_of_tvm_ffi_end_as_expected() {
    let scenario = Scenario::create();
    scenario.write("ffi/.here", "");
    let folder = scenario.path().join("ffi");
    build(&folder.join("libtvm_ffi.so"), &data("kernels/ffi/stand_in.c"), &["-Wl,-soname,libtvm_ffi.so"]);
    expect_verdicts(&scenario, &data("kernels/ffi/relu_packed.cu"), &[], &folder, &LAUNCHERS);
}

#[test]
fn launchers_with_the_cpp_interface_of_tvm_ffi_end_as_expected() {
    let Some(folder) = real_library() else { return };
    let scenario = Scenario::create();
    let source = data("kernels/ffi/relu_typed.cu");
    let others = [
        ("OWNED", "PASSED", ""),
        ("RETURNS", "PASSED", ""),
        ("RETURNS_HOST", "RUNTIME_ERROR", "is on a device of DLPack's type 1, expected CUDA"),
        ("RETURNS_FREED", "RUNTIME_ERROR", "cannot be read on the device: invalid value: "),
    ];
    let launchers = [LAUNCHERS.as_slice(), &others].concat();
    expect_verdicts(&scenario, &source, &[folder.join("include")], &folder.join("lib"), &launchers);
}
