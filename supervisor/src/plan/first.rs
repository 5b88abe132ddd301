//! Composes the plan that `init` writes: the smallest one that works, with common additions as comments.

use std::path::Path;

use super::print::string;

/// Returns the text of a first plan. Paths are written as they are given. Relative ones start at the folder of the
/// plan.
pub fn first_plan(captures_dir: &Path, job_name: &str, baseline_file: &Path) -> String {
    let captures = string(&captures_dir.to_string_lossy());
    let name = string(job_name);
    let baseline = string(&baseline_file.to_string_lossy());
    format!(
        "\
# A plan for opt-supervisor. `opt-supervisor check` examines it and runs no kernel; `opt-supervisor run` runs it.
# Keys that are left out have defaults; `check` prints every setting. Paths are relative to this file.

[[job]]
name = {name}
captures = {captures}
baseline = {baseline}            # the others are compared with it
# candidates = [\"kernels/**/*.{{c,cpp}}\"]   # files to try; a pattern that matches no file is an error
# entries = [\"entry_0000*.pt\"]            # only some of the recorded calls
# dtypes = [\"float32\"]
# params = [\"input\", \"weight\"]            # the order of a kernel's arguments

# [job.build]
# extra_flags = [\"-fopenmp\"]              # added to -O3 -march=native

# [memory]
# host_ceiling = \"75%\"                   # what the whole run may owe: a size, or a share of RAM
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    #[test]
    fn first_plan_parses_even_with_odd_names() {
        let folder = tempfile::tempdir().unwrap();
        let captures = folder.path().join("cap \"tures\" # 1");
        std::fs::create_dir(&captures).unwrap();
        std::fs::write(captures.join("entry_000000.pt"), "").unwrap();
        std::fs::write(folder.path().join("na\\ive.c"), "").unwrap();
        let text = first_plan(Path::new("cap \"tures\" # 1"), "an \"op\"", Path::new("na\\ive.c"));
        let plan = Plan::parse(&text, &folder.path().join("plan.toml"), &[]).unwrap();
        assert_eq!(plan.jobs[0].name, "an \"op\"");
        assert_eq!(plan.jobs[0].candidates[0].name, "na\\ive");
        assert_eq!(plan.jobs[0].captures, captures);
        // The commented table is valid too.
        let with_more = text.replace("# extra_flags", "extra_flags").replace("# [job.build]", "[job.build]");
        let plan = Plan::parse(&with_more, &folder.path().join("plan.toml"), &[]).unwrap();
        assert_eq!(plan.jobs[0].candidates[0].build.extra_flags, ["-fopenmp"]);
    }
}
