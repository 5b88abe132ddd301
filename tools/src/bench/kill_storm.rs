//! A long test of law 8: in each of many runs, one process is killed at a random moment. Every run must end with the
//! right verdicts and leave nothing behind.
//!
//! The integration test `storm` does the same with the same fixture, in fewer runs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use opt_shared::units::to_index;
use opt_tests::storm::{Chance, Fixture, VICTIMS};

use super::product::binary;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[arg(long, default_value_t = 100)]
    runs: u32,
    /// Kill the supervisor as well, and resume
    #[arg(long)]
    supervisor: bool,
}

#[derive(Default)]
struct Total {
    runs: u32,
    hits: u32,
    retried: usize,
    troubles: u32,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let mut chance = Chance::from_clock();
    let mut span = measure().map_err(|trouble| anyhow!(trouble))?;
    let mut totals: BTreeMap<&str, Total> = BTreeMap::new();
    let victims: Vec<&str> =
        VICTIMS.into_iter().chain(arguments.supervisor.then_some("supervisor")).collect();
    println!("| run | victim | killed | at | attempts repeated | outcome |");
    println!("|---|---|---|---|---|---|");
    for number in 1..=arguments.runs {
        let victim = victims[to_index(chance.below(victims.len() as u64)) % victims.len()];
        let moment = chance.moment(span);
        let fixture = new_fixture()?;
        let outcome = one(&fixture, victim, moment, &mut chance);
        let total = totals.entry(victim).or_default();
        total.runs += 1;
        match outcome {
            Ok((who, retried)) => {
                total.hits += u32::from(who.is_some());
                total.retried += retried;
                if who.is_none() {
                    // The run had already ended, because it was faster than the measured one.
                    span = span.mul_f64(0.95);
                }
                let who = who.unwrap_or_else(|| "none: too late".to_owned());
                println!("| {number} | {victim} | {who} | {moment:.2?} | {retried} | right |");
            }
            Err(trouble) => {
                total.troubles += 1;
                println!("| {number} | {victim} | ? | {moment:.2?} | ? | WRONG |");
                eprintln!("run {number}, {victim} at {moment:?}:\n{trouble}");
            }
        }
    }
    println!("\n| victim | runs | killed | attempts repeated | wrong or left over |\n|---|---|---|---|---|");
    for (victim, total) in &totals {
        println!("| {victim} | {} | {} | {} | {} |", total.runs, total.hits, total.retried, total.troubles);
    }
    Ok(totals.values().all(|total| total.troubles == 0))
}

fn new_fixture() -> Result<Fixture> {
    Fixture::create(binary("opt-supervisor")?).map_err(|trouble| anyhow!(trouble))
}

/// Measures how long a run takes on this machine.
fn measure() -> Result<Duration, String> {
    let fixture = new_fixture().map_err(|error| error.to_string())?;
    let started = Instant::now();
    fixture.run_to(fixture.start(&[])?, 0)?;
    fixture.verdicts_are_right()?;
    Ok(started.elapsed())
}

/// Makes one run. Returns which process was killed, and how many attempts were repeated.
fn one(
    fixture: &Fixture,
    victim: &str,
    moment: Duration,
    chance: &mut Chance,
) -> Result<(Option<String>, usize), String> {
    let who = if victim == "supervisor" {
        let mut child = fixture.start(&[])?;
        std::thread::sleep(moment);
        let alive = matches!(child.try_wait(), Ok(None));
        child.kill().map_err(|error| error.to_string())?;
        fixture.end(&mut child)?;
        fixture.run_to(fixture.resume()?, 0)?;
        alive.then(|| format!("pid {}, then resumed", child.id()))
    } else {
        let killed = fixture.kill_during_a_run(victim, moment, chance)?;
        killed.map(|it| {
            let what = it.arguments.iter().find(|it| it.starts_with("__")).or(it.arguments.first());
            format!("pid {} ({})", it.pid, what.map_or("", |it| it.rsplit('/').next().unwrap_or(it)))
        })
    };
    fixture.no_process_is_left()?;
    fixture.no_file_is_left()?;
    fixture.verdicts_are_right()?;
    Ok((who, fixture.retried()?))
}
