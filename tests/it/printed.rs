//! Tests that the output of a kernel is recorded, and shown when the kernel fails, whether or not its process dies.

use opt_tests::{Scenario, data};

/// Prints to both streams, and then ends as `LAST` says.
const KERNEL: &str = r#"
#include "opt_candidate.h"
#include <stdio.h>
#include <stdlib.h>
int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self, (void)args, (void)n, (void)ret;
    printf("tile %d\n", 3);
    fprintf(stderr, "loading\n");
    LAST
}
"#;

#[test]
fn output_of_a_failed_kernel_is_kept() {
    let scenario = Scenario::create();
    let ends = [
        ("wrong", "return 0;", "UNWRITTEN_OUTPUT"),
        ("fails", "return 7;", "RUNTIME_ERROR"),
        ("crashes", "abort();", "CRASHED"),
        ("exits", "_Exit(3);", "CRASHED"),
        ("hangs", "for (;;) {}", "TIMEOUT"),
    ];
    for (name, last, _) in ends {
        scenario.write(&format!("{name}.c"), KERNEL.replace("LAST", last));
    }
    scenario.write(
        "plan.toml",
        format!(
            "[run]\nstages = [\"build\", \"verify\"]\n[verify]\nstop_after = 1\ncall_timeout = \"1s\"\n\
             [[job]]\nname = \"relu\"\ncaptures = {:?}\ncandidates = [\"*.c\"]\n",
            data("captures/torch_nn_functional_relu")
        ),
    );
    let (outcome, summary) = scenario.run_plan(1, &[]);
    for (name, _, status) in ends {
        let it = summary.candidate("relu", name);
        outcome.expect_equal(it["status"].as_str(), Some(status), format_args!("{name}: {}", it["detail"]));
        let (stdout, stderr) = (it["stdout_tail"].as_str(), it["stderr_tail"].as_str());
        outcome.expect(
            stdout.is_some_and(|text| text.ends_with("tile 3\n")),
            format_args!("{name}: {stdout:?}"),
        );
        outcome.expect(
            stderr.is_some_and(|text| text.ends_with("loading\n")),
            format_args!("{name}: {stderr:?}"),
        );
        let feedback = it["feedback"].as_str().unwrap_or_default();
        let is_shown = feedback.contains("--- standard output:\n") && feedback.contains("tile 3");
        outcome.expect(is_shown, format_args!("the feedback of {name}: {feedback:?}"));
    }
}
