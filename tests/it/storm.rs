//! Tests law 8 (ARCHITECTURE.md), nothing is lost. After kills at random moments and after interrupts, every verdict is
//! right, finished work is not repeated, and no process or temporary file is left.

pub(crate) mod record;

use std::time::{Duration, Instant};

use opt_tests::binary;
use opt_tests::processes::Process;
use opt_tests::storm::{Chance, Fixture, VICTIMS};
use rustix::process::{Pid, Signal, kill_process};

use self::record::Record;

/// The number of times a supervisor is killed, twice in each run.
const SUPERVISOR_KILLS: usize = 6;
/// The number of runs in which a worker or a runner is killed.
const OTHER_KILLS: usize = 6;
/// The number of runs in which a worker that launches kernels itself is killed, for each kind of device.
const DEVICE_KILLS: usize = 5;
/// The number of runs in which a worker that launches kernels itself hangs, for each kind of device.
const DEVICE_HANGS: usize = 3;

type Checked = Result<(), String>;

fn fixture() -> Fixture {
    Fixture::create(binary()).expect("a fixture")
}

fn require(checked: Checked) {
    if let Err(trouble) = checked {
        panic!("{trouble}");
    }
}

fn signal(child: &std::process::Child, signal: Signal) {
    let pid = Pid::from_child(child);
    // The child has not been reaped, so its pid cannot have been reused.
    let _ = kill_process(pid, signal);
}

/// Returns whether a worker with this role has a runner.
fn is_at_work(fixture: &Fixture, role: &str) -> bool {
    let marked = fixture.marked();
    let workers: Vec<u32> = marked.iter().filter(|it| it.is_worker(role)).map(|it| it.pid).collect();
    marked.iter().any(|it| it.is_runner() && workers.contains(&it.parent))
}

fn everything_is_in_order(fixture: &Fixture) -> Checked {
    fixture.no_process_is_left()?;
    fixture.no_file_is_left()?;
    fixture.verdicts_are_right()?;
    Record::read(&fixture.run).no_stage_has_two_results()
}

/// Measures how long a run takes on this machine. The random moments are drawn from this span of time.
fn measure(create: fn() -> Fixture) -> Duration {
    let fixture = create();
    let started = Instant::now();
    require(fixture.run_to(fixture.start(&[]).expect("started"), 0));
    let took = started.elapsed();
    require(everything_is_in_order(&fixture));
    took
}

#[test]
fn resumed_run_keeps_results_of_killed_supervisor() {
    let span = measure(fixture);
    let mut chance = Chance::from_clock();
    for number in 0..SUPERVISOR_KILLS.div_ceil(2) {
        let fixture = fixture();
        let moments = [chance.moment(span), chance.moment(span)];
        println!("run {number}: killed after {moments:?} of {span:?}");
        require(kill_and_finish(&fixture, &moments, number % 2 == 0));
    }
}

/// Kills the supervisor at each of these moments, and then lets the run finish.
fn kill_and_finish(fixture: &Fixture, moments: &[Duration], wait: bool) -> Checked {
    let mut before = Record::default();
    for &moment in moments {
        let mut child = fixture.resume()?;
        std::thread::sleep(moment);
        child.kill().map_err(|error| error.to_string())?;
        fixture.end(&mut child)?;
        if wait {
            fixture.no_process_is_left()?;
        }
        let now = Record::read(&fixture.run);
        now.kept_from(&before)?;
        before = now;
    }
    // Without the wait, workers of the killed supervisor may still be alive when the new one starts.
    fixture.run_to(fixture.resume()?, 0)?;
    Record::read(&fixture.run).kept_from(&before)?;
    everything_is_in_order(fixture)
}

#[test]
fn killed_worker_or_runner_changes_no_verdict() {
    strikes_change_no_verdict(fixture, &VICTIMS, OTHER_KILLS, Fixture::kill_during_a_run);
}

#[test]
fn process_that_is_asked_to_end_changes_no_verdict() {
    strikes_change_no_verdict(fixture, &VICTIMS, VICTIMS.len(), Fixture::terminate_during_a_run);
}

#[test]
fn process_that_is_stopped_and_continued_changes_no_verdict() {
    strikes_change_no_verdict(fixture, &VICTIMS, VICTIMS.len(), Fixture::stop_during_a_run);
}

fn on_the_emulated_device() -> Fixture {
    Fixture::on_the_emulated_device(binary()).expect("a fixture")
}

fn on_a_card() -> Fixture {
    Fixture::on_a_card(binary()).expect("a fixture")
}

#[test]
fn killed_device_worker_changes_no_verdict() {
    for create in [on_the_emulated_device as fn() -> Fixture, on_a_card] {
        strikes_change_no_verdict(create, &["verifier"], DEVICE_KILLS, Fixture::kill_during_a_run);
    }
}

#[test]
fn hanging_device_worker_is_replaced_and_changes_no_verdict() {
    for create in [on_the_emulated_device as fn() -> Fixture, on_a_card] {
        strikes_change_no_verdict(create, &["verifier"], DEVICE_HANGS, Fixture::hang_during_a_run);
    }
}

/// A function that kills, terminates or stops a process during a run. Returns the process, or `None` if the run ended
/// first.
type Strike = fn(&Fixture, &str, Duration, &mut Chance) -> Result<Option<Process>, String>;

fn strikes_change_no_verdict(create: fn() -> Fixture, victims: &[&str], strikes: usize, strike: Strike) {
    let mut span = measure(create);
    let mut chance = Chance::from_clock();
    let mut hits = 0;
    while hits < strikes {
        let fixture = create();
        let victim = victims[hits % victims.len()];
        let moment = chance.moment(span);
        let struck = strike(&fixture, victim, moment, &mut chance);
        println!("{hits}: {victim} from {moment:?} of {span:?}: {struck:?}");
        match struck {
            Ok(Some(_)) => hits += 1,
            // This run was faster than the measured run, and had ended before the moment.
            Ok(None) => span = span.mul_f64(0.8),
            Err(trouble) => panic!("{trouble}"),
        }
        require(everything_is_in_order(&fixture));
        println!("{} attempts were repeated", fixture.repeated_attempts().expect("a summary"));
    }
}

#[test]
fn first_interrupt_lets_running_attempts_finish() {
    for interrupt in [Signal::INT, Signal::TERM] {
        let fixture = fixture();
        let mut child = fixture.start(&[]).expect("started");
        let role = if interrupt == Signal::INT { "verifier" } else { "profiler" };
        require(fixture.until("the worker has a runner", || is_at_work(&fixture, role)));
        signal(&child, interrupt);
        let status = fixture.end(&mut child).expect("the supervisor ends");
        assert_eq!(status.code(), Some(4), "{}", fixture.state());
        require(fixture.no_process_is_left());
        require(fixture.no_file_is_left());
        // An interrupted run first lets running attempts finish.
        let record = Record::read(&fixture.run);
        let unfinished = |it: &record::Attempt| it.status.as_deref().is_none_or(|it| it == "INFRA_ERROR");
        assert!(!record.attempts.values().flatten().any(unfinished), "{record:?}");
        assert_eq!(fixture.summary().expect("a summary")["run"]["status"], "INTERRUPTED");
        require(fixture.run_to(fixture.resume().expect("started"), 0));
        require(Record::read(&fixture.run).kept_from(&record));
        require(everything_is_in_order(&fixture));
    }
}

#[test]
fn second_interrupt_kills_running_attempts() {
    for interrupt in [Signal::INT, Signal::TERM] {
        let fixture = fixture();
        // Replace a kernel by one whose first call never returns.
        let kernel = fixture.folder.join("kernels/fast.c");
        let good = std::fs::read_to_string(&kernel).expect("a kernel");
        let endless = good.replacen("(void)self;", "(void)self; for (volatile int i = 0;; i++) {}", 1);
        assert_ne!(good, endless, "the kernel has no place for the loop");
        std::fs::write(&kernel, endless).expect("written");
        let mut child = fixture.start(&["--set", "verify.call_timeout=\"1h\""]).expect("started");
        // No other candidate is verified at that time, so this runner must belong to the endless candidate.
        require(fixture.until("the endless call has begun", || {
            let record = Record::read(&fixture.run);
            let open = |it: &record::Attempt| it.stage == "verify" && it.status.is_none();
            record.attempts.get("fast").is_some_and(|its| its.iter().any(open))
                && is_at_work(&fixture, "verifier")
        }));
        // Linux merges pending signals of the same kind, so wait until the first was handled before sending the second.
        signal(&child, interrupt);
        require(fixture.until("the first signal is handled", || pending(child.id()) == Some(0)));
        assert!(
            child.try_wait().expect("a child").is_none(),
            "after one interrupt, the run must not have ended: {}",
            fixture.state()
        );
        signal(&child, interrupt);
        let status = fixture.end(&mut child).expect("the supervisor ends");
        assert_eq!(status.code(), Some(4), "{}", fixture.state());
        require(fixture.no_process_is_left());
        require(fixture.no_file_is_left());
        std::fs::write(&kernel, good).expect("written");
        let resumed = fixture.start(&["--resume", "--set", "verify.call_timeout=\"1h\""]).expect("started");
        require(fixture.run_to(resumed, 0));
        require(everything_is_in_order(&fixture));
    }
}

/// Returns the mask of a process's pending signals.
fn pending(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[test]
fn resume_continues_the_same_run_or_is_refused() {
    let fixture = fixture();
    require(fixture.run_to(fixture.start(&[]).expect("started"), 0));
    let record = Record::read(&fixture.run);
    let stderr = || std::fs::read_to_string(fixture.folder.join("stderr")).expect("a log");

    // Without `--resume`, a run does not overwrite the folder.
    require(fixture.run_to(fixture.start(&[]).expect("started"), 2));
    assert!(stderr().contains("--resume"), "{}", stderr());
    assert_eq!(Record::read(&fixture.run), record);

    // Resuming a finished run does nothing.
    require(fixture.run_to(fixture.resume().expect("started"), 0));
    assert_eq!(Record::read(&fixture.run), record);
    require(everything_is_in_order(&fixture));

    // A run with another plan cannot be resumed.
    require(fixture.run_to(fixture.start(&["--resume", "--set", "verify.repeats=3"]).expect("started"), 2));
    assert!(stderr().contains("verify.repeats"), "{}", stderr());
    assert_eq!(Record::read(&fixture.run), record);
    require(fixture.verdicts_are_right());

    // If the sources of a candidate have changed, it is evaluated again. The other candidates keep their results.
    let changed = "wrong_by_nine_percent";
    let source = fixture.folder.join(format!("kernels/{changed}.c"));
    let text = std::fs::read_to_string(&source).expect("a kernel");
    std::fs::write(&source, format!("{text}\n/* still wrong */\n")).expect("written");
    require(fixture.run_to(fixture.resume().expect("started"), 0));
    let mut now = Record::read(&fixture.run);
    let mut before = record;
    let (old, new) = (before.attempts.remove(changed), now.attempts.remove(changed));
    assert_eq!(now, before);
    let (old, new) = (old.expect("attempts"), new.expect("attempts"));
    assert_eq!(new.len(), 2 * old.len(), "{new:?}");
    assert!(new[..old.len()].iter().all(|it| it.superseded), "{new:?}");
    require(everything_is_in_order(&fixture));
}

#[test]
fn second_supervisor_of_a_run_is_refused() {
    let fixture = fixture();
    let first = fixture.start(&[]).expect("started");
    require(fixture.until("a worker", || fixture.marked().iter().any(|it| it.is_worker("verifier"))));
    let second = fixture.start(&["--resume"]).expect("started");
    require(fixture.run_to(second, 3));
    let stderr = std::fs::read_to_string(fixture.folder.join("stderr")).expect("a log");
    assert!(stderr.contains("another supervisor is using"), "{stderr}");
    require(fixture.run_to(first, 0));
    require(everything_is_in_order(&fixture));
}
