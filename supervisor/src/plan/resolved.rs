//! Prints a resolved plan as TOML. `check` shows this text, and `--resume` compares it with the text that the run
//! stored.
//!
//! The text reads back as the same plan. Its top-level tables contain every setting. Jobs and candidates contain only
//! the settings that differ from the level above. Each file that a pattern matched is printed as a separate candidate.

use std::fmt::Write;

use opt_shared::language::Language;

use super::codec::{Codec, NonEmptyText, Word};
use super::job::Plain;
use super::launch::print_launch;
use super::layers::Settings;
use super::lists::List;
use super::print::{braces, key, string};
use super::replay::print_replay;
use super::schema::{
    BuildLayer, DTypeName, LimitLayer, MemoryLayer, ProfileLayer, RecycleLayer, RunLayer, Section,
    VerifyLayer,
};
use super::{CandidatePlan, JobPlan, Plan};

pub fn resolved_toml(plan: &Plan) -> String {
    let mut text = String::new();
    table("", RunLayer::TABLE, RunLayer::print(&plan.run), &mut text);
    table("", MemoryLayer::TABLE, MemoryLayer::print(&plan.memory), &mut text);
    table("", RecycleLayer::TABLE, RecycleLayer::print(&plan.settings.recycle), &mut text);
    table("", BuildLayer::TABLE, BuildLayer::print(&plan.settings.build), &mut text);
    table("", VerifyLayer::TABLE, VerifyLayer::print(&plan.settings.verify), &mut text);
    table("", ProfileLayer::TABLE, ProfileLayer::print(&plan.settings.profile), &mut text);
    table("", LimitLayer::TABLE, LimitLayer::print(&plan.settings.limits), &mut text);
    for job in &plan.jobs {
        print_job(job, &plan.settings, &mut text);
    }
    for replay in &plan.replays {
        text.push_str("[[replay]]\n");
        for (key, value) in print_replay(replay, &plan.jobs) {
            line(key, &value, &mut text);
        }
        text.push('\n');
    }
    text
}

fn print_job(job: &JobPlan, above: &Settings, text: &mut String) {
    text.push_str("[[job]]\n");
    line("name", &string(&job.name), text);
    line("captures", &string(&job.captures.to_string_lossy()), text);
    line("entries", &List::<NonEmptyText>::print(&job.entries), text);
    if let Some(dtypes) = &job.dtypes {
        line("dtypes", &List::<DTypeName>::print(dtypes), text);
    }
    if let Some(params) = &job.params {
        line("params", &List::<NonEmptyText>::print(params), text);
    }
    if !job.defaults.is_empty() {
        let pairs: Vec<String> = job
            .defaults
            .iter()
            .map(|(name, value)| format!("{} = {}", key(name), Plain::print(value)))
            .collect();
        line("defaults", &braces(&pairs), text);
    }
    if !job.constant.is_empty() {
        line("constant", &List::<NonEmptyText>::print(&job.constant), text);
    }
    line("partial", &job.partial.to_string(), text);
    let baseline = job.candidates.iter().find(|candidate| Some(candidate.id) == job.baseline);
    if let Some(baseline) = baseline {
        line("baseline", &string(&baseline.name), text);
    }
    text.push('\n');
    let job_settings = Settings {
        recycle: job.recycle.clone(),
        build: job.build.clone(),
        verify: job.verify.clone(),
        profile: job.profile.clone(),
        limits: job.limits.clone(),
    };
    print_differences("job.", above, &job_settings, text);
    for candidate in &job.candidates {
        print_candidate(candidate, job.partial, &job_settings, text);
    }
}

fn print_candidate(candidate: &CandidatePlan, partial: bool, above: &Settings, text: &mut String) {
    text.push_str("[[job.candidate]]\n");
    line("name", &string(&candidate.name), text);
    let sources: Vec<String> =
        candidate.source.sources.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    if !sources.is_empty() {
        line("sources", &List::<NonEmptyText>::print(&sources), text);
    }
    let suffixes_name_the_language = candidate
        .source
        .sources
        .iter()
        .all(|path| Language::of_path(path) == Some(candidate.source.language));
    if !suffixes_name_the_language || sources.is_empty() {
        line("language", &Word::print(&candidate.source.language), text);
    }
    line("symbol", &string(&candidate.source.symbol), text);
    if candidate.partial != partial {
        line("partial", &candidate.partial.to_string(), text);
    }
    text.push('\n');
    let candidate_settings = Settings {
        recycle: candidate.recycle.clone(),
        build: candidate.build.clone(),
        verify: candidate.verify.clone(),
        profile: candidate.profile.clone(),
        limits: candidate.limits.clone(),
    };
    print_differences("job.candidate.", above, &candidate_settings, text);
    for (header, lines) in print_launch(&candidate.launch) {
        let _ = writeln!(text, "{header}");
        for (key, value) in lines {
            line(key, &value, text);
        }
        text.push('\n');
    }
}

fn print_differences(prefix: &str, above: &Settings, own: &Settings, text: &mut String) {
    table(prefix, RecycleLayer::TABLE, RecycleLayer::difference(&above.recycle, &own.recycle), text);
    table(prefix, BuildLayer::TABLE, BuildLayer::difference(&above.build, &own.build), text);
    table(prefix, VerifyLayer::TABLE, VerifyLayer::difference(&above.verify, &own.verify), text);
    table(prefix, ProfileLayer::TABLE, ProfileLayer::difference(&above.profile, &own.profile), text);
    table(prefix, LimitLayer::TABLE, LimitLayer::difference(&above.limits, &own.limits), text);
}

fn table(prefix: &str, name: &str, lines: Vec<(&'static str, String)>, text: &mut String) {
    if lines.is_empty() {
        return;
    }
    // Writing to a string cannot fail.
    let _ = writeln!(text, "[{prefix}{name}]");
    for (key, value) in lines {
        line(key, &value, text);
    }
    text.push('\n');
}

fn line(key: &str, value: &str, text: &mut String) {
    let _ = writeln!(text, "{key} = {value}");
}
