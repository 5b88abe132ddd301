//! Tests plans that launch device code: a printed plan reads back as the same plan, and mistakes are reported with their
//! positions.

use std::path::Path;

use opt_shared::device::Device;
use opt_shared::language::Language;

use super::{DeviceChoice, Plan, PlanErrors, resolved_toml};

const HEAD: &str = "[run]\ndevice = \"emulated\"\n[[job]]\ncaptures = \"op\"\n";

const GOOD: &str = r#"
[[job.candidate]]
name = "two_steps"
sources = ["k.cu"]
language = "cuda-device"

[[job.candidate.workspace]]
name = "sums"
bytes = "out.shape[0] * 8"

[[job.candidate.launch]]
symbol = "sums"
grid = "out.shape[0]"
block = 128
shared_mem = "128 * 4"
args = ["input", "sums", "out.shape[1]:i32"]

[[job.candidate.launch]]
symbol = "scale"
grid = ["ceil_div(out.numel, 256)", 1]
block = [256, 1, 1]
args = ["input", "sums", "out", "1e-5:f32"]
"#;

fn fixture_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("op")).expect("made");
    for file in ["op/entry_000000.pt", "k.cu", "k.ptx", "k.cubin", "k.c"] {
        std::fs::write(folder.path().join(file), "").expect("written");
    }
    folder
}

fn parse(text: &str, folder: &Path) -> Result<Plan, PlanErrors> {
    Plan::parse(text, &folder.join("plan.toml"), &[])
}

#[test]
fn launches_read_back_as_printed() {
    let folder = fixture_folder();
    let plan = parse(&format!("{HEAD}{GOOD}"), folder.path()).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(plan.run.device, DeviceChoice::Named(Device::Emulated));
    assert!(plan.needs_device());
    // Nothing is timed on the emulated device.
    assert!(!plan.stages().profile && plan.run.stages.profile && plan.not_timed_because().is_some());
    let candidate = plan.candidates().next().expect("one");
    assert_eq!(candidate.source.language, Language::CudaDevice);
    let [sums, scale] = &*candidate.launch.steps else { panic!("{:?}", candidate.launch) };
    assert_eq!(
        (sums.symbol.as_str(), sums.block.each_ref().map(|it| it.text())),
        ("sums", ["128", "1", "1"])
    );
    assert_eq!((scale.shared_mem.text(), scale.args.len()), ("0", 4));
    let printed = resolved_toml(&plan);
    let again = parse(&printed, folder.path()).unwrap_or_else(|errors| panic!("{errors}\n{printed}"));
    assert_eq!(again.jobs, plan.jobs, "{printed}");
}

#[test]
fn auto_device_counts_as_the_cpu_in_a_plan_with_a_c_kernel() {
    let folder = fixture_folder();
    let plan = parse("[[job]]\ncaptures = \"op\"\nbaseline = \"k.c\"\n", folder.path()).expect("a plan");
    assert_eq!((plan.run.device, plan.device()), (DeviceChoice::Auto, Device::Cpu));
    assert!(!plan.needs_device() && plan.not_timed_because().is_none());
}

#[test]
fn mistakes_of_device_code_are_reported_at_their_positions() {
    let folder = fixture_folder();
    let candidate = |lines: &str| format!("{HEAD}[[job.candidate]]\n{lines}\n");
    let launch =
        |lines: &str| candidate(&format!("sources = [\"k.ptx\"]\n[[job.candidate.launch]]\n{lines}"));
    let valid = "symbol = \"f\"\ngrid = 1\nblock = 1";
    for (text, line, column, fragment) in [
        (
            candidate("sources = [\"k.ptx\"]"),
            5,
            1,
            "`ptx` has no host code and needs launches: expected a `[[job.candidate.launch]]`",
        ),
        (candidate("sources = [\"k.ptx\"]\ngrid = 1"), 7, 1, "`grid` belongs in `[[job.candidate.launch]]`"),
        (
            candidate("sources = [\"k.cu\"]").replace("\"emulated\"", "\"cpu\""),
            5,
            1,
            "`cuda` does not run on the CPU",
        ),
        (launch("symbol = \"f\"\ngrid = 1"), 7, 1, "the key `block` is missing"),
        (launch(&format!("{valid}\nargs = [\"out.numle\"]")), 11, 14, "expected `numel`, `shape[…]`"),
        (
            launch("symbol = \"f\"\ngrid = \"ceil_div(out.numel 256)\"\nblock = 1"),
            9,
            28,
            "expected `)`, found `256`",
        ),
        (launch("symbol = \"f\"\ngrid = [1, 1, 1, 1]\nblock = 1"), 9, 8, "has 4 elements"),
        (launch("symbol = \"f\"\ngrid = -1\nblock = 1"), 9, 8, "is out of range"),
        (launch("symbol = \"a b\"\ngrid = 1\nblock = 1"), 8, 10, "is not a symbol"),
        (launch(&format!("{valid}\nblocks = 2")), 11, 1, "did you mean `block`?"),
        (
            launch(&format!("{valid}\n[[job.candidate.workspace]]\nname = \"a-b\"\nbytes = 1")),
            12,
            8,
            "cannot be used in an expression",
        ),
        (
            launch(&format!(
                "{valid}\n[[job.candidate.workspace]]\nname = \"a\"\nbytes = 1\n[[job.candidate.workspace]]\nname = \"a\"\nbytes = 1"
            )),
            15,
            8,
            "two workspaces are named `a`",
        ),
        (
            candidate("sources = [\"k.c\"]"),
            5,
            1,
            "`c` runs on the CPU, and the device of this run is `emulated`",
        ),
        (launch(valid).replace("k.ptx", "k.cubin"), 5, 1, "the emulated device runs PTX but no machine code"),
        (launch(valid).replace("\"emulated\"", "\"cpu\""), 5, 1, "`ptx` runs on a device, not on the CPU"),
        (
            candidate(
                "name = \"f\"\nsources = [\"k.c\"]\n[[job.candidate.launch]]\nsymbol = \"f\"\ngrid = 1\nblock = 1",
            ),
            5,
            1,
            "`c` has host code and cannot have launches",
        ),
        (format!("{HEAD}candidates = [\"*.ptx\"]\n"), 5, 15, "device code needs launches"),
        (format!("{HEAD}baseline = \"torch\"\n"), 5, 12, "`torch` runs on the CPU"),
    ] {
        let errors = parse(&text, folder.path()).expect_err(fragment);
        let found = errors.errors.iter().any(|error| {
            (error.line, error.column) == (line, column) && error.to_string().contains(fragment)
        });
        assert!(found, "{line}:{column} {fragment}\n{errors}");
    }
}
