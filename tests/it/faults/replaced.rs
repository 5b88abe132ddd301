//! Tests captures and libraries that are replaced, rewritten or removed during a run.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opt_shared::capture::CaptureFile;
use opt_tests::processes::{Process, pids, read_process};
use opt_tests::waiting::until;
use opt_tests::{Outcome, Scenario, Summary, data, repository};

use super::captures::{all_pass, no_candidate_is_blamed};
use crate::control::client::LiveRun;
use crate::results::plans::{Plan, SOFTMAX};

/// The pause between two listings of a folder whose files are removed.
const PAUSE: Duration = Duration::from_millis(1);

/// Returns a scenario with its own copy of the captures, and the path of the first capture.
fn with_copied_captures(candidates: &[&str]) -> (Scenario, PathBuf) {
    let scenario = Scenario::create();
    let captures = scenario.copy_captures(&data("demo/torch_nn_functional_softmax"), "set");
    let first = captures.join("entry_000000.pt");
    let plan = Plan { captures, ..Plan::softmax(candidates) };
    scenario.write("plan.toml", format!("[run]\nstages = [\"build\", \"verify\"]\n{}", plan.text()));
    (scenario, first)
}

/// Replaces `path` with a new file, as programs do that save atomically.
fn replace(path: &Path, contents: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, contents).expect("written");
    fs::rename(&new, path).expect("renamed");
}

#[test]
fn capture_that_is_replaced_after_the_survey_blames_no_candidate() {
    let (scenario, first) = with_copied_captures(&[]);
    let run = LiveRun::start(&scenario, &["--quiet", "--keep-open"]);
    let ended = || {
        let status = run.ctl(&["status", "--json"]).expect_exit(0).json();
        ["passed", "not_passed"].iter().filter_map(|field| status["jobs"][0][field].as_u64()).sum::<u64>()
    };
    until("the baseline has ended", || ended() == 1);
    replace(&first, &fs::read(&first).expect("readable"));
    let fast = repository().join("configs/demo/softmax/fast.c");
    run.ctl(&["submit", fast.to_str().expect("UTF-8")]).expect_exit(0);
    until("the candidate has ended", || ended() == 2);
    run.ctl(&["shutdown"]).expect_exit(0);
    let outcome = run.finish_any();
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    no_candidate_is_blamed(&outcome, &summary);
    let fast = summary.verdict(SOFTMAX, "fast");
    outcome.expect_equal(fast, (Some("CAPTURE_ERROR"), Some("capture")), "its verdict");
    let detail = summary.candidate(SOFTMAX, "fast")["detail"].as_str().unwrap_or_default();
    outcome.expect(detail.contains("written or replaced since the plan was checked"), detail);
    // The bytes are the same as before, so the run continues.
    let (outcome, summary) = scenario.run_plan(0, &["--resume", "--quiet"]);
    all_pass(&outcome, &summary);
}

#[test]
fn resumed_run_is_refused_if_a_capture_was_replaced_by_another() {
    let (scenario, first) = with_copied_captures(&["fast"]);
    let run = LiveRun::start(&scenario, &["--quiet"]);
    run.kill();
    replace(&first, &fs::read(first.with_file_name("entry_000001.pt")).expect("readable"));
    let outcome = scenario.run(&["run", "plan.toml", "--resume", "--quiet"]).expect_exit(2);
    outcome.expect_stderr(&["the captures of job `softmax` have changed"]);
}

/// Calls `change` with every file of a folder, repeatedly, until the run has ended.
fn finish_while(run: LiveRun<'_>, folder: &Path, change: impl Fn(&Path) + Sync) -> Outcome {
    /// Sets the flag when dropped, even during a panic.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for file in fs::read_dir(folder).into_iter().flatten().flatten() {
                    change(&file.path());
                }
                std::thread::sleep(PAUSE);
            }
        });
        run.finish_any()
    })
}

/// Checks that no candidate is blamed if its library is changed during the run, and that every candidate passes after
/// the run has been resumed.
fn changed_libraries_blame_no_candidate(change: impl Fn(&Path) + Sync) {
    let (scenario, _) = with_copied_captures(&["fast"]);
    let run = LiveRun::start(&scenario, &["--quiet"]);
    let libraries = run.folder().join("artifacts");
    // The run may use a library that it opened before the change.
    let outcome = finish_while(run, &libraries, change);
    no_candidate_is_blamed(&outcome, &Summary::read(&scenario.run_folder(), &outcome));
    let (outcome, summary) = scenario.run_plan(0, &["--resume", "--quiet"]);
    all_pass(&outcome, &summary);
}

#[test]
fn libraries_that_are_removed_during_a_run_blame_no_candidate() {
    changed_libraries_blame_no_candidate(|library| {
        let _ = fs::remove_file(library);
    });
}

#[test]
fn libraries_that_are_altered_during_a_run_blame_no_candidate() {
    changed_libraries_blame_no_candidate(|library| {
        // Make the library writable, because libraries have no write permission for their owner.
        let _ = fs::set_permissions(library, fs::Permissions::from_mode(0o644));
        if let Ok(mut file) = fs::OpenOptions::new().append(true).open(library) {
            let _ = file.write_all(b"altered");
        }
    });
}

/// The CPU time after which a runner must be in the call that waits. All its other work takes less CPU time.
const CALLING: Duration = Duration::from_secs(1);

/// Returns the CPU time of a process in user mode, or zero if the process has ended.
fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = after_name.split_ascii_whitespace().nth(11).and_then(|it| it.parse().ok()).unwrap_or(0);
    Duration::from_secs(ticks) / u32::try_from(rustix::param::clock_ticks_per_second()).expect("small")
}

/// The index of the element that the kernel watches. The element must be on a page that a runner maps. A page that also
/// contains other parts of the file is not mapped but copied.
const WATCHED: u64 = 1 << 15;

/// A kernel whose first call waits until an element of its input changes.
const WAIT_FOR_A_CHANGE: &str = r#"
static int softmax(void *self, const OptAny *args, int32_t n, OptAny *ret);
int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    const volatile int *watched = (const volatile int *)args[0].value.v_tensor->data + WATCHED;
    int before = *watched;
    static int has_waited;
    while (!has_waited && *watched == before)
        ;
    has_waited = 1;
    return softmax(self, args, n, ret);
}
"#;

#[test]
fn capture_that_is_rewritten_while_a_candidate_runs_blames_no_candidate() {
    let (scenario, first) = with_copied_captures(&[]);
    let softmax = fs::read_to_string(repository().join("configs/demo/softmax/naive.c")).expect("readable");
    let waiting = softmax.replace("int run(", "static int softmax(");
    scenario.write(
        "fast.c",
        format!("#include \"opt_candidate.h\"\n#define WATCHED {WATCHED}\n{WAIT_FOR_A_CHANGE}{waiting}"),
    );
    let plan = fs::read_to_string(scenario.path().join("plan.toml")).expect("readable");
    scenario
        .write("plan.toml", format!("{plan}candidates = [\"fast.c\"]\nentries = [\"entry_000000.pt\"]\n"));
    let run = LiveRun::start(&scenario, &["--quiet"]);
    let is_calling = |it: &Process| {
        it.is_runner()
            && read_process(it.parent).is_some_and(|worker| worker.parent == run.pid())
            && CALLING < cpu_time(it.pid)
    };
    until("the candidate waits", || pids().filter_map(read_process).any(|it| is_calling(&it)));
    let capture = CaptureFile::open(&first).expect("a capture");
    let offset = capture.storages()[0].file_offset + 4 * WATCHED;
    let file = fs::OpenOptions::new().read(true).write(true).open(&first).expect("writable");
    let mut before = [0; 4];
    file.read_exact_at(&mut before, offset).expect("readable");
    file.write_all_at(&7_f32.to_le_bytes(), offset).expect("written in place");
    let outcome = run.finish_any();
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    no_candidate_is_blamed(&outcome, &summary);
    outcome.expect(summary.verdict(SOFTMAX, "fast").0 != Some("PASSED"), "its input has changed");
    file.write_all_at(&before, offset).expect("written in place");
    scenario.write("fast.c", softmax);
    let (outcome, summary) = scenario.run_plan(0, &["--resume", "--quiet"]);
    all_pass(&outcome, &summary);
}
