//! Tests resolved plans: layers, names, defaults, and that a printed plan reads back as the same plan.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use opt_shared::arguments::PlainValue;
use opt_shared::capture::DType;
use opt_shared::language::Language;
use opt_shared::settings::{BeforeProfile, CacheState, ToleranceProfile};
use opt_shared::units::Bytes;
use proptest::prelude::*;

use super::mistakes::fixture_folder;
use super::schema::TABLES;
use super::{
    Amount, DeviceChoice, Floor, Plan, Settings, Stages, SwapUse, Unified, changed_keys, entry_files,
    resolved_toml,
};

fn plan(text: &str, folder: &Path, set: &[&str]) -> Plan {
    let set: Vec<String> = set.iter().map(|&argument| argument.to_owned()).collect();
    Plan::parse(text, &folder.join("plan.toml"), &set).unwrap_or_else(|errors| panic!("{text}\n{errors}"))
}

fn names(plan: &Plan, job: usize) -> Vec<&str> {
    plan.jobs[job].candidates.iter().map(|candidate| candidate.name.as_str()).collect()
}

const SMALLEST: &str =
    "[[job]]\ncaptures = \"cap\"\nbaseline = \"k/naive.c\"\ncandidates = [\"k/**/*.{c,cpp}\"]\n";

/// A plan that contains every key of a job, and settings on all levels.
const FULL: &str = r#"
build.flags = ["-O2"]
build.extra_flags = ["-top"]
build.env = { A = "top", B = "top" }
verify.dtype.bfloat16 = { rtol = 0.1, atol = 0.2 }
limits = { memory = "1GiB", threads = 4 }

[run]
name = "my run"
device = "cpu"
verifiers = 2
stages = ["verify", "build"]

[memory]
host_ceiling = "12.3%"
host_floor = "5%"
swap = "any"
unified = "no"
spare = false

[[job]]
name = "embedding"
captures = "cap"
entries = ["entry_00000[01].pt", "*1.pt"]
dtypes = ["float32", "torch.bfloat16"]
params = ["input", "weight", "padding_idx", "scale", "list", "floats", "flags", "text", "big"]
defaults = { padding_idx = "none", scale = 1e-5, list = [1, 2], floats = [1, 2.5, inf], flags = [true], text = "a\n\"b\"", big = -9223372036854775808 }
partial = true
baseline = "slow one"
candidates = ["k/**/*.{c,cpp}"]
recycle = { before_profile = "always", max_age = "1h30m" }
profile = { max_noise = "0.7%", cache_state = "warm" }

[job.build]
extra_flags = ["-job"]
env = { B = "job" }

[[job.candidate]]
name = "slow one"
sources = ["k/naive.c"]
symbol = "go"
partial = false
build = { extra_flags = ["-own"], env = { C = "own" }, include = ["include"] }
verify.dtype.bfloat16.rtol = 0.5
verify.seed = 7
limits.threads = "cores"

[[job.candidate]]
name = "as c++"
sources = ["k/naive.c"]
language = "cpp"

[[job]]
captures = "other"
baseline = "k2/naive.c"
"#;

#[test]
fn default_toml_has_exactly_the_keys_of_the_schema() {
    let text = super::layers::DEFAULTS.parse::<toml::Table>().unwrap();
    let tables: Vec<&str> = text.keys().map(String::as_str).collect();
    let mut schema_tables: Vec<&str> = TABLES.iter().map(|(table, _)| *table).collect();
    schema_tables.sort_unstable();
    assert_eq!(tables, schema_tables);
    for (table, keys) in TABLES {
        let mut keys: Vec<&str> =
            keys.iter().copied().filter(|key| (*table, *key) != ("run", "name")).collect();
        keys.sort_unstable();
        let written: Vec<&str> = text[*table].as_table().unwrap().keys().map(String::as_str).collect();
        assert_eq!(written, keys, "{table}");
    }
}

#[test]
fn smallest_plan_has_the_documented_defaults() {
    let folder = fixture_folder();
    let plan = plan(SMALLEST, folder.path(), &[]);
    assert_eq!(plan.run.name, "plan");
    assert_eq!((plan.run.device, plan.run.verifiers.get()), (DeviceChoice::Auto, 1));
    assert_eq!(plan.run.stages, Stages { build: true, verify: true, profile: true });
    assert_eq!(plan.memory.host_ceiling, Amount::Share(0.75));
    assert_eq!(plan.memory.host_floor, Floor::Larger(Amount::Size(Bytes::gib(1)), Amount::Share(0.05)));
    assert_eq!(plan.memory.device_ceiling, Amount::Share(0.9));
    assert_eq!(
        (plan.memory.swap, plan.memory.unified, plan.memory.spare),
        (SwapUse::Own, Unified::Auto, true)
    );
    let job = &plan.jobs[0];
    assert_eq!(job.name, "cap");
    assert_eq!(job.captures, folder.path().join("cap"));
    assert_eq!(names(&plan, 0), ["deep/tiled", "fast.c", "fast.cpp", "naive"]);
    assert_eq!(plan.candidate(job.baseline.unwrap()).unwrap().name, "naive");
    let naive = &job.candidates[3];
    assert_eq!(naive.source.sources, [folder.path().join("k/naive.c")]);
    assert_eq!((naive.source.language, &*naive.source.symbol, naive.partial), (Language::C, "run", false));
    assert_eq!(naive.build.flags, ["-O3", "-march=native"]);
    assert_eq!((naive.build.memory, naive.build.timeout), (None, None));
    assert_eq!((naive.verify.repeats, naive.verify.stop_after), (2, 3));
    assert_eq!(naive.verify.tolerance, ToleranceProfile::Standard);
    assert_eq!((naive.profile.max_noise, naive.profile.min_improvement), (0.01, 0.02));
    assert_eq!(naive.profile.cache_state, CacheState::Auto);
    assert_eq!((naive.limits.memory, naive.limits.threads, naive.limits.processes), (None, None, None));
    assert_eq!((naive.limits.open_files, naive.limits.output), (256, Bytes::kib(64)));
    assert_eq!(job.recycle.before_profile, BeforeProfile::Large);
    assert_eq!((job.recycle.growth, job.recycle.after_leases), (Bytes::mib(256), 512));
    let entries = entry_files(job).unwrap();
    assert_eq!(
        entries,
        [folder.path().join("cap/entry_000000.pt"), folder.path().join("cap/entry_000001.pt")]
    );
}

#[test]
fn stronger_layers_win() {
    let folder = fixture_folder();
    let plan = plan(FULL, folder.path(), &["verify.seed=9", "limits.open_files=99", "build.cc=my cc"]);
    assert_eq!(plan.run.stages, Stages { build: true, verify: true, profile: false });
    let job = &plan.jobs[0];
    let [slow, other] = [&job.candidates[0], &job.candidates[1]];
    assert_eq!(job.build.flags, ["-O2"]);
    assert_eq!(plan.settings.build.extra_flags, ["-top"]);
    assert_eq!(job.build.extra_flags, ["-top", "-job"]);
    assert_eq!(slow.build.extra_flags, ["-top", "-job", "-own"]);
    let env = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    };
    assert_eq!(slow.build.env, env(&[("A", "top"), ("B", "job"), ("C", "own")]));
    assert_eq!(slow.build.include, [folder.path().join("include")]);
    assert_eq!((slow.limits.threads, slow.limits.memory), (None, Some(Bytes::gib(1))));
    assert_eq!((other.limits.threads, other.limits.open_files), (Some(4), 99));
    let figures = slow.verify.dtype[&DType::BFloat16];
    assert_eq!((figures.rtol, figures.atol, figures.rel_l2), (Some(0.5), Some(0.2), None));
    // `--set` is stronger than the candidate's own 7.
    assert_eq!((slow.verify.seed, plan.settings.verify.seed), (9, 9));
    assert_eq!(slow.build.cc, "my cc");
    assert_eq!((slow.partial, other.partial), (false, true));
    assert_eq!(other.source.language, Language::Cpp);
    assert_eq!(job.recycle.max_age, Duration::from_secs(5400));
    assert_eq!(plan.jobs[1].recycle.before_profile, BeforeProfile::Large);
    let shared = &plan.jobs[1].candidates[0];
    assert!(std::sync::Arc::ptr_eq(&shared.verify, &plan.settings.verify), "settings are shared, not copied");
}

#[test]
fn jobs_and_candidates_are_named_and_numbered() {
    let folder = fixture_folder();
    let plan = plan(FULL, folder.path(), &[]);
    // The pattern skips the file that a table names. Two files would get the name `fast`, so both keep their suffixes.
    assert_eq!(names(&plan, 0), ["slow one", "as c++", "deep/tiled", "fast.c", "fast.cpp"]);
    assert_eq!(names(&plan, 1), ["naive"]);
    assert_eq!((plan.jobs[1].name.as_str(), plan.jobs[1].id.0), ("other", 1));
    for (number, candidate) in plan.candidates().enumerate() {
        assert_eq!(candidate.id.index(), number);
        assert_eq!(plan.candidate(candidate.id), Some(candidate));
    }
    assert_eq!(plan.jobs[1].baseline, plan.candidates().last().map(|candidate| candidate.id));
    assert_eq!(plan.jobs[0].defaults["padding_idx"], PlainValue::None);
    assert_eq!(plan.jobs[0].defaults["floats"], PlainValue::Floats(vec![1.0, 2.5, f64::INFINITY]));
    assert_eq!(plan.jobs[0].dtypes, Some(vec![DType::Float32, DType::BFloat16]));
}

#[test]
fn set_argument_appends_last_and_takes_plain_words() {
    let folder = fixture_folder();
    let plan = plan(
        FULL,
        folder.path(),
        &["build.extra_flags=[\"-set\"]", "verify.tolerance=gpu", "run.name = other", "limits.env.X=1"],
    );
    let slow = &plan.jobs[0].candidates[0];
    let flags: Vec<&String> = slow.build.flags.iter().chain(&slow.build.extra_flags).collect();
    assert_eq!(flags, ["-O2", "-top", "-job", "-own", "-set"]);
    assert_eq!(slow.verify.tolerance, ToleranceProfile::Gpu);
    assert_eq!(plan.run.name, "other");
    assert_eq!(slow.limits.env["X"], "1");
    assert_read_back(&plan);
}

#[test]
fn quoted_set_argument_is_not_read_with_its_quotes() {
    let folder = fixture_folder();
    for argument in ["run.name=\"\"", "run.name=\"..\"", "build.cc=\"\"", "run.name=''"] {
        let path = folder.path().join("plan.toml");
        let errors = Plan::parse(FULL, &path, &[argument.to_owned()]).expect_err(argument);
        assert!(errors.to_string().contains("--set"), "{argument}: {errors}");
    }
}

fn assert_read_back(plan: &Plan) {
    let text = resolved_toml(plan);
    let again =
        Plan::parse(&text, &plan.source_path, &[]).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
    assert_eq!(&again, plan, "{text}");
    assert_eq!(changed_keys(&text, &resolved_toml(&again)), Vec::<String>::new());
}

#[test]
fn resolved_plan_reads_back_as_the_same_plan() {
    let folder = fixture_folder();
    for text in [SMALLEST, FULL] {
        let plan = plan(text, folder.path(), &[]);
        assert_read_back(&plan);
    }
    let before = resolved_toml(&plan(FULL, folder.path(), &[]));
    let after = resolved_toml(&plan(FULL, folder.path(), &["verify.call_timeout=5s"]));
    assert_eq!(changed_keys(&before, &after), ["verify.call_timeout"]);
}

#[test]
fn job_without_candidates_is_allowed() {
    let folder = fixture_folder();
    let plan = plan("[[job]]\ncaptures = \"cap\"\n", folder.path(), &[]);
    assert_eq!((plan.jobs[0].candidates.len(), plan.jobs[0].baseline), (0, None));
    assert_read_back(&plan);
}

/// Returns random settings. Each has its level: 0 for the top of the plan, 1 for the job, 2 for the candidate.
fn lines() -> impl Strategy<Value = Vec<(usize, &'static str)>> {
    let choices = [
        "build.flags = []",
        "build.flags = [\"-O1\", \"a \\\"quoted\\\" \\\\ thing\"]",
        "build.extra_flags = [\"-x\"]",
        "build.extra_flags = [\"-y\", \"-x\"]",
        "build.env = { A = \"1\", \"odd key\" = \"\" }",
        "limits.env = { A = \"2\" }",
        "limits.memory = \"1537B\"",
        "limits.processes = 17",
        "limits.output_kib = 0",
        "verify.required_matched_ratio = 0.1",
        "verify.dtype.float16 = { rel_l2 = 1e-30 }",
        "verify.dtype.float32 = {}",
        "verify.call_timeout = \"1h1ms\"",
        "profile.max_noise = \"0.3%\"",
        "profile.min_improvement = \"0%\"",
        "recycle.large_job = \"0\"",
        "recycle.max_age = \"61s\"",
    ];
    prop::collection::vec((0..3_usize, prop::sample::select(choices.to_vec())), 0..14)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_resolved_plan_reads_back_as_the_same_plan(lines in lines(), set in prop::option::of(prop::sample::select(vec![
        "build.extra_flags=[\"-z\"]", "build.flags=[\"-O0\"]", "limits.env.A=3", "verify.dtype.float16.rtol=1",
    ]))) {
        let folder = fixture_folder();
        let mut levels = [String::new(), String::new(), String::new()];
        let mut written = std::collections::BTreeSet::new();
        for (level, line) in lines {
            let key = line.split(" = ").next().unwrap_or_default();
            if written.insert((level, key)) {
                levels[level].push_str(line);
                levels[level].push('\n');
            }
        }
        let [top, job, candidate] = levels;
        let text = format!(
            "{top}[[job]]\ncaptures = \"cap\"\ncandidates = [\"k/f*\"]\n{job}[[job.candidate]]\nsources = [\"k/naive.c\"]\n{candidate}"
        );
        let set: Vec<&str> = set.into_iter().collect();
        let plan = plan(&text, folder.path(), &set);
        assert_read_back(&plan);
    }

    #[test]
    fn parse_does_not_panic(text in "([\\[\\]{}=\".,#a-z0-9 \n]|job|captures|verify|candidate){0,60}") {
        let _ = Plan::parse(&text, Path::new("/nowhere/plan.toml"), &[]).map_err(|errors| errors.render(false));
    }
}

#[test]
fn settings_have_only_the_printed_tables() {
    // If a table is added, it must also be printed and compared. This pattern does not compile when `Settings` grows.
    let folder = fixture_folder();
    let Settings { recycle: _, build: _, verify: _, profile: _, limits: _ } =
        plan(SMALLEST, folder.path(), &[]).settings;
}
