//! Tests that a build sees only some of the user's files: its own sources and headers, and the folders that the plan
//! names. Even in such a folder, it never sees a capture, a result or the plan.

use std::path::Path;

use opt_tests::python::python_with;
use opt_tests::users::{User, set_mode, users};
use opt_tests::{Outcome, Scenario, Summary};

use super::run::{generate, plan_path, run_as};
use super::{PASSED, assert_endings};

const COMPILE_ERROR: &[&str] = &["COMPILE_ERROR"];
const KERNELS: [&str; 2] = ["embeds_a_file", "includes_a_file"];

/// Files that a build must not read, as paths relative to the scenario's folder.
const SECRETS: [&str; 7] = [
    "captures/entry_000000.pt",
    "runs/plan/log.jsonl",
    "runs/plan/run.sqlite",
    "runs/plan/lock",
    "runs/older/summary.json",
    "plan.toml",
    "kernels/other.c",
];

/// A scenario with kernels and their headers, the secrets, and the folder `given` for include paths.
fn scenario() -> Scenario {
    let scenario = Scenario::create();
    generate(&scenario, "softmax", "64,256", 1);
    for name in
        ["embeds_a_file.c", "includes_a_file.c", "includes_beside.c", "parts/scale.h", "parts/unit.inc"]
    {
        let text =
            std::fs::read(plan_path(&format!("kernels/escapes/{name}"))).expect("a kernel of the tests");
        scenario.write(&format!("kernels/{name}"), text);
    }
    for name in ["hostile.h", "good.c"] {
        let text =
            std::fs::read(plan_path(&format!("kernels/hostile/{name}"))).expect("a kernel of the tests");
        scenario.write(&format!("kernels/{name}"), &text);
        scenario.write(&format!("given/{name}"), &text);
    }
    scenario.write("kernels/other.c", "int other_candidate;\n");
    scenario.write("given/table.inc", "int table[3];\n");
    scenario.write("runs/older/summary.json", "{}");
    std::os::unix::fs::symlink("../captures/entry_000000.pt", scenario.path().join("kernels/answers.h"))
        .expect("a link");
    scenario
}

fn candidate(name: &str, kernel: &str, target: &str) -> String {
    format!(
        "[[job.candidate]]\nname = {name:?}\nsources = [\"kernels/{kernel}.c\"]\n\
         build = {{ extra_flags = ['-DTARGET=\"{target}\"'] }}\n"
    )
}

#[test]
fn build_reads_only_what_it_was_given() {
    for user in users() {
        let scenario = scenario();
        let mut plan = String::from(
            "[run]\nstages = [\"build\", \"verify\"]\n[build]\nlibraries = [\"m\"]\ninclude = [\"given\"]\n\
             [[job]]\nname = \"job\"\ncaptures = \"captures\"\nbaseline = \"good\"\n\
             [[job.candidate]]\nname = \"good\"\nsources = [\"kernels/good.c\"]\n\
             [[job.candidate]]\nname = \"beside\"\nsources = [\"kernels/includes_beside.c\"]\n",
        );
        let mut expected: Vec<(String, &'static [&'static str])> =
            vec![("good".into(), PASSED), ("beside".into(), PASSED)];
        let mut add = |name: String, kernel: &str, target: &str, statuses| {
            plan += &candidate(&name, kernel, target);
            expected.push((name, statuses));
        };
        let root = scenario.path().canonicalize().expect("the scenario's folder");
        for kernel in KERNELS {
            for (number, secret) in SECRETS.iter().enumerate() {
                let whole = root.join(secret);
                add(format!("{kernel}-whole-{number}"), kernel, &whole.display().to_string(), COMPILE_ERROR);
                add(format!("{kernel}-beside-{number}"), kernel, &format!("../{secret}"), COMPILE_ERROR);
                // Paths are relative to the folder in which the build runs, which is inside the run's folder.
                let up = format!("../../../../../{secret}");
                add(format!("{kernel}-up-{number}"), kernel, &up, COMPILE_ERROR);
            }
            add(format!("{kernel}-link"), kernel, "answers.h", COMPILE_ERROR);
            add(format!("{kernel}-environ"), kernel, "/proc/self/environ", COMPILE_ERROR);
            // As a control, the same source must compile if it includes a file that it may read.
            let given = root.join("given/table.inc");
            add(format!("{kernel}-given"), kernel, &given.display().to_string(), PASSED);
        }
        let run = run_as(user, &scenario, &plan);
        if !run.has_protection("files") {
            eprintln!("not checked: this Linux has no Landlock, so builds read what their user may read");
            return;
        }
        assert_endings(&run, expected.iter().map(|(name, statuses)| (name.as_str(), *statuses, "")));
    }
}

/// A folder that the plan names may also contain captures and results. A build must not see them.
#[test]
fn build_cannot_read_captures_and_results_in_include_folder() {
    for user in users() {
        let scenario = scenario();
        let root = scenario.path().canonicalize().expect("the scenario's folder");
        let mut plan = String::from(
            "[run]\nstages = [\"build\", \"verify\"]\n[build]\nlibraries = [\"m\"]\ninclude = [\".\"]\n\
             [[job]]\nname = \"job\"\ncaptures = \"captures\"\ncandidates = [\"kernels/good.c\"]\n",
        );
        let whole = |below: &str| root.join(below).display().to_string();
        plan += &candidate("taken", "embeds_a_file", &whole("given/table.inc"));
        for (number, secret) in SECRETS[..6].iter().enumerate() {
            plan += &candidate(&format!("secret-{number}"), "embeds_a_file", &whole(secret));
        }
        let run = run_as(user, &scenario, &plan);
        if !run.has_protection("files") {
            return;
        }
        let secrets: Vec<String> = (0..6).map(|number| format!("secret-{number}")).collect();
        let secrets = secrets.iter().map(|name| (name.as_str(), COMPILE_ERROR, ""));
        assert_endings(&run, secrets.chain([("good", PASSED, ""), ("taken", PASSED, "")]));
    }
}

#[test]
fn missing_header_error_names_header_and_remedy() {
    let scenario = scenario();
    scenario.write("shared.h", "#define SHARED\n");
    let plan = "[run]\nstages = [\"build\"]\n[[job]]\nname = \"job\"\ncaptures = \"captures\"\n".to_owned()
        + &candidate("outside", "includes_a_file", "../shared.h")
        + &candidate("nowhere", "includes_a_file", "nowhere.h");
    let kernel = scenario.path().join("kernels/includes_a_file.c");
    // In `outside` and `nowhere`, a macro gives the name of the header, so the name cannot be found in the text. The
    // text of `plain` contains the name.
    let text =
        std::fs::read_to_string(&kernel).expect("a kernel of the tests").replace("TARGET", "\"../shared.h\"");
    scenario.write("kernels/plain.c", text);
    let plan = plan + "[[job.candidate]]\nname = \"plain\"\nsources = [\"kernels/plain.c\"]\n";
    let run = run_as(User::Own, &scenario, &plan);
    let named = "name the folder of other headers in [build] include";
    for (name, says) in [
        ("outside", "it did not find the header `../shared.h` (a build sees its sources"),
        (
            "plain",
            "it did not find the header `../shared.h` (it is outside the folders of the candidate's sources",
        ),
        ("nowhere", "it did not find the header `nowhere.h` (a build sees its sources"),
    ] {
        let detail = run.candidate(name)["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(says) && detail.contains(named), "{name}: {detail}\n{run}");
    }
    assert!(
        !Path::new(run.candidate("plain")["build"]["log_head"].as_str().unwrap_or("/")).is_absolute(),
        "{run}"
    );
}

#[test]
fn size_of_each_library_and_of_all_is_limited() {
    for (set, exit, status, says) in [
        ("build.max_artifact=1KiB", 1, "LIMIT_EXCEEDED", "the limit is 1.00 KiB ([build] max_artifact)"),
        ("run.max_artifacts=1KiB", 3, "DOES_NOT_FIT", "([run] max_artifacts)"),
    ] {
        let (outcome, verdict, detail) = one_kernel(&scenario(), &[set]);
        outcome.expect_equal(outcome.code, Some(exit), set);
        outcome.expect_equal(verdict.as_str(), status, set);
        outcome.expect(detail.contains(says), &detail);
    }
}

#[test]
fn compiler_outside_the_system_needs_its_folder_in_the_plan() {
    let scenario = scenario();
    let compiler = scenario.write("tools/mine", "#!/bin/sh\nexec cc \"$@\"\n");
    set_mode(&compiler, 0o755);
    let cc = format!("build.cc={}", compiler.display());
    let (outcome, verdict, detail) = one_kernel(&scenario, &[&cc]);
    outcome.expect_equal(verdict.as_str(), "INFRA_ERROR", "nothing may be executed from that folder");
    outcome.expect(detail.contains("name its folder in [build] toolchain"), &detail);
    let toolchain = format!("build.toolchain=[{:?}]", scenario.path().join("tools").display().to_string());
    let (outcome, verdict, detail) = one_kernel(&scenario, &[&cc, &toolchain]);
    outcome.expect_equal(verdict.as_str(), "PASSED", detail);
}

/// Verifies the good kernel with these settings. Returns the outcome, and the kernel's status and detail.
fn one_kernel(scenario: &Scenario, settings: &[&str]) -> (Outcome, String, String) {
    scenario.write(
        "plan.toml",
        "[run]\nstages = [\"build\", \"verify\"]\n[build]\nlibraries = [\"m\"]\n\
         [[job]]\nname = \"job\"\ncaptures = \"captures\"\ncandidates = [\"kernels/good.c\"]\n",
    );
    let dir = format!("runs/with-{}", settings.len());
    let mut arguments = vec!["run", "--quiet", "plan.toml", "--dir", &dir];
    arguments.extend(settings.iter().flat_map(|setting| ["--set", *setting]));
    let outcome = scenario.run(&arguments);
    let summary = Summary::read(&scenario.path().join(&dir), &outcome);
    let candidate = summary.candidate("job", "good");
    let text = |field: &str| candidate[field].as_str().unwrap_or_default().to_owned();
    let (status, detail) = (text("status"), text("detail"));
    (outcome, status, detail)
}

/// Compilers and interpreters quote text that they cannot parse, so a link to any other file could reveal its contents.
#[test]
fn source_may_be_a_link_to_another_source_but_not_to_any_file() {
    let scenario = scenario();
    scenario.write("secrets/password", "correct horse\n");
    let link = |target: &str, name: &str| {
        std::os::unix::fs::symlink(target, scenario.path().join("kernels").join(name)).expect("a link");
    };
    link("good.c", "linked.c");
    let leaks = ["leak.c", "leak.cpp", "leak.py"];
    for name in leaks {
        link("../secrets/password", name);
    }
    link("/proc/self/environ", "environ.c");
    let python = python_with("torch", "torch");
    let mut plan = format!(
        "[run]\nstages = [\"build\", \"verify\"]\n[build]\nlibraries = [\"m\"]\npython = {:?}\n\
         [[job]]\nname = \"job\"\ncaptures = \"captures\"\n",
        python.as_deref().unwrap_or(Path::new("python3"))
    );
    for name in leaks.iter().chain(&["linked.c", "environ.c"]) {
        plan += &format!("[[job.candidate]]\nname = {name:?}\nsources = [\"kernels/{name}\"]\n");
    }
    let run = run_as(User::Own, &scenario, &plan);
    assert_eq!(run.candidate("linked.c")["status"], "PASSED", "{run}");
    for name in leaks.iter().chain(&["environ.c"]) {
        let candidate = run.candidate(name);
        // Without torch, the build of a Python kernel ends before it opens the file.
        let status = candidate["status"].as_str().unwrap_or_default();
        assert!(["COMPILE_ERROR", "INFRA_ERROR"].contains(&status), "{name}: {candidate}\n{run}");
        assert!(!candidate.to_string().contains("horse"), "{name}: {candidate}");
    }
    for name in ["leak.c", "leak.cpp", "environ.c"] {
        let candidate = run.candidate(name);
        let detail = candidate["detail"].as_str().unwrap_or_default();
        assert_eq!(candidate["status"], "COMPILE_ERROR", "{name}: {candidate}\n{run}");
        assert!(detail.contains("whose name has another suffix"), "{name}: {detail}");
    }
}
