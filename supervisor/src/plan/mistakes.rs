//! Tests the messages about mistakes in a plan. Each mistake must give one message at one position.

use std::path::Path;

use super::{Plan, PlanError};
use crate::snapshot;

/// Returns a folder with the capture set and the kernels that the plans below name.
pub(super) fn fixture_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in [
        "cap/entry_000000.pt",
        "cap/entry_000001.pt",
        "other/entry_000000.pt",
        "empty/readme.txt",
        "k/naive.c",
        "k/fast.c",
        "k/fast.cpp",
        "k/deep/tiled.cpp",
        "k2/naive.c",
        "gpu/a.cu",
        "dir.c/a.c",
        "mixed/a.c",
        "mixed/notes.md",
        "include/x.h",
    ] {
        let path = folder.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }
    folder
}

fn errors(text: &str, folder: &Path, set: &[&str]) -> Vec<PlanError> {
    let set: Vec<String> = set.iter().map(|&argument| argument.to_owned()).collect();
    let plan = Plan::parse(text, &folder.join("plan.toml"), &set);
    plan.err().map_or_else(Vec::new, |errors| errors.errors)
}

/// A valid job in the first three lines. Tests append mistakes to it, from line 4 on.
const JOB: &str = "[[job]]\ncaptures = \"cap\"\nbaseline = \"k/naive.c\"\n";

#[test]
fn each_mistake_gives_one_message_at_its_position() {
    // Each row has the text below the job, then the line, column, key and part of the message of its mistake.
    let below: &[(&str, usize, usize, &str, &str)] = &[
        ("[verify]\nrepeat = 3", 5, 1, "verify.repeat", "did you mean `repeats`?"),
        ("[verifi]\nrepeats = 3", 4, 2, "verifi", "did you mean `verify`?"),
        ("verify.Repeats = 3", 4, 8, "job.verify.Repeats", "did you mean `repeats`?"),
        ("[profile]\nstop_after = 3", 5, 1, "profile.stop_after", "belongs in `[verify]`"),
        ("candidate_files = []", 4, 1, "job.candidate_files", "unknown key in `job`"),
        ("[verify]\nrepeats = \"two\"", 5, 11, "verify.repeats", "found the string \"two\""),
        ("[verify]\nrepeats = 1", 5, 11, "verify.repeats", "expected a whole number from 2 to 1000"),
        ("[verify]\nrepeats = 99999999999999999999", 5, 11, "verify.repeats", "out of range"),
        ("[verify]\nrepeats = two", 5, 11, "", "a string must be quoted"),
        ("[verify]\nrepeats =", 5, 10, "", "this key has no value"),
        ("[run]\nverifiers = 0", 5, 13, "run.verifiers", "expected a whole number from 1 to 1024"),
        ("[verify]\nrequired_matched_ratio = 1.5", 5, 26, "verify.required_matched_ratio", "at most 1"),
        ("[verify]\nseed = -1", 5, 8, "verify.seed", "0 or more"),
        ("[verify]\ntolerance = \"standart\"", 5, 13, "verify.tolerance", "did you mean `standard`?"),
        ("[verify.dtype.bf16]\nrtol = 0.1", 4, 15, "verify.dtype.bf16", "did you mean `bfloat16`?"),
        ("[verify.dtype.bfloat16]\nrtol = -0.1", 5, 8, "verify.dtype.bfloat16.rtol", "0 or more"),
        ("[verify.dtype.bfloat16]\nrtoll = 0.1", 5, 1, "verify.dtype.bfloat16.rtoll", "did you mean `rtol`?"),
        ("[verify]\ncall_timeout = \"60\"", 5, 16, "verify.call_timeout", "is not a duration"),
        ("[verify]\ncall_timeout = 60", 5, 16, "verify.call_timeout", "found the integer 60"),
        ("[verify]\ncall_timeout = \"0s\"", 5, 16, "verify.call_timeout", "must not be zero"),
        ("[build]\nmemory = \"4 gigs\"", 5, 10, "build.memory", "is not a size"),
        ("[build]\nmemory = \"0\"", 5, 10, "build.memory", "too small"),
        ("[build]\nmax_artifact = \"0\"", 5, 16, "build.max_artifact", "too small"),
        ("[build]\nmax_artifact = 64", 5, 16, "build.max_artifact", "found the integer 64"),
        ("[run]\nmax_artifact = \"1MiB\"", 5, 1, "run.max_artifact", "did you mean `max_artifacts`?"),
        ("[run]\nmax_artifacts = \"4 gigs\"", 5, 17, "run.max_artifacts", "is not a size"),
        ("[run]\nmax_artifacts = \"0\"", 5, 17, "run.max_artifacts", "too small"),
        ("[build]\nflags = \"-O3\"", 5, 9, "build.flags", "write [\"-O3\"]"),
        ("[build]\nflags = [\"-O3\", 3]", 5, 17, "build.flags", "found the integer 3"),
        ("[build]\ninclude = [\"nowhere\"]", 5, 12, "build.include", "cannot find the folder"),
        ("[build]\ntoolchain = [\"nowhere\"]", 5, 14, "build.toolchain", "cannot find the folder"),
        ("[build]\nenv = { A = 1 }", 5, 13, "build.env.A", "expected a string"),
        (
            "[build]\nenv = { \"A=B\" = \"1\" }",
            5,
            9,
            "build.env.\"A=B\"",
            "cannot be the name of an environment variable",
        ),
        ("[profile]\nmax_noise = \"0%\"", 5, 13, "profile.max_noise", "above \"0%\""),
        ("[profile]\nmax_noise = 0.01", 5, 13, "profile.max_noise", "expected a percentage"),
        ("[profile]\nvary = \"x\"", 5, 8, "profile.vary", "write [\"x\"]"),
        ("[memory]\nhost_ceiling = \"120%\"", 5, 16, "memory.host_ceiling", "not a valid amount"),
        ("[memory]\nhost_floor = \"max(1GiB)\"", 5, 14, "memory.host_floor", "max(1GiB, 5%)"),
        ("[memory]\nspare = \"yes\"", 5, 9, "memory.spare", "`true` or `false`"),
        ("[limits]\nthreads = \"all\"", 5, 11, "limits.threads", "or \"cores\""),
        ("[limits]\nthreads = 0", 5, 11, "limits.threads", "from 1 to 4096, or \"cores\""),
        ("[run]\nstages = [\"build\", \"verfy\"]", 5, 20, "run.stages", "did you mean `verify`?"),
        (
            "[run]\nstages = [\"build\", \"profile\"]",
            5,
            10,
            "run.stages",
            "`profile` needs the stage `verify`",
        ),
        ("[run]\nstages = []", 5, 10, "run.stages", "names no stage"),
        ("[run]\nstages = [\"build\", \"build\"]", 5, 20, "run.stages", "is listed twice"),
        ("[run]\ndevice = \"cuda\"", 5, 10, "run.device", "did you mean `cuda:0`?"),
        ("[run]\nname = \"a/b\"", 5, 8, "run.name", "contains a `/`"),
        ("[run]\nname = \"latest\"", 5, 8, "run.name", "newest run"),
        ("[run]\njobs = 4", 5, 1, "run.jobs", "reserved for a later version"),
        ("[job.search]\nwidth = 4", 4, 6, "job.search", "reserved for a later version"),
        ("[job.proposer]\nmodel = \"x\"", 4, 6, "job.proposer", "reserved for a later version"),
        ("holdout = 0.2", 4, 1, "job.holdout", "reserved for a later version"),
        ("[[replay]]\nname = \"r\"\nsteps = \"recorded\"", 4, 1, "replay", "the key `budget` is missing"),
        ("[[replay]]\nname = \"r\"\nbudget = \"1GiB\"", 4, 1, "replay", "the key `steps` is missing"),
        ("[[replay]]\nsteps = \"recorded\"\nbudget = \"1GiB\"", 4, 1, "replay", "the key `name` is missing"),
        (
            "[[replay]]\nname = \"r\"\nbudget = \"1GiB\"\nsteps = \"record\"",
            7,
            9,
            "replay.steps",
            "not a list of steps",
        ),
        ("[[replay]]\nname = \"r\"\nbudget = \"1GiB\"\nsteps = []", 7, 9, "replay.steps", "names no step"),
        (
            "[[replay]]\nname = \"r\"\nbudget = \"1GiB\"\nsteps = [[\"cap\"]]",
            7,
            10,
            "replay.steps",
            "a step: `[\"JOB\", \"ENTRY\"]`",
        ),
        (
            "[[replay]]\nname = \"r\"\nbudget = \"1GiB\"\nsteps = [[\"cpa\", \"e0\"]]",
            7,
            10,
            "replay.steps",
            "did you mean `cap`?",
        ),
        (
            "[[replay]]\nname = \"r\"\nbudget = \"1GiB\"\nsteps = [[\"cap\", \"nope\"]]",
            7,
            10,
            "replay.steps",
            "job `cap` has no entry `nope`",
        ),
        (
            "[[replay]]\nname = \"r\"\nbudget = 4\nsteps = \"recorded\"",
            6,
            10,
            "replay.budget",
            "found the integer 4",
        ),
        (
            "[[replay]]\nname = \"r\"\nbudget = \"1GiB\"\nsteps = \"recorded\"\nprefech = 1",
            8,
            1,
            "replay.prefech",
            "did you mean `prefetch`?",
        ),
        (
            "[[replay]]\nname = \"r\"\nbudget = \"1GiB\"\nsteps = \"recorded\"\ncandidates = \"winner\"",
            8,
            14,
            "replay.candidates",
            "did you mean `winners`?",
        ),
        (
            "[[replay]]\nname = \"r\"\nbudget = \"1GiB\"\nsteps = \"recorded\"\nprefetch = 65",
            8,
            12,
            "replay.prefetch",
            "from 0 to 64",
        ),
        (
            "[[replay]]\nname = \"a/b\"\nbudget = \"1GiB\"\nsteps = \"recorded\"",
            5,
            8,
            "replay.name",
            "contains a `/`",
        ),
        ("[sandbox]\nx = 1", 4, 2, "sandbox", "reserved for a later version"),
        ("[cache]", 4, 2, "cache", "reserved for a later version"),
        ("[[job]]\nname = \"second\"", 4, 1, "job", "the key `captures` is missing"),
        ("[[job]]\ncaptures = \"cap\"", 5, 12, "job.captures", "two jobs are named `cap`"),
        ("[[job]]\ncaptures = \"nowhere\"", 5, 12, "job.captures", "cannot find the folder"),
        ("[[job]]\ncaptures = \"k/naive.c\"", 5, 12, "job.captures", "is not a folder"),
        ("[[job]]\ncaptures = \"empty\"", 5, 12, "job.captures", "matches `*.pt`"),
        ("entries = [\"*.pt\", \"e[.pt\"]", 4, 20, "job.entries", "not a pattern"),
        ("entries = [\"*.pt\", \"e9*.pt\"]", 4, 20, "job.entries", "matches `e9*.pt`"),
        ("entries = [\"a/*.pt\"]", 4, 12, "job.entries", "contains a `/`"),
        ("profile = { cache_state = \"rotat\" }", 4, 27, "job.profile.cache_state", "did you mean `rotate`?"),
        ("dtypes = [\"float31\"]", 4, 11, "job.dtypes", "did you mean `float32`?"),
        ("params = [\"a\", \"a\"]", 4, 16, "job.params", "is listed twice"),
        ("params = [\"a\"]\ndefaults = { b = 1 }", 5, 14, "job.defaults.b", "not among `params`"),
        ("defaults = { b = [1, \"x\"] }", 4, 22, "job.defaults.b", "numbers only"),
        ("defaults = { b = { c = 1 } }", 4, 18, "job.defaults.b", "found a table"),
        ("candidates = [\"k/*.cc\"]", 4, 15, "job.candidates", "no file matches"),
        ("candidates = [\"nok/*.c\"]", 4, 15, "job.candidates", "cannot find the folder"),
        ("candidates = [\"k/nope.c\"]", 4, 15, "job.candidates", "cannot find the file"),
        ("candidates = \"k/*.c\"", 4, 14, "job.candidates", "write [\"k/*.c\"]"),
        (
            "candidates = [\"gpu/*\"]\n[run]\ndevice = \"cpu\"",
            4,
            15,
            "job.candidates",
            "`cuda` does not run on the CPU",
        ),
        ("candidates = [\"mixed/*\"]", 4, 15, "job.candidates", "such as `notes.md`"),
        (
            "candidates = [\"k/naive.c\", \"k2/*.c\"]",
            4,
            28,
            "job.candidates",
            "two candidates are named `naive.c`",
        ),
        ("baseline = \"k/fast.c\"", 4, 1, "", "this key appears twice"),
        ("[[job.candidate]]\nname = \"x\"", 4, 1, "job.candidate", "the key `sources` is missing"),
        ("[[job.candidate]]\nsources = []", 5, 11, "job.candidate.sources", "at least one source"),
        ("[[job.candidate]]\nsources = [\"k/q.c\"]", 5, 12, "job.candidate.sources", "cannot find the file"),
        ("[[job.candidate]]\nsources = [\"dir.c\"]", 5, 12, "job.candidate.sources", "is a folder"),
        (
            "[[job.candidate]]\nsources = [\"k/fast.c\", \"k/fast.c\"]",
            5,
            24,
            "job.candidate.sources",
            "again",
        ),
        (
            "[[job.candidate]]\nsources = [\"mixed/notes.md\"]",
            5,
            12,
            "job.candidate.sources",
            "is not clear from",
        ),
        (
            "[[job.candidate]]\nsources = [\"k/fast.c\", \"k/fast.cpp\"]",
            5,
            24,
            "job.candidate.sources",
            "two languages",
        ),
        (
            "[[job.candidate]]\nsources = [\"k/fast.c\"]\nlanguage = \"c++\"",
            6,
            12,
            "job.candidate.language",
            "`cpp`",
        ),
        (
            "[[job.candidate]]\nsources = [\"k/fast.c\"]\nsymbol = \"a-b\"",
            6,
            10,
            "job.candidate.symbol",
            "not a symbol",
        ),
        (
            "[[job.candidate]]\nsources = [\"k/fast.c\"]\nname = \" x\"",
            6,
            8,
            "job.candidate.name",
            "with a space",
        ),
        (
            "[[job.candidate]]\nsources = [\"k/fast.c\"]\nname = \"a\\u001b\"",
            6,
            8,
            "job.candidate.name",
            "unprintable",
        ),
        (
            "[[job.candidate]]\nsources = [\"k/fast.c\"]\nprofil = {}",
            6,
            1,
            "job.candidate.profil",
            "`profile`",
        ),
        (
            "[[job.candidate]]\nsources = [\"k/fast.c\"]\nlimits.open_files = 1",
            6,
            21,
            "job.candidate.limits.open_files",
            "16",
        ),
        ("x = [1, 2", 4, 10, "", "not TOML"),
        ("name = \"abc", 4, 12, "", "not TOML"),
        ("x == 1", 4, 4, "", "not TOML"),
        ("[x", 4, 3, "", "not TOML"),
    ];
    let folder = fixture_folder();
    let wrong: Vec<String> = below
        .iter()
        .filter_map(|(mistake, line, column, key, fragment)| {
            check(&format!("{JOB}{mistake}\n"), &[], (*line, *column, key, fragment), folder.path())
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let shown: String = below
        .iter()
        .map(|(mistake, ..)| {
            let found = errors(&format!("{JOB}{mistake}\n"), folder.path(), &[]);
            let messages: String = found.iter().map(|error| format!("    {error}\n")).collect();
            format!("{mistake}\n{}\n", messages.replace(&folder.path().display().to_string(), "/plans"))
        })
        .collect();
    snapshot::assert_snapshot(&snapshot::messages_folder(), &[("plan_mistakes", shown)]);
}

#[test]
fn mistakes_in_whole_plans_and_in_set_arguments_have_positions() {
    let folder = fixture_folder();
    let whole: &[(&str, usize, usize, &str, &str)] = &[
        ("", 1, 1, "", "the plan has no job"),
        ("job = []\n", 1, 1, "", "the plan has no job"),
        ("job = 3\n", 1, 7, "job", "write `[[job]]`"),
        ("[job]\ncaptures = \"cap\"\n", 1, 1, "job", "write `[[job]]`"),
        (
            "[[job]]\ncaptures = \"cap\"\nbaseline = \"naiv\"\ncandidates = [\"k/n*.c\"]\n",
            3,
            12,
            "job.baseline",
            "`naive`?",
        ),
        (
            "[[job]]\ncaptures = \"cap\"\nbaseline = \"mixed/notes.md\"\n",
            3,
            12,
            "job.baseline",
            "is not clear from",
        ),
    ];
    for (text, line, column, key, fragment) in whole {
        assert_eq!(check(text, &[], (*line, *column, key, fragment), folder.path()), None);
    }
    for (set, column, key, fragment) in [
        ("verify.repeats=1", 16, "verify.repeats", "from 2 to 1000"),
        ("verify.repeat=3", 8, "verify.repeat", "did you mean `repeats`?"),
        ("verify.repeats", 1, "", "expected KEY=VALUE"),
        ("job.name=x", 1, "job", "unknown key at the top"),
        ("verify.tolerance=loose", 18, "verify.tolerance", "is not a valid value"),
    ] {
        assert_eq!(check(JOB, &[set], (1, column, key, fragment), folder.path()), None);
        let found = errors(JOB, folder.path(), &[set]);
        assert_eq!(found[0].file, format!("--set {set}"));
    }
}

/// The line, the column, the key, and a part of the message.
type Expected<'e> = (usize, usize, &'e str, &'e str);

/// Compares the errors of a plan with one expected error. Returns a description if they differ.
fn check(
    text: &str,
    set: &[&str],
    (line, column, key, fragment): Expected<'_>,
    folder: &Path,
) -> Option<String> {
    let found = errors(text, folder, set);
    let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
    let as_expected = found.len() == 1
        && (found[0].line, found[0].column, found[0].key.as_str()) == (line, column, key)
        && shown[0].contains(fragment);
    (!as_expected)
        .then(|| format!("{text}{set:?}\nwants {line}:{column} `{key}` `{fragment}`\ngets  {shown:#?}\n"))
}

#[test]
fn all_mistakes_are_reported_in_order_of_position() {
    let folder = fixture_folder();
    let text = "\
[run]
verifiers = 0
devise = \"cpu\"

[[job]]
captures = \"nowhere\"
verify = { repeats = 1, tolerance = \"x\" }

[memory]
swap = 3

[[job]]
captures = \"cap\"
candidates = [\"k/*.cc\", \"q/*.c\"]

[[job.candidate]]
sources = [\"k/none.c\"]
";
    let found = errors(text, folder.path(), &["verify.seed=x"]);
    let positions: Vec<(usize, &str)> = found.iter().map(|error| (error.line, error.key.as_str())).collect();
    let expected = [
        (2, "run.verifiers"),
        (3, "run.devise"),
        (6, "job.captures"),
        (7, "job.verify.repeats"),
        (7, "job.verify.tolerance"),
        (10, "memory.swap"),
        (14, "job.candidates"),
        (14, "job.candidates"),
        (17, "job.candidate.sources"),
        (1, "verify.seed"),
    ];
    assert_eq!(positions, expected);
}

/// A mistake in a job does not hide mistakes of replays. A replay's reference to that job is not reported as well.
#[test]
fn mistakes_of_replays_are_reported_beside_those_of_jobs() {
    let folder = fixture_folder();
    let replay = "[[replay]]\nname = \"r\"\nbudget = \"1GiB\"\nsteps = [[\"cap\", \"entry_000009\"], [\"bad\", \"entry_000000\"], [\"capp\", \"e\"]]\n";
    let position_of = |error: &PlanError| (error.line, error.key.clone());
    let positions = |job: &str| {
        let found = errors(&format!("{JOB}{job}{replay}"), folder.path(), &[]);
        found.iter().map(position_of).collect::<Vec<_>>()
    };
    let at = |line: usize, key: &str| (line, key.to_owned());
    // The job with the mistake has a name, so a reference to an unknown job is still reported.
    let named = positions("[[job]]\nname = \"bad\"\ncaptures = \"nowhere\"\n");
    assert_eq!(named, [at(6, "job.captures"), at(10, "replay.steps"), at(10, "replay.steps")]);
    // Without a name, the job with the mistake could be any job that a step refers to.
    let nameless = positions("[[job]]\nparams = [\"a\"]\n");
    assert_eq!(nameless, [at(4, "job"), at(9, "replay.steps")]);
    // The only job, whose entries are replayed, has a mistake.
    let recorded = "[[job]]\ncaptures = \"nowhere\"\n[[replay]]\nname = \"r\"\nbudget = \"1GiB\"\nsteps = \"recorded\"\n";
    let found: Vec<_> = errors(recorded, folder.path(), &[]).iter().map(position_of).collect();
    assert_eq!(found, [at(2, "job.captures")]);
}

#[test]
fn render_marks_mistakes_in_their_lines() {
    let folder = fixture_folder();
    let text = format!("{JOB}[verify]\nrepeat = 3\nseed = -1 # süß\n");
    let errors = Plan::parse(&text, &folder.path().join("plan.toml"), &[]).unwrap_err();
    let plain = errors.render(false);
    assert!(plain.contains("5 | repeat = 3\n  | ^^^^^^"), "{plain}");
    assert!(
        plain.contains("6 | seed = -1 # süß\n  |        ^^ expected a whole number, 0 or more"),
        "{plain}"
    );
    assert!(plain.contains("plan.toml:5:1"), "{plain}");
    assert!(plain.contains("help: did you mean `repeats`?"), "{plain}");
    assert!(!plain.contains('\u{1b}'), "{plain}");
    assert!(errors.render(true).contains('\u{1b}'));
    assert_eq!(errors.to_string(), plain);
}

#[test]
fn render_omits_control_characters() {
    let folder = fixture_folder();
    for mistake in [
        "x = \"\u{202e}abc\"",
        "\"\\u001b[2J\" = 1",
        "[verify]\ntolerance = \"\\u001b[2J\"",
        "name = \"\u{1b}\"",
    ] {
        let errors =
            Plan::parse(&format!("{JOB}{mistake}\n"), &folder.path().join("plan.toml"), &[]).unwrap_err();
        let drawn = errors.render(false);
        assert!(!drawn.contains(['\u{1b}', '\u{202e}']), "{drawn:?}");
    }
}

#[test]
fn load_refuses_files_that_are_not_plans() {
    let folder = fixture_folder();
    let path = folder.path().join("big.toml");
    std::fs::write(&path, vec![b'#'; (1 << 20) + 1]).unwrap();
    let latin = folder.path().join("latin.toml");
    std::fs::write(&latin, b"[run]\nname = \"\xe9\"\n").unwrap();
    for (path, fragment) in [
        (path, "larger than 1 MiB"),
        (latin, "not valid UTF-8 (line 2)"),
        (folder.path().to_owned(), "it is a folder"),
        (folder.path().join("nowhere.toml"), "cannot read the plan"),
    ] {
        let errors = Plan::load(&path, &[]).unwrap_err();
        assert_eq!(errors.errors.len(), 1);
        assert!(errors.render(false).contains(fragment), "{}", errors.render(false));
    }
}

#[test]
fn only_the_first_100_of_many_mistakes_are_shown() {
    let folder = fixture_folder();
    let mut text = JOB.to_owned();
    for number in 0..50_000 {
        text.push_str(&format!("x{number} = 1\n"));
    }
    let errors = Plan::parse(&text, &folder.path().join("plan.toml"), &[]).unwrap_err();
    assert_eq!(errors.errors.len(), 50_000);
    assert!(errors.render(false).ends_with("… and 49900 more mistakes\n"));
    let text = JOB.to_owned() + &(0..101).map(|number| format!("x{number} = 1\n")).collect::<String>();
    let errors = Plan::parse(&text, &folder.path().join("plan.toml"), &[]).unwrap_err();
    assert!(errors.render(false).ends_with("… and 1 more mistake\n"));
}

#[test]
fn more_than_1000_jobs_are_refused() {
    let folder = fixture_folder();
    let jobs = "[[job]]\ncaptures = \"cap\"\n".repeat(1001);
    let errors = Plan::parse(&jobs, &folder.path().join("plan.toml"), &[]).unwrap_err();
    assert!(errors.errors[0].to_string().contains("1000 at most"), "{errors}");
}
