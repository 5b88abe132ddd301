//! Tests that a candidate gets all its threads, as root and as an ordinary user, no matter how many processes that user
//! has, and that its threads keep their CPUs.
//!
//! The first kernel fails if OpenMP starts fewer threads than requested, which would happen if the sandbox limited the
//! number of the user's processes.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use opt_tests::users::{User, users};
use opt_tests::{Scenario, Summary, data};

use crate::report::browser::skipped;

const CAPTURES: &str = "captures/torch_nn_functional_relu";
const OTHER_PROCESSES: usize = 30;

/// Idle processes of a user. Dropping the value kills them.
struct IdleProcesses(Vec<Child>);

impl IdleProcesses {
    fn start(user: User) -> Self {
        let start = |_| {
            let mut command = Command::new("sleep");
            command.arg("3600").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            user.apply_to(&mut command);
            command.spawn().expect("`sleep` starts")
        };
        Self((0..OTHER_PROCESSES).map(start).collect())
    }
}

impl Drop for IdleProcesses {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn has_openmp(folder: &Path) -> bool {
    let mut command = Command::new("cc");
    command.args(["-fopenmp", "-shared", "-fPIC", "-I"]).arg(data("../../worker/include"));
    command.arg("-o").arg(folder.join("probe.so")).arg(data("kernels/openmp/relu.c"));
    command.output().expect("a C compiler is installed").status.success()
}

#[test]
fn four_threads_run_beside_thirty_other_processes_of_the_user() {
    for user in users() {
        let scenario = Scenario::create();
        if !has_openmp(scenario.path()) {
            skipped("OpenMP (`cc -fopenmp` does not work)");
            return;
        }
        scenario.copy_captures(&data(CAPTURES), "captures");
        scenario
            .write("relu.c", std::fs::read(data("kernels/openmp/relu.c")).expect("a kernel of the tests"));
        scenario.write(
            "plan.toml",
            "[build]\nflags = [\"-O1\"]\nextra_flags = [\"-fopenmp\"]\n[limits]\nthreads = 4\n\
             [profile]\nentry_timeout = \"1s\"\n\
             [[job]]\nname = \"job\"\ncaptures = \"captures\"\ndtypes = [\"float32\"]\ncandidates = [\"relu.c\"]\n",
        );
        let program = user.program(&scenario);
        user.take_ownership(&scenario);
        let idle = IdleProcesses::start(user);
        let arguments = ["run", "plan.toml"];
        let mut command = scenario.command_of(&program, &arguments);
        user.apply_to(&mut command);
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let outcome = scenario.finish(child, &arguments);
        drop(idle);
        let summary = Summary::read(&scenario.run_folder(), &outcome);
        let candidate = summary.candidate("job", "relu");
        outcome.expect_equal(
            candidate["status"].as_str(),
            Some("PASSED"),
            format_args!("{user:?}: {}", candidate["detail"]),
        );
        outcome.expect_exit(0);
    }
}

#[test]
fn threads_of_a_timed_kernel_keep_all_their_cpus() {
    let scenario = Scenario::create();
    if !has_openmp(scenario.path()) {
        skipped("OpenMP (`cc -fopenmp` does not work)");
        return;
    }
    scenario.copy_captures(&data(CAPTURES), "captures");
    let kernel = data("kernels/openmp/keeps_its_cpus.c");
    scenario.write("kernel.c", std::fs::read(kernel).expect("a kernel of the tests"));
    scenario.write(
        "plan.toml",
        "[build]\nflags = [\"-O1\"]\nextra_flags = [\"-fopenmp\"]\n[profile]\nentry_timeout = \"1s\"\n\
         [[job]]\nname = \"job\"\ncaptures = \"captures\"\ndtypes = [\"float32\"]\ncandidates = [\"kernel.c\"]\n",
    );
    let (outcome, summary) = scenario.run_plan(0, &[]);
    let candidate = summary.candidate("job", "kernel");
    outcome.expect_equal(candidate["status"].as_str(), Some("PASSED"), &candidate["detail"]);
    outcome.expect(candidate["profile"]["runners"].as_u64().is_some(), "it was timed");
}
