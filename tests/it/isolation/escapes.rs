//! Kernels that try to leave the sandbox: they look for the run's files and seeds, for memory that is not counted, and
//! for other CPUs. The plan runs as the current user and, if that is root, also as an ordinary user. Both get the same
//! verdicts.

use std::fmt::Write as _;
use std::os::unix::fs::symlink;
use std::process::Command;

use opt_shared::stage::Stage;
use opt_supervisor::driver::survey::seed;
use opt_tests::Scenario;
use opt_tests::users::{User, set_mode, users};

use super::run::{generate, plan_path, run_as};
use super::{CRASHED, Expected, PASSED, assert_endings, ends, stem, table};

const ESCAPES: &[Expected] = &[
    ends("hides_memory.c", PASSED, ""),
    ends("reaches_for_the_kernel.c", PASSED, ""),
    ends("leaves_its_cpus.c", PASSED, ""),
    ends("looks_for_the_run.c", PASSED, ""),
    ends("looks_beside_a_library.c", PASSED, ""),
];

const SEED: u64 = 4_242_424_242_424_242;
/// The byte with which the searching kernel masks the secrets, so that it does not find them in its own data.
const HIDDEN: u8 = 0xA5;
const STAGES: [Stage; 3] = [Stage::Screen, Stage::Profile, Stage::Confirm];

fn candidate(name: &str, file: &str, flags: &str) -> String {
    let source = plan_path(&format!("kernels/escapes/{file}"));
    format!(
        "[[job.candidate]]\nname = {name:?}\nsources = [{source:?}]\nbuild = {{ extra_flags = [{flags}] }}\n"
    )
}

fn plan() -> String {
    let include = plan_path("kernels/hostile");
    let good = plan_path("kernels/hostile/good.c");
    let mut plan = format!(
        "[build]\ninclude = [{include:?}, \"secrets\"]\nlibraries = [\"m\"]\nlibrary_path = [\"given\", \"captures\"]\n\
         [verify]\ncall_timeout = \"60s\"\nseed = {SEED}\n[profile]\nentry_timeout = \"300ms\"\n\
         [limits]\nmemory = \"64MiB\"\nthreads = 1\n\
         [[job]]\nname = \"job\"\ncaptures = \"captures\"\nbaseline = \"good\"\n\
         [[job.candidate]]\nname = \"good\"\nsources = [{good:?}]\n"
    );
    for Expected { file, .. } in ESCAPES {
        plan += &candidate(stem(file), file, "");
    }
    plan + &candidate("control", "looks_for_the_run.c", "\"-DCONTROL\"")
}

/// Returns the run's seed as a number and as text, and the seeds that are derived from it for the candidate.
fn seeds() -> Vec<Vec<u8>> {
    let of_stage = |stage| seed::of_candidate(SEED, "job/looks_for_the_run", stage).to_vec();
    let of_run = [SEED.to_le_bytes().to_vec(), SEED.to_string().into_bytes()];
    of_run.into_iter().chain(STAGES.map(of_stage)).collect()
}

fn secrets(scenario: &Scenario) -> String {
    let root = scenario.path().canonicalize().expect("the scenario's folder");
    let mut paths: Vec<String> = [
        "plan.toml",
        "captures",
        "captures/entry_000000.pt",
        "runs",
        "runs/plan/log.jsonl",
        "runs/plan/run.sqlite",
        "runs/plan/run.sqlite-wal",
        "runs/plan/lock",
        "runs/plan/artifacts",
        "runs/plan/scratch",
        "xdg",
    ]
    .map(|below| root.join(below).display().to_string())
    .into();
    let around =
        [".", "..", "log.jsonl", "run.sqlite", "/proc/self/environ", "/proc/self/cmdline", "/proc/self/maps"];
    paths.extend(around.map(str::to_owned));
    paths.extend(["/proc/1/environ", "/proc/1/fd", "/dev/shm", "/tmp", "/etc/passwd"].map(str::to_owned));
    let mut text = format!("#define HIDDEN {HIDDEN}\n#define PATHS {{ ");
    for path in paths {
        let _ = write!(text, "{path:?}, ");
    }
    text += "}\n#define SEEDS { ";
    for seed in seeds() {
        let bytes: Vec<String> = seed.iter().map(|byte| (byte ^ HIDDEN).to_string()).collect();
        let _ = write!(text, "{{ {}, {{ {} }} }}, ", seed.len(), bytes.join(", "));
    }
    let _ = writeln!(text, "}}\n#define GIVEN {:?}", root.join("given").display().to_string());
    text
}

/// Fills the folder that the plan names in `library_path` with a library and other files.
fn fill_given(scenario: &Scenario) {
    scenario.write("given/notes.txt", "a secret\n");
    scenario.write("given/notes.so", "a secret too\n");
    let source = scenario.write("plugin.c", "int plugin(void) { return 7; }\n");
    let given = scenario.path().join("given");
    std::fs::create_dir(given.join("deeper")).expect("our folder");
    let library = given.join("libplugin.so.1.0");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source);
    assert!(command.status().expect("a C compiler is installed").success(), "{command:?}");
    std::fs::copy(&library, given.join("deeper/libplugin.so")).expect("room for a copy");
    for (target, name) in
        [("libplugin.so.1.0", "libplugin.so.1"), ("../captures/entry_000000.pt", "answers.so")]
    {
        symlink(target, given.join(name)).expect("a link");
    }
}

#[test]
fn kernels_cannot_leave_the_sandbox() {
    for user in users() {
        let scenario = Scenario::create();
        generate(&scenario, "softmax", "64,256", 1);
        scenario.write("secrets/secrets.h", secrets(&scenario));
        fill_given(&scenario);
        // If root starts the run, a runner has its own user. This mode lets that user into the folder, so that only the
        // sandbox stops the runner.
        set_mode(scenario.path(), 0o755);
        let run = run_as(user, &scenario, &plan());
        if !run.has_protection("files") {
            eprintln!(
                "not checked as {user:?}: this Linux has no Landlock, so kernels can read what all users may read"
            );
            continue;
        }
        let rows = [("good", PASSED, ""), ("control", CRASHED, "seed 0 at")];
        assert_endings(&run, table(ESCAPES).chain(rows));
        // If an ordinary user starts the run, runners have the same uid. The run reports that this protection is
        // missing.
        let is_root = user == User::Own && User::ordinary().is_some();
        assert_eq!(run.has_protection("own_user"), is_root, "{run}");
    }
}
