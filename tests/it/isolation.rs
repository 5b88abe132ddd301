//! Runs hostile candidates and checks that none of them achieves its goal.
//!
//! The tables here and in `bombs` list how kernels in `tests/data/kernels/hostile` must end. If a kernel's hostile
//! attempt must have no effect, the kernel also computes the right result, and passes. If the attempt has an effect
//! after all, the kernel prints this and aborts.

mod bombs;
mod builds;
mod captures;
mod escapes;
mod exploits;
mod run;

use captures::Markers;
use opt_tests::Scenario;
use opt_tests::users::{User, users};
pub(crate) use run::generate;
use run::{Run, generate_embedding, plan_path, run, run_as};

/// How a hostile kernel may end.
struct Expected {
    file: &'static str,
    statuses: &'static [&'static str],
    /// A part of the detail or of standard error.
    says: &'static str,
}

const fn ends(file: &'static str, statuses: &'static [&'static str], says: &'static str) -> Expected {
    Expected { file, statuses, says }
}

const PASSED: &[&str] = &["PASSED"];
const CRASHED: &[&str] = &["CRASHED"];
const TIMEOUT: &[&str] = &["TIMEOUT"];
const NONDETERMINISTIC: &[&str] = &["NONDETERMINISTIC"];

/// Kernels that are verified with inputs of many pages. These inputs are mapped from the capture.
const AGAINST_INPUTS: &[Expected] = &[
    ends("reads_beside_its_inputs.c", PASSED, ""),
    ends("stores_after_mprotect.c", &["INPUT_MUTATED"], "`input`"),
    ends("stores_after_map_fixed.c", &["INPUT_MUTATED"], "`input`"),
    ends("stores_through_the_kernel.c", PASSED, ""),
];

/// Versions of `reads_beside_its_inputs.c` that must fail, which proves that each of its searches works. Each row has
/// the macro that the version is compiled with, and a part of standard error.
const CONTROLS: &[(&str, &str)] = &[
    ("CONTROL_MEMORY", "before anything, in memory"),
    ("CONTROL_DESCRIPTOR", "through descriptors, descriptor 2"),
    ("CONTROL_PATH", "through a path, /etc/ld.so.cache"),
    ("CONTROL_AROUND", "before anything"),
];

/// Kernels that are verified with small inputs and, if they pass, timed.
const AGAINST_THE_RUN: &[Expected] = &[
    ends("stores_after_mprotect.c", &["INPUT_MUTATED"], "`input`"),
    ends("stores_after_map_fixed.c", &["INPUT_MUTATED"], "`input`"),
    ends("stores_through_the_kernel.c", PASSED, ""),
    ends("forges_trouble_while_loading.c", &["LOAD_ERROR"], ""),
    ends("forges_protections_while_loading.c", &["LOAD_ERROR"], "wrote to its runner's socket"),
    ends("forges_loaded_while_loading.c", TIMEOUT, ""),
    ends("writes_garbage_to_the_socket.c", &["LOAD_ERROR"], ""),
    ends("floods_the_socket.c", PASSED, ""),
    ends("says_done_early.c", TIMEOUT, ""),
    ends("claims_absurd_numbers.c", &["RUNTIME_ERROR"], ""),
    ends("claims_that_an_input_cannot_be_read.c", CRASHED, "exited with code 0"),
    ends("sends_itself_a_bus_error.c", CRASHED, "exited with code 0"),
    ends("scribbles_on_the_control_page.c", TIMEOUT, ""),
    ends("unmaps_the_control_page.c", CRASHED, "SIGSEGV"),
    ends("closes_all_descriptors.c", PASSED, ""),
    ends("replaces_descriptors.c", PASSED, ""),
    ends("prints_megabytes.c", PASSED, ""),
    ends("hangs_in_atexit.c", TIMEOUT, ""),
    ends("crashes_in_a_destructor.c", PASSED, ""),
    ends("exits_in_a_destructor.c", CRASHED, "SIGABRT"),
    ends("jumps_out_of_its_call.c", &["CRASHED", "TIMEOUT", "LOAD_ERROR"], ""),
    ends("throws_an_exception.cpp", CRASHED, "a tile of 0 rows"),
    ends("overflows_the_stack.c", CRASHED, "SIGSEGV"),
    ends("wants_a_huge_stack.c", CRASHED, "SIGSEGV"),
    ends("starts_a_thousand_threads.c", PASSED, ""),
    ends("ends_its_first_thread.c", TIMEOUT, ""),
    ends("signals_itself.c", PASSED, ""),
    ends("runs_under_timers.c", PASSED, ""),
    ends("blocks_signals_and_hangs.c", TIMEOUT, ""),
    ends("waits_for_its_clone.c", PASSED, ""),
    // The allocation of this kernel is refused, so the kernel aborts.
    ends("eats_shared_memory.c", CRASHED, "SIGABRT"),
    ends("eats_page_tables.c", &["HOST_MEMORY_LIMIT"], "limits.memory"),
    ends("eats_thread_local_memory.c", &["HOST_MEMORY_LIMIT"], "of memory was refused"),
    ends("makes_files_of_memory.c", PASSED, ""),
    ends("unmaps_its_output.c", &["UNWRITTEN_OUTPUT"], ""),
    ends("works_three_times.c", NONDETERMINISTIC, ""),
    ends("works_every_other_time.c", NONDETERMINISTIC, ""),
    ends("copies_its_first_result.c", NONDETERMINISTIC, ""),
];

/// Kernels that only `mseal` stops. On Linux before 6.10, which lacks `mseal`, a candidate can change its own view of
/// an input.
const SEALED_ONLY: &[&str] = &[
    "reads_beside_its_inputs",
    "stores_after_mprotect",
    "stores_after_map_fixed",
    "stores_through_the_kernel",
];

const LIMITS: &str = r#"
[build]
libraries = ["m"]

[verify]
call_timeout = "10s"
stop_after = 1

[profile]
entry_timeout = "300ms"

[limits]
memory = "64MiB"
"#;

/// A candidate of the plan, named after its file without the suffix.
fn candidate(name: &str, file: &str, extra_flags: &str) -> String {
    format!(
        "\n[[job.candidate]]\nname = \"{name}\"\nsources = [{:?}]\nbuild = {{ extra_flags = [{extra_flags}] }}\n",
        plan_path(&format!("kernels/hostile/{file}")),
    )
}

fn stem(file: &str) -> &str {
    file.split('.').next().unwrap_or(file)
}

/// A kernel, the statuses that it may end with, and a part of its detail or of standard error.
type Row<'a> = (&'a str, &'static [&'static str], &'a str);

fn table<'a>(rows: &'static [Expected]) -> impl Iterator<Item = Row<'a>> {
    rows.iter().map(|expected| (stem(expected.file), expected.statuses, expected.says))
}

/// Panics with a list of all kernels that did not end as expected.
fn assert_endings<'a>(run: &Run, rows: impl Iterator<Item = Row<'a>>) {
    let sealed = run.has_protection("sealed_inputs");
    let mut mismatch = Vec::new();
    for (name, statuses, says) in rows {
        if !sealed && SEALED_ONLY.contains(&name) {
            eprintln!("not checked: `{name}`, because this Linux has no mseal");
        } else {
            mismatch.extend(run.mismatch(name, statuses, says));
        }
    }
    assert!(mismatch.is_empty(), "{}\n{run}", mismatch.join("\n"));
}

#[test]
fn runner_reads_no_byte_outside_its_inputs() {
    users().into_iter().for_each(search_beside_inputs);
}

fn search_beside_inputs(user: User) {
    let scenario = Scenario::create();
    let folder = generate(&scenario, "softmax", "1024,512", 2);
    let markers = Markers::of_captures(&folder);
    assert!((60..=250).contains(&markers.count()), "{} markers", markers.count());
    scenario.write("include/markers.h", markers.header());
    let mut plan = format!("[run]\nstages = [\"build\", \"verify\"]\n{LIMITS}");
    plan = plan.replace("[build]", "[build]\ninclude = [\"include\"]");
    // Scanning the address space is slow on a busy machine. A long limit does no harm, because no kernel of this plan
    // hangs.
    plan = plan.replace("\"10s\"", "\"60s\"");
    plan += "\n[[job]]\nname = \"job\"\ncaptures = \"captures\"\nbaseline = \"good\"\n";
    plan += &candidate("good", "good.c", "");
    for Expected { file, .. } in AGAINST_INPUTS {
        plan += &candidate(stem(file), file, "");
    }
    for (control, _) in CONTROLS {
        plan += &candidate(control, "reads_beside_its_inputs.c", &format!("\"-D{control}\""));
    }
    plan += &candidate("good_after_them", "good.c", "");
    let run = run_as(user, &scenario, &plan);

    let controls = CONTROLS.iter().map(|(control, says)| (*control, CRASHED, *says));
    let good = ["good", "good_after_them"].map(|name| (name, PASSED, ""));
    assert_endings(&run, table(AGAINST_INPUTS).chain(controls).chain(good));
}

#[test]
fn hostile_candidates_end_as_expected_and_the_run_continues() {
    users().into_iter().for_each(run_hostile_candidates);
}

fn run_hostile_candidates(user: User) {
    let scenario = Scenario::create();
    generate(&scenario, "softmax", "64,256", 2);
    let mut plan = LIMITS.to_owned();
    plan += "\n[[job]]\nname = \"job\"\ncaptures = \"captures\"\nbaseline = \"good\"\n";
    plan += &candidate("good", "good.c", "");
    for (number, Expected { file, statuses, .. }) in AGAINST_THE_RUN.iter().enumerate() {
        plan += &candidate(stem(file), file, "");
        if statuses.contains(&"TIMEOUT") {
            // A short limit is enough even on a busy machine, because this kernel hangs.
            plan += "verify = { call_timeout = \"500ms\" }\n";
        }
        if number % 12 == 11 {
            plan += &candidate(&format!("good_{number}"), "good.c", "");
        }
    }
    plan += &candidate("good_after_them", "good.c", "");
    let run = run_as(user, &scenario, &plan);

    let names = run.names();
    let good = names.iter().filter(|name| name.starts_with("good")).map(|name| (name.as_str(), PASSED, ""));
    assert_endings(&run, table(AGAINST_THE_RUN).chain(good.clone()));
    assert_eq!(run.outcome.code, Some(0), "{run}");
    for (name, ..) in good {
        assert!(run.candidate(name)["profile"]["median_time_ms"].is_number(), "{name} was not timed: {run}");
    }
    assert_eq!(run.candidate("prints_megabytes")["output_truncated"], true, "{run}");
    let protections = run.summary.document["host"]["protections"].to_string();
    assert!(!protections.contains("forged"), "{protections}");
}

#[test]
fn large_inputs_are_mapped_not_loaded() {
    let scenario = Scenario::create();
    generate_embedding(&scenario, 2, "128MiB");
    let kernel = plan_path("kernels/naive/embedding.c");
    let include = plan_path("kernels/naive");
    let run = run(
        &scenario,
        &format!(
            "[run]\nstages = [\"build\", \"verify\"]\n[build]\ninclude = [{include:?}]\nlibraries = [\"m\"]\n\
         [[job]]\nname = \"job\"\ncaptures = \"captures\"\ncandidates = [{kernel:?}]\n"
        ),
    );
    assert_eq!(run.outcome.code, Some(0), "{run}");
    let job = run.summary.job("job");
    let bytes = job["captures"]["bytes"].as_u64().unwrap_or(0);
    assert!(120 << 20 < bytes, "{run}");
    let owed = job["candidates"][0]["resources"]["runner_peak_owed_bytes"].as_u64();
    assert!(owed.is_some_and(|owed| 0 < owed && owed < 24 << 20), "{owed:?}: {run}");
}
