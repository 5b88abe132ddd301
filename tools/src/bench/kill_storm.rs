//! A long test of law 8 of ARCHITECTURE.md: in each of many runs, up to three strikes occur at random moments. They
//! kill processes, ask them to end, replace workers, or cancel candidates. Every run must end with the right verdicts
//! and leave nothing behind.
//!
//! The integration tests use the same fixture. They kill single processes, and make fewer runs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use opt_tests::storm::{Chance, Fixture, Strike, draw};

use super::product::binary;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many runs to make
    #[arg(long, default_value_t = 100)]
    runs: u32,
    /// The seed of the strikes and their moments; without it, one is drawn from the clock
    #[arg(long)]
    seed: Option<u64>,
    /// The number of the first run, to repeat a run of an earlier storm with its seed
    #[arg(long, default_value_t = 1)]
    first: u32,
}

#[derive(Default)]
struct Total {
    drawn: u32,
    took_effect: u32,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let seed = arguments.seed.unwrap_or_else(|| Chance::from_clock().0);
    let span = measure().map_err(|trouble| anyhow!(trouble))?;
    println!("Seed {seed}. A run without strikes takes {span:.2?}.\n");
    println!("| run | strikes | attempts repeated | without verdict | outcome |\n|---|---|---|---|---|");
    let mut totals: BTreeMap<Strike, Total> = BTreeMap::new();
    let (mut all_repeated, mut without_verdict, mut wrong) = (0, 0, 0_u32);
    for number in (arguments.first..).take(usize::try_from(arguments.runs)?) {
        // Each run has its own seed, so that it can be repeated alone.
        let mut chance = Chance(seed ^ u64::from(number).rotate_left(32));
        let strikes = draw(&mut chance, span);
        let fixture = new_fixture()?;
        let text: Vec<String> =
            strikes.iter().map(|(moment, strike)| format!("{strike} at {moment:.2?}")).collect();
        let text = text.join(", ");
        for (_, strike) in &strikes {
            totals.entry(*strike).or_default().drawn += 1;
        }
        match fixture.run_through(&strikes, &mut chance) {
            Ok(struck) => {
                for strike in &struck.strikes {
                    totals.entry(*strike).or_default().took_effect += 1;
                }
                let repeated = fixture.repeated_attempts().map_err(|trouble| anyhow!(trouble))?;
                all_repeated += repeated;
                let without = struck.without_verdict;
                without_verdict += without.len();
                println!("| {number} | {text} | {repeated} | {} | right |", without.len());
                for candidate in without {
                    eprintln!("run {number}: no verdict for {candidate}");
                }
            }
            Err(trouble) => {
                wrong += 1;
                println!("| {number} | {text} | ? | ? | WRONG |");
                eprintln!(
                    "run {number}, {text} (repeat it with --seed {seed} --first {number} --runs 1):\n{trouble}"
                );
            }
        }
    }
    println!("\n| strike | drawn | took effect |\n|---|---|---|");
    for (strike, total) in &totals {
        println!("| {strike} | {} | {} |", total.drawn, total.took_effect);
    }
    println!(
        "\n{} runs: {wrong} with a wrong end or with processes or files left over, {without_verdict} candidates \
         without a verdict after the run's own second pass, {all_repeated} attempts repeated.",
        arguments.runs
    );
    Ok(wrong == 0)
}

fn new_fixture() -> Result<Fixture> {
    Fixture::create(binary("opt-supervisor")?).map_err(|trouble| anyhow!(trouble))
}

fn measure() -> Result<Duration, String> {
    let fixture = new_fixture().map_err(|error| error.to_string())?;
    let started = Instant::now();
    fixture.run_to(fixture.start(&[])?, 0)?;
    fixture.verdicts_are_right()?;
    Ok(started.elapsed())
}
