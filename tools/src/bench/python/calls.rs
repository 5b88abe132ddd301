//! Measures the smallest call of each kind of kernel, which copies one float.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::Fixture;

#[derive(Serialize)]
pub(crate) struct Call {
    pub(crate) kind: &'static str,
    pub(crate) us: f64,
}

/// The kinds of kernels. Each has its file, its source and further keys of the plan.
const KINDS: [(&str, &str, &str, &str); 4] = [
    (
        "C",
        "copy.c",
        "#include \"opt_candidate.h\"\nOPT_EXPORT int run(void *self, const OptAny *args, int32_t n, OptAny *ret) {\n\
         (void)self, (void)n, (void)ret;\nconst OptTensor *input = args[0].value.v_tensor, *output = args[1].value.v_tensor;\n\
         *(float *)output->data = *(const float *)input->data;\nreturn OPT_OK; }\n",
        "",
    ),
    (
        "torch-extension, written",
        "copy.cpp",
        "#include <ATen/ATen.h>\nvoid launch(const at::Tensor &input, at::Tensor &output) {\n\
         *output.mutable_data_ptr<float>() = *input.const_data_ptr<float>(); }\n",
        "language = \"torch-extension\"\n",
    ),
    ("Python, written", "written.py", "def run(input, output):\n    output.copy_(input)\n", ""),
    ("Python, returned", "returned.py", "def run(input):\n    return input.clone()\n", ""),
];

/// Returns the time of a call of each kind of kernel, and the time of a copy in plain Python, in microseconds.
pub(super) fn measure(fixture: &Fixture) -> Result<(Vec<Call>, f64)> {
    let folder = fixture.folder.join("calls");
    std::fs::create_dir_all(folder.join("copy"))?;
    let output = Command::new(&fixture.python)
        .args(["-c", include_str!("copy_call.py")])
        .arg(folder.join("copy/entry_000000.pt"))
        .output()
        .context("starting python")?;
    ensure!(
        output.status.success(),
        "making the capture failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let copy_us = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .context("the script printed no time of a copy")?;
    let mut text = format!(
        "[build]\npython = {:?}\n[profile]\nentry_timeout = \"5s\"\n[limits]\nthreads = 1\n[[job]]\ncaptures = \"copy\"\n",
        fixture.python
    );
    for (kind, file, source, more) in KINDS {
        std::fs::write(folder.join(file), source)?;
        text += &format!("[[job.candidate]]\nname = {kind:?}\nsources = [{file:?}]\n{more}");
    }
    let plan = folder.join("plan.toml");
    std::fs::write(&plan, text)?;
    let result = fixture.run(&plan, |_| {})?;
    let candidates = result["jobs"][0]["candidates"].as_array().context("the summary has no candidates")?;
    let calls = KINDS.map(|(kind, ..)| {
        let found = candidates
            .iter()
            .find(|it| it["name"] == kind)
            .with_context(|| format!("the summary has no candidate `{kind}`"))?;
        let median = found["profile"]["median_time_ms"].as_f64();
        Ok(Call { kind, us: median.with_context(|| format!("`{kind}` has no time: {found}"))? * 1e3 })
    });
    Ok((calls.into_iter().collect::<Result<_>>()?, copy_us))
}
