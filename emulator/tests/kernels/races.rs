//! Runs kernels with races in shared memory. Each race must be reported with the lines of both accesses. Also runs
//! kernels that share memory in unusual but correct ways, which must not be reported.

use std::time::Duration;

use opt_emulator::{Config, Device, Fault, FaultKind, Launch, Limit};

use crate::kit::{Arg, Bench, Format};

const TEXT: &str = include_str!("../data/kernels/races.ptx");
const SOURCE: &str = include_str!("../data/kernels/races.cu");
const ORDERED: &str = include_str!("../data/kernels/ordered.ptx");

/// The number of threads of a kernel's block.
fn threads(name: &str) -> u32 {
    match name {
        "fragment_without_syncwarp" | "shuffle_instead_of_barrier" | "vote_instead_of_barrier" => 32,
        "syncwarp_of_half_a_warp" | "halves_of_a_warp" => 32,
        "barriers_chained" => 96,
        "named_barriers_of_other_warps" => 128,
        _ => 64,
    }
}

fn run(name: &str, host_threads: usize) -> Result<(), Fault> {
    let config = Config { memory: 1 << 20, threads: host_threads, ..Config::default() };
    let mut device = Device::new(config);
    let (x, y) = (device.alloc(4096).expect("memory"), device.alloc(4096).expect("memory"));
    let numbers: Vec<u8> = (0..1024_i32).flat_map(|i| (i * 7 % 61).to_le_bytes()).collect();
    device.write(x, &numbers).expect("a live buffer");
    let module = device.load(TEXT).unwrap_or_else(|error| panic!("{error}"));
    let function = module.function(name).unwrap_or_else(|| panic!("there is no kernel `{name}`"));
    let params = vec![x.to_le_bytes().to_vec(), y.to_le_bytes().to_vec()];
    let limit = Limit { steps: 1_000_000, time: Duration::from_secs(60) };
    let launch = Launch { grid: [3, 1, 1], block: [threads(name), 1, 1], shared_bytes: 0, params, limit };
    device.launch(&function, &launch).map(|_| ())
}

/// The source lines of the earlier and of the later access of each race, according to the comments in the source.
fn planted() -> Vec<(String, [usize; 2])> {
    let mut all: Vec<(String, [usize; 2])> = Vec::new();
    for (index, line) in SOURCE.lines().enumerate() {
        let Some((_, mark)) = line.split_once("// ") else { continue };
        let Some((which, name)) = mark.split_once(": ") else { continue };
        // The copies are in a function that is inlined.
        let (name, at) = match name.strip_suffix(", in copy_word") {
            Some(name) => {
                (name, SOURCE.lines().position(|line| line.contains("cp.async.ca")).expect("a copy"))
            }
            None => (name, index),
        };
        let known = match all.iter().position(|(known, _)| known == name) {
            Some(known) => known,
            None => {
                all.push((name.to_owned(), [0; 2]));
                all.len() - 1
            }
        };
        match which {
            "first" => all[known].1[0] = at + 1,
            "second" => all[known].1[1] = at + 1,
            "both" => all[known].1 = [at + 1; 2],
            _ => panic!("{line}"),
        }
    }
    all
}

#[test]
fn races_in_shared_memory_are_reported_with_both_lines() {
    let planted = planted();
    assert!(20 <= planted.len(), "{}", planted.len());
    let mut wrong = Vec::new();
    for (name, lines) in &planted {
        let Err(fault) = run(name, 2) else {
            wrong.push(format!("{name}: no race was found"));
            continue;
        };
        let FaultKind::Race { other, .. } = &fault.kind else {
            wrong.push(format!("{name}: {fault}"));
            continue;
        };
        let site = fault.site.as_ref().unwrap_or_else(|| panic!("{name}: {fault}"));
        let found =
            [&other.site, site].map(|site| site.source.as_ref().map_or(0, |source| source.line as usize));
        if found != *lines || fault.code() != 719 || other.site.thread == site.thread {
            wrong.push(format!("{name}: planted in lines {lines:?}: {fault}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn races_are_not_reported_when_the_race_detector_is_off() {
    let mut device = Device::new(Config { memory: 1 << 20, check_races: false, ..Config::default() });
    let (x, y) = (device.alloc(4096).expect("memory"), device.alloc(4096).expect("memory"));
    device.fill(x, 1, 4096).expect("a live buffer");
    let module = device.load(TEXT).expect("a module");
    let function = module.function("counted_without_atomics").expect("a kernel");
    let params = vec![x.to_le_bytes().to_vec(), y.to_le_bytes().to_vec()];
    let launch = Launch { grid: [1; 3], block: [64, 1, 1], shared_bytes: 0, params, limit: Limit::default() };
    device.launch(&function, &launch).expect("a launch");
}

#[test]
fn race_message_names_both_accesses() {
    let text = run("no_barrier_after_store", 1).expect_err("a race").to_string();
    assert!(
        text.starts_with("race: write of 4 bytes at 0x80 in shared memory, and an earlier read"),
        "{text}"
    );
    assert!(text.contains("by thread (31, 0, 0) at PTX line "), "{text}");
    assert!(
        text.contains(", races.cu:15; no barrier or fence orders them (`no_barrier_after_store`"),
        "{text}"
    );
}

#[test]
fn ordered_accesses_are_not_reported_as_races() {
    let names: Vec<&str> = ORDERED
        .lines()
        .filter_map(|line| line.strip_prefix(".visible .entry ").map(|rest| rest.trim_end_matches('(')))
        .collect();
    assert!(10 <= names.len(), "{names:?}");
    let numbers: Vec<f64> = (0..1024).map(|i| f64::from(i * 7 % 61)).collect();
    for name in names {
        let mut bench = Bench::new(ORDERED);
        let (x, y) = (bench.put(&numbers, Format::I32), bench.output(1024, Format::I32));
        bench.run(name, [3, 1, 1], [threads(name), 1, 1], 0, &[Arg::Address(x), Arg::Address(y)]);
    }
}
