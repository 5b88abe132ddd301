//! Tests that kernels built for tvm-ffi run unchanged: the loader finds the tvm-ffi library in a private folder that
//! the plan names, feedback shows the kernels' errors, and load failures are explained.
//!
//! The tests build a minimal replacement for `libtvm_ffi.so`. If the Python package `apache-tvm-ffi` is installed in
//! `target/tvm-ffi`, or if OPT_TVM_FFI names a folder with `include` and `lib`, they use the real library too.

use std::path::{Path, PathBuf};
use std::process::Command;

use opt_tests::users::{User, set_mode, users};
use opt_tests::{Outcome, Scenario, Summary, data, repository};

use crate::report::browser::skipped;

const CAPTURES: &str = "captures/torch_nn_functional_relu";

fn kernel(name: &str) -> PathBuf {
    data("kernels/ffi").join(name)
}

/// Runs `cc` without a sandbox, as users would when they build a kernel themselves.
pub fn build(output: &Path, source: &Path, arguments: &[&str]) {
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-O1", "-I"]).arg(data("../../worker/include"));
    command.arg("-o").arg(output).arg(source).args(arguments);
    let result = command.output().expect("a C compiler is installed");
    assert!(result.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&result.stderr));
}

fn text(path: &Path) -> String {
    path.to_str().expect("tests run in folders with plain names").to_owned()
}

/// A scenario with captures, kernels, and the replacement library in the folder `private`. Each test adds its plan.
fn scenario() -> Scenario {
    let scenario = Scenario::create();
    scenario.copy_captures(&data(CAPTURES), "captures");
    for name in ["relu.h", "works.c", "raises.c", "raises_without_end.c", "fails_silently.c", "other_name.c"]
    {
        scenario.write(name, std::fs::read(kernel(name)).expect("a kernel of the tests"));
    }
    scenario.write("private/.here", "");
    let library = scenario.path().join("private/libtvm_ffi.so");
    build(&library, &kernel("stand_in.c"), &["-Wl,-soname,libtvm_ffi.so"]);
    scenario
}

/// A plan for the float32 captures that only verifies. Profiles load libraries in the same way.
fn plan(candidates: &[&str], build: &str) -> String {
    format!(
        "[run]\nstages = [\"build\", \"verify\"]\n[build]\nflags = [\"-O1\"]\n{build}\n\
         [[job]]\nname = \"job\"\ncaptures = \"captures\"\ndtypes = [\"float32\"]\ncandidates = {candidates:?}\n"
    )
}

fn run_as(user: User, scenario: &Scenario) -> (Outcome, Summary) {
    let program = user.program(scenario);
    user.take_ownership(scenario);
    let arguments = ["run", "plan.toml"];
    let mut command = scenario.command_of(&program, &arguments);
    user.apply_to(&mut command);
    let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let outcome = scenario.finish(child, &arguments);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    (outcome, summary)
}

#[track_caller]
fn expect(outcome: &Outcome, summary: &Summary, candidate: &str, status: &str, says: &[&str]) {
    let found = summary.candidate("job", candidate);
    outcome.expect_equal(
        found["status"].as_str(),
        Some(status),
        format_args!("{candidate}: {} {}", found["detail"], found["build"]["log_head"]),
    );
    let detail = found["detail"].as_str().unwrap_or_default();
    for part in says {
        outcome.expect(
            detail.contains(part),
            format_args!("the detail of {candidate} contains {part:?}: {detail:?}"),
        );
    }
}

/// If root starts the run, a runner has its own user, which may neither enter the folder nor read the library. If an
/// ordinary user starts the run, the runner has the uid of that user, who may do both.
#[test]
fn library_is_found_in_a_folder_that_only_its_owner_may_enter() {
    for user in users() {
        let scenario = scenario();
        let library = scenario.path().join("private/libtvm_ffi.so");
        // Some code generators link in this way, so that the kernel uses the library's symbols but does not name the
        // library.
        build(&scenario.path().join("does_not_name_it.so"), &kernel("works.c"), &["-Wl,-z,undefs"]);
        scenario.write(
            "plan.toml",
            plan(
                &["works.c", "raises.c", "raises_without_end.c", "fails_silently.c", "does_not_name_it.so"],
                "libraries = [\"tvm_ffi\"]\nlibrary_path = [\"private\"]",
            ),
        );
        set_mode(&library, 0o600);
        set_mode(&scenario.path().join("private"), 0o700);
        let (outcome, summary) = run_as(user, &scenario);
        for name in ["works", "does_not_name_it"] {
            expect(&outcome, &summary, name, "PASSED", &[]);
        }
        let raised =
            "returned -1 (0 means done): ValueError: only bfloat16 is done here, and this is another dtype";
        expect(&outcome, &summary, "raises", "RUNTIME_ERROR", &[raised]);
        expect(&outcome, &summary, "raises_without_end", "RUNTIME_ERROR", &["returned -1", "LongError: xxx"]);
        expect(&outcome, &summary, "fails_silently", "RUNTIME_ERROR", &["returned 7 (0 means done)"]);
        let long = summary.candidate("job", "raises_without_end")["feedback"].as_str().map_or(0, str::len);
        outcome.expect(long <= 2048, format_args!("feedback has at most 2048 bytes, not {long}"));
        outcome.expect_clean(&scenario.run_folder(), &scenario.runtime());
    }
}

/// These functions return new tensors instead of writing to the tensors that they are passed.
#[test]
fn returned_tensors_are_checked_and_copied() {
    let scenario = scenario();
    for name in [
        "returns.h",
        "returns_with_plan.c",
        "returns.c",
        "returns_wrong_shape.c",
        "returns_wrong_dtype.c",
        "returns_nothing.c",
    ] {
        scenario.write(name, std::fs::read(kernel(name)).expect("a kernel of the tests"));
    }
    scenario.write(
        "plan.toml",
        plan(
            &[
                "returns.c",
                "returns_with_plan.c",
                "returns_wrong_shape.c",
                "returns_wrong_dtype.c",
                "returns_nothing.c",
            ],
            "libraries = [\"tvm_ffi\"]\nlibrary_path = [\"private\"]",
        )
        .replace("\"verify\"]", "\"verify\", \"profile\"]\n[profile]\nentry_timeout = \"1s\"")
        .replace("candidates", "baseline = \"works.c\"\ncandidates"),
    );
    let (outcome, summary) = run_as(User::Own, &scenario);
    expect(&outcome, &summary, "returns", "PASSED", &[]);
    // The plan function of this kernel takes the outputs, for every entry.
    expect(&outcome, &summary, "returns_with_plan", "PASSED", &[]);
    let found = summary.candidate("job", "returns");
    outcome.expect_equal(found["verify"]["output"].as_str(), Some("returned"), "how it gives its output");
    outcome.expect(found["profile"]["median_time_ms"].is_f64(), "it was timed");
    let returned = "output 0 that it returned";
    for (name, status, says) in [
        ("returns_wrong_shape", "INCORRECT_SHAPE", "has the shape"),
        ("returns_wrong_dtype", "INCORRECT_DTYPE", "is of dtype float16, expected float32"),
        ("returns_nothing", "RUNTIME_ERROR", "is not a `Tensor`"),
    ] {
        expect(&outcome, &summary, name, status, &[returned, says]);
    }
}

#[test]
fn load_failure_has_the_loaders_message_and_advice() {
    let scenario = scenario();
    let here = text(scenario.path());
    let nowhere = scenario.path().join("libnowhere.so");
    build(&nowhere, &kernel("stand_in.c"), &["-Wl,-soname,libnowhere.so"]);
    let links = ["-L", here.as_str(), "-Wl,--no-as-needed", "-lnowhere"];
    build(&scenario.path().join("needs_another.so"), &kernel("works.c"), &links);
    std::fs::remove_file(&nowhere).expect("the library was built");
    build(&scenario.path().join("lacks_a_symbol.so"), &kernel("works.c"), &["-Wl,-z,undefs"]);
    scenario.write("no_library.so", "this is text");
    scenario.write("plan.toml", plan(&["needs_another.so", "lacks_a_symbol.so", "no_library.so"], ""));
    let (outcome, summary) = run_as(User::Own, &scenario);
    expect(
        &outcome,
        &summary,
        "needs_another",
        "LOAD_ERROR",
        &["libnowhere.so: cannot open shared object file", "[build] library_path"],
    );
    let symbol = "undefined symbol: TVMFFIErrorSetRaisedFromCStr";
    expect(&outcome, &summary, "lacks_a_symbol", "LOAD_ERROR", &[symbol, "libtvm_ffi.so", "library_path"]);
    expect(&outcome, &summary, "no_library", "LOAD_ERROR", &["the candidate's library: "]);

    let scenario = self::scenario();
    scenario.write(
        "plan.toml",
        plan(&["other_name.c"], "libraries = [\"tvm_ffi\"]\nlibrary_path = [\"private\"]"),
    );
    let (outcome, summary) = run_as(User::Own, &scenario);
    expect(&outcome, &summary, "other_name", "LOAD_ERROR", &["`__tvm_ffi_run`", "`run`", "`symbol`"]);
}

/// Returns a folder that has tvm-ffi's headers in `include` and its library in `lib`, or `None` if there is none.
pub fn real_library() -> Option<PathBuf> {
    let named = std::env::var_os("OPT_TVM_FFI").map(PathBuf::from);
    let installed = || {
        let versions = std::fs::read_dir(repository().join("target/tvm-ffi/lib")).ok()?;
        let packages = versions.flatten().map(|version| version.path().join("site-packages/tvm_ffi"));
        packages.into_iter().find(|folder| folder.join("lib/libtvm_ffi.so").is_file())
    };
    let found = named.or_else(installed);
    if found.is_none() {
        skipped(
            "kernels with tvm-ffi's real headers were not tried: they are not installed (python3 -m venv target/tvm-ffi && \
             target/tvm-ffi/bin/pip install apache-tvm-ffi, or set OPT_TVM_FFI to a folder with include and lib)",
        );
    }
    found
}

/// This test uses the real library and its headers, if they are installed.
#[test]
fn kernels_with_the_real_headers_run_unchanged() {
    let Some(folder) = real_library() else { return };
    for user in users() {
        let scenario = Scenario::create();
        let lists = [
            ("an_array", "-DLIST=ffi::Array<int64_t>"),
            ("a_shape", "-DLIST=ffi::Shape"),
            ("returned", "-DLIST=ffi::Shape -DRETURNS"),
            ("a_list", "-DLIST=ffi::List<int64_t>"),
            ("a_tensor", "-DLIST=ffi::Tensor"),
            // One of the entries normalises over two axes.
            ("a_tuple", "-DLIST=ffi::Tuple<int64_t>"),
            ("a_string", "-DLIST=ffi::String"),
        ];
        let objects: String = lists
            .iter()
            .map(|(name, macros)| {
                let flags: Vec<&str> = macros.split(' ').collect();
                format!(
                    "[[job.candidate]]\nname = {name:?}\nsources = [\"takes_objects.cpp\"]\n\
                     build = {{ extra_flags = {flags:?} }}\n"
                )
            })
            .collect();
        for op in ["layer_norm", "pad"] {
            let from = data(&format!("captures/torch_nn_functional_{op}"));
            scenario.copy_captures(&from, &format!("captures/{op}"));
        }
        for name in ["layer_norm.h", "layer_norm.cpp", "returns.cpp", "pad.cpp", "takes_objects.cpp"] {
            scenario.write(name, std::fs::read(kernel(name)).expect("a kernel of the tests"));
        }
        scenario.write("private/.here", "");
        let library = scenario.path().join("private/libtvm_ffi.so");
        std::fs::copy(folder.join("lib/libtvm_ffi.so"), &library).expect("OPT_TVM_FFI/lib/libtvm_ffi.so");
        scenario.write(
            "plan.toml",
            format!(
                "[run]\nstages = [\"build\", \"verify\"]\n[build]\nflags = [\"-O1\", \"-std=c++17\"]\n\
                 include = [{:?}]\nlibrary_path = [\"private\"]\nlibraries = [\"tvm_ffi\"]\n\
                 [[job]]\nname = \"job\"\ncaptures = \"captures/layer_norm\"\ndtypes = [\"float32\"]\n\
                 candidates = [\"layer_norm.cpp\", \"returns.cpp\"]\n{objects}\
                 [[job]]\nname = \"pad\"\ncaptures = \"captures/pad\"\ndtypes = [\"float32\"]\n\
                 candidates = [\"pad.cpp\"]\n",
                text(&folder.join("include"))
            ),
        );
        set_mode(&library, 0o600);
        set_mode(&scenario.path().join("private"), 0o700);
        let (outcome, summary) = run_as(user, &scenario);
        expect(&outcome, &summary, "layer_norm", "PASSED", &[]);
        expect(&outcome, &summary, "returns", "PASSED", &[]);
        for (name, _) in &lists[..5] {
            expect(&outcome, &summary, name, "PASSED", &[]);
        }
        for (name, wants) in [
            ("a_tuple", "Expected `Tuple<int>` but got `Array[size=2]`"),
            ("a_string", "Expected `str` but got `ffi.Tensor`"),
        ] {
            expect(&outcome, &summary, name, "RUNTIME_ERROR", &["TypeError: ", wants]);
        }
        // The captures include reflection and replication, which this kernel does not support. Its error names the
        // mode.
        let pad = summary.candidate("pad", "pad");
        let detail = pad["detail"].as_str().unwrap_or_default();
        outcome.expect(
            pad["status"] == "PASSED" || detail.contains("ValueError: mode `"),
            format_args!(
                "pad passes, or names the mode that it does not support; {} {detail}",
                pad["status"]
            ),
        );
    }
}
