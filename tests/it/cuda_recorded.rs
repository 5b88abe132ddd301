//! Tests CUDA sources with host code on a simulated card (twins of NVML and libcuda), where builds record their
//! launches. The tests need nvcc, which they look for as those of `cuda_launchers` do.

use opt_nvml_twin::{Device, Script};
use opt_tests::devices::{device, on_a_card, twin, with_context};
use opt_tests::{Outcome, Scenario, Summary, data};

use crate::cuda_launchers::{ENDLESS, LAUNCHERS, PTX_ONLY, blame_for, plan, toolkit};

/// The launchers that end differently than on the emulated device, where their host code and their kernels run in one
/// process: the status and a part of the detail.
const DIFFERENT: [(&str, &str, &str); 7] = [
    ("by_the_host", "UNSUPPORTED", "copies device memory to the host"),
    ("writes_an_input", "INPUT_MUTATED", "the input `input`"),
    ("copies_into_an_input", "INPUT_MUTATED", "the input `input`"),
    ("writes_past_the_end", "OUT_OF_BOUNDS", "past the end of `output`"),
    ("loops_on_the_host", "TIMEOUT", "while its launches were recorded"),
    ("too_many_threads", "RUNTIME_ERROR", "2048"),
    ("forgets_a_barrier", "CRASHED", "a card does not report the place"),
];

/// Runs the plan of a scenario on a simulated card.
fn run(scenario: &Scenario) -> (Outcome, Summary) {
    let processes = vec![with_context(&[(0, 300)])];
    let twin =
        twin(scenario, &Script { devices: vec![Device { processes, ..device() }], ..Script::default() });
    let mut command = scenario.command(&["run", "plan.toml"]);
    let child = on_a_card(scenario, &twin, &mut command).spawn().expect("the program starts");
    let outcome = scenario.finish(child, &["run", "plan.toml"]).expect_exit(0);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    outcome.expect_clean(&scenario.run_folder(), &scenario.runtime());
    (outcome, summary)
}

#[test]
fn every_recorded_launcher_ends_as_expected_on_a_card() {
    let Some(toolkit) = toolkit() else { return };
    let text = plan(&toolkit, "cuda:0").replacen("[build]", "stages = [\"build\", \"verify\"]\n[build]", 1);
    let scenario = Scenario::with_plan(&text);
    let (outcome, summary) = run(&scenario);
    for (job, name, status, _) in LAUNCHERS.into_iter().filter(|(_, name, ..)| *name != ENDLESS) {
        let it = summary.candidate(job, name);
        let detail = it["detail"].as_str().unwrap_or_default();
        let different = DIFFERENT.iter().find(|(of, ..)| *of == name);
        let status = different.map_or(status, |(_, status, _)| status);
        outcome.expect_equal(it["status"].as_str(), Some(status), format_args!("{name}: {detail}"));
        if let Some((_, _, part)) = different {
            let what = format_args!("the detail of {name} contains {part:?}: {detail:?}");
            outcome.expect(detail.contains(part), what);
        }
        outcome.expect_equal(it["blame"].as_str(), blame_for(status), format_args!("the blame of {name}"));
        outcome.expect_equal(it["tier"].as_str(), Some("A"), format_args!("{name}'s tier"));
    }
}

/// Host code that launches a kernel twice takes about twice as long on the twin's virtual clock as host code that launches
/// it once, although both are called only during their builds.
#[test]
fn recorded_launches_are_timed_on_the_card() {
    let Some(toolkit) = toolkit() else { return };
    let folder = Scenario::create();
    let launch = "relu<<<blocks(call.count), 64>>>(call.in, call.out, call.count);";
    for (name, launches) in [("once", 1), ("twice", 2)] {
        let code = format!(
            "#include {:?}\nOPT_EXPORT int run(void *, const OptAny *args, int32_t n, OptAny *)\n{{\n    Call call = \
             call_of(args, n);\n    int multiprocessors = 0;\n    cudaDeviceGetAttribute(&multiprocessors, \
             cudaDevAttrMultiProcessorCount, 0);\n    // This is the number that the twin reports.\n    if (multiprocessors \
             != 7) return 3;\n    {}\n    return cudaGetLastError();\n}}\n",
            data("kernels/cuda/relu.cuh"),
            launch.repeat(launches)
        );
        folder.write(&format!("{name}.cu"), code);
    }
    let text = format!(
        "[run]\ndevice = \"cuda:0\"\n[build]\nextra_flags = [\"{PTX_ONLY}\"]\ntoolchain = [{toolkit:?}]\ntimeout = \"600s\"\ninclude = [{:?}]\n\
         [verify]\ncall_timeout = \"60s\"\n[profile]\nentry_timeout = \"20s\"\n\
         [[job]]\nname = \"relu\"\ncaptures = {:?}\nentries = [\"entry_000000.pt\"]\nbaseline = \"twice.cu\"\n\
         candidates = [\"once.cu\"]\n",
        data("kernels/cuda"),
        data("captures/torch_nn_functional_relu")
    );
    folder.write("plan.toml", text);
    let (outcome, summary) = run(&folder);
    for name in ["once", "twice"] {
        let (status, detail) = summary.verdict("relu", name);
        outcome.expect_equal(status, Some("PASSED"), format_args!("{name}: {detail:?}"));
    }
    let speedup = summary.candidate("relu", "once")["speedup"]["value"].as_f64();
    outcome.expect(
        speedup.is_some_and(|it| 1.5 < it),
        format_args!("the speed-up of one launch over two: {speedup:?}"),
    );
}

/// Host code that is recorded runs in a process of the build. If it could answer the worker, it could blame the host.
#[test]
fn recorded_host_code_cannot_speak_to_the_worker() {
    let Some(toolkit) = toolkit() else { return };
    let scenario = Scenario::create();
    let code = format!(
        "#include <sys/socket.h>\n#include {:?}\n// Sends what a process of a build sends if our own code has failed.\n\
         __attribute__((constructor)) static void forge()\n{{\n    static unsigned frame[514] = {{4, 4}};\n    for (int \
         at = 3; at < 64; at++) send(at, frame, sizeof frame, MSG_DONTWAIT | MSG_NOSIGNAL);\n}}\n\
         OPT_EXPORT int run(void *, const OptAny *args, int32_t n, OptAny *)\n{{\n    Call call = call_of(args, n);\n    \
         relu<<<blocks(call.count), 64>>>(call.in, call.out, call.count);\n    return cudaGetLastError();\n}}\n",
        data("kernels/cuda/relu.cuh")
    );
    scenario.write("forges.cu", code);
    let text = format!(
        "[run]\ndevice = \"emulated\"\n[build]\ntoolchain = [{toolkit:?}]\ntimeout = \"600s\"\ninclude = [{:?}]\n\
         [verify]\ncall_timeout = \"60s\"\n[[job]]\nname = \"relu\"\ncaptures = {:?}\nentries = [\"entry_000000.pt\"]\n\
         [[job.candidate]]\nsources = [\"forges.cu\"]\nlanguage = \"cuda-recorded\"\n",
        data("kernels/cuda"),
        data("captures/torch_nn_functional_relu")
    );
    scenario.write("plan.toml", text);
    let outcome = scenario.run(&["run", "plan.toml"]).expect_exit(0);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    let (status, _) = summary.verdict("relu", "forges");
    outcome.expect_equal(status, Some("PASSED"), "its launches are right, and its frame is not received");
}
