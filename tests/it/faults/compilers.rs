//! Tests machine faults that end or stop a compiler, and sources that imitate such faults.

use opt_tests::users::set_mode;
use opt_tests::waiting::until;
use opt_tests::{Outcome, Scenario, Summary, repository};
use rustix::process::{Pid, Signal, kill_process};

/// A scenario whose compiler is this shell script, extended by an answer to `--version`. The script can call the real
/// compiler as `cc`.
fn scenario(script: &str, build: &str) -> Scenario {
    let scenario = Scenario::create();
    let compiler = scenario.write(
        "tools/compiler",
        format!("#!/bin/sh\n[ \"$1\" = --version ] && {{ echo 'compiler 1'; exit; }}\n{script}\n"),
    );
    set_mode(&compiler, 0o755);
    let captures = opt_tests::data("demo/torch_nn_functional_softmax");
    scenario.write(
        "kernel.c",
        std::fs::read(repository().join("configs/demo/softmax/naive.c")).expect("a kernel"),
    );
    scenario.write(
        "plan.toml",
        format!(
            "[run]\nstages = [\"build\"]\n[build]\ncc = '{}'\ntoolchain = ['{}']\nlibraries = [\"m\"]\n{build}\n\
             [[job]]\nname = \"job\"\ncaptures = '{}'\ncandidates = [\"kernel.c\"]\n",
            compiler.display(),
            scenario.path().join("tools").display(),
            captures.display(),
        ),
    );
    scenario
}

/// Runs the plan. Returns the outcome, and the candidate's status and detail.
fn run_build(scenario: &Scenario) -> (Outcome, String, String) {
    let outcome = scenario.run(&["run", "--quiet", "plan.toml"]);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    let candidate = summary.candidate("job", "kernel");
    let text = |field: &str| candidate[field].as_str().unwrap_or_default().to_owned();
    let (status, detail) = (text("status"), text("detail"));
    (outcome, status, detail)
}

/// Returns a script that prints more warnings than a result stores, followed by this line.
fn after_warnings(line: &str) -> String {
    format!(
        "i=0; while [ $i -lt 400 ]; do echo \"kernel.c:$i:1: warning: unused variable\"; i=$((i+1)); done\n\
         echo \"{line}\"; exit 1"
    )
}

#[test]
fn faults_of_the_machine_are_found_after_many_warnings() {
    for (line, expected, says) in [
        ("cc: fatal error: Killed signal terminated program cc1", "INFRA_ERROR", "lost a subprocess"),
        (
            "cc: fatal error: cannot execute 'as': vfork: Resource temporarily unavailable",
            "INFRA_ERROR",
            "lacked",
        ),
        ("kernel.c:401:1: error: expected something else", "COMPILE_ERROR", "exited with code 1"),
    ] {
        let (outcome, status, detail) = run_build(&scenario(&after_warnings(line), ""));
        outcome.expect_equal(status.as_str(), expected, &detail);
        outcome.expect(detail.contains(says), &detail);
    }
}

#[test]
fn source_that_prints_machine_fault_is_blamed() {
    for source in [
        "#error Fatal error: No space left on device",
        "#pragma GCC error \"a\\ncc: fatal error: Killed signal terminated program cc1\"",
        "#line 1 \"a\\ncc: fatal error: cannot execute 'as': vfork: Resource temporarily unavailable\\n\"\n#error x",
    ] {
        let scenario = scenario("exec cc \"$@\"", "");
        scenario.write("kernel.c", source);
        let (outcome, status, detail) = run_build(&scenario);
        outcome.expect_equal(status.as_str(), "COMPILE_ERROR", format_args!("{source}: {detail}"));
    }
}

/// A wrapper sends the signal to the compiler's driver before the assembler starts. A driver that handles the signal
/// removes the assembler's input.
#[test]
fn compiler_that_is_asked_to_end_completes_its_build() {
    for signal in ["HUP", "INT", "QUIT", "TERM"] {
        let wrapper =
            format!("case \"$0\" in *as) kill -{signal} $PPID; sleep 0.1;; esac; exec \"$0\" \"$@\"");
        let script = format!("exec cc -wrapper 'sh,-c,{wrapper}' \"$@\"");
        let (outcome, status, detail) = run_build(&scenario(&script, ""));
        outcome.expect_equal(status.as_str(), "PASSED", format_args!("SIG{signal}: {detail}"));
    }
}

/// Returns a stopped process whose command line contains this text.
fn stopped(text: &str) -> Option<Pid> {
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let command = std::fs::read(entry.path().join("cmdline")).ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let is_stopped = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
        (is_stopped && String::from_utf8_lossy(&command).contains(text)).then(|| Pid::from_raw(pid))?
    })
}

/// The test stops not the compiler, but a program that the compiler starts. It stays stopped for longer than a build
/// may take.
#[test]
fn build_timeout_excludes_time_in_which_compiler_is_stopped() {
    let limit = std::time::Duration::from_secs(4);
    let scenario = scenario(
        "sh -c 'kill -STOP $$; exit 0' a-part-that-is-stopped; exec cc \"$@\"",
        &format!("timeout = \"{}s\"", limit.as_secs()),
    );
    let arguments = ["run", "--quiet", "plan.toml"];
    let child = scenario.command(&arguments).spawn().expect("the program starts");
    let mut part = None;
    until("a part of the compiler is stopped", || {
        part = stopped("a-part-that-is-stopped");
        part.is_some()
    });
    // A fixed sleep is right here: the test needs a pause that is longer than the limit.
    std::thread::sleep(limit + limit / 2);
    let _ = kill_process(part.expect("found"), Signal::CONT);
    let outcome = scenario.finish(child, &arguments).expect_exit(0);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    let candidate = summary.candidate("job", "kernel");
    outcome.expect_equal(candidate["status"].as_str(), Some("PASSED"), &candidate["detail"]);
}

#[test]
fn missing_compiler_is_reported_before_a_run_begins() {
    let scenario = scenario("exec cc \"$@\"", "");
    for (key, says) in [
        (
            "build.cc=no-such-cc",
            "the compiler `no-such-cc` was not found on PATH (install it, or set [build] cc)",
        ),
        ("build.cc=/no/such/cc", "the compiler `/no/such/cc` was not found"),
    ] {
        let set = format!("{}=\"{}\"", &key[..8], &key[9..]);
        scenario.run(&["check", "plan.toml", "--set", &set]).expect_exit(3).expect_stdout(&[says]);
        let outcome = scenario.run(&["run", "--quiet", "plan.toml", "--set", &set]).expect_exit(3);
        outcome.expect_stderr(&["C kernels cannot be compiled", says]);
        outcome.expect(!scenario.run_folder().exists(), "nothing was started");
    }
    // The plan has no C++ kernel, so a missing C++ compiler does not matter.
    let set = "build.cxx=\"no-such-cxx\"";
    scenario.run(&["check", "plan.toml", "--set", set]).expect_exit(0);
}
