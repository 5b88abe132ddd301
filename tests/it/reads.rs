//! Tests how much a verification reads of captures that are not in the page cache. For a sparse kernel, this is little
//! more than the rows that the kernel touches, and for a dense kernel, it is everything. Verification and timing must
//! leave no pages in the cache.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use opt_shared::cache::cached_pages;
use opt_tests::users::{User, users};
use opt_tests::{Scenario, Summary, binary, repository, summary::list};
use rustix::fs::{Advice, fadvise};

use crate::report::browser::skipped;

/// Generates captures of lookups in two tables, of about 142 MB and 25 MB.
fn captures(scenario: &Scenario) -> Vec<PathBuf> {
    let program = binary().with_file_name("gen-captures");
    assert!(
        program.is_file(),
        "{} is missing: build it first (`cargo build --workspace`)",
        program.display()
    );
    let folder = scenario.path().join("captures");
    let output = Command::new(program)
        .args(["embedding", "--entries", "2", "--total", "160MiB", "--out"])
        .arg(&folder)
        .output()
        .expect("gen-captures starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let entries = std::fs::read_dir(folder).expect("captures").map(|entry| entry.expect("readable").path());
    entries.collect()
}

/// Drops the files from the page cache and returns the number of pages that are still cached. Returns `None` if Linux
/// does not report this number or keeps the pages.
fn drop_from_cache(files: &[PathBuf]) -> Option<u64> {
    for file in files {
        let file = File::open(file).expect("a capture");
        file.sync_all().expect("on disk");
        fadvise(&file, 0, None, Advice::DontNeed).expect("advised");
    }
    cached(files).filter(|pages| *pages <= 16)
}

fn cached(files: &[PathBuf]) -> Option<u64> {
    files.iter().map(|file| cached_pages(File::open(file).expect("a capture").as_fd())).sum()
}

fn plan(ceiling: &str, root: &Path) -> String {
    let root = root.display();
    format!(
        "[run]\nname = \"plan\"\n[profile]\nentry_timeout = \"1s\"\n[memory]\nhost_ceiling = \"{ceiling}\"\n\
         [build]\nmemory = \"256MiB\"\n[limits]\nmemory = \"96MiB\"\n[[job]]\nname = \"reads\"\ncaptures = 'captures'\n\
         baseline = '{root}/sparse.c'\ncandidates = ['{root}/dense.c']\n"
    )
}

fn reads(user: User) {
    let scenario = Scenario::create();
    let files = captures(&scenario);
    for (name, from) in
        [("sparse.c", "configs/demo/embedding/fast.c"), ("dense.c", "tools/src/bench/reads/dense.c")]
    {
        scenario.write(name, std::fs::read(repository().join(from)).expect("a kernel"));
    }
    // Pages that were read are dropped, because the captures are larger than a quarter of the ceiling.
    scenario.write("plan.toml", plan("512MiB", scenario.path()));
    let program = user.program(&scenario);
    user.take_ownership(&scenario);
    let Some(before) = drop_from_cache(&files) else {
        skipped(
            "the page cache was not examined: this Linux does not report what is cached, or does not drop it",
        );
        return;
    };
    let mut command = scenario.command_of(&program, &["run", "plan.toml"]);
    user.apply_to(&mut command);
    let outcome = scenario.finish(command.spawn().expect("started"), &["run", "plan.toml"]).expect_exit(0);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    for candidate in list(&summary.job("reads")["candidates"]) {
        outcome.expect_equal(candidate["status"].as_str(), Some("PASSED"), "its outputs are right");
        let reads = &candidate["profile"]["reads"];
        let bytes = |name: &str| {
            reads[name].as_u64().unwrap_or_else(|| outcome.fail(format_args!("no {name}: {reads}")))
        };
        outcome.expect(
            bytes("cached_after_bytes") <= bytes("cached_before_bytes"),
            format_args!("timing leaves no pages in the cache: {reads}"),
        );
    }
    let rows = summary.policy("read_ahead");
    outcome.expect_equal(rows.len(), 2, "rows, one for each verification");
    let number = |row: usize, name: &str| {
        let number = rows[row]["numbers"][name].as_u64();
        number.unwrap_or_else(|| outcome.fail(format_args!("{} has no {name}", rows[row])))
    };
    outcome.expect_equal(number(0, "page_by_page"), 2, "both tables were cold");
    outcome.expect_equal(number(0, "turned"), 0, "scattered rows do not cause a table to be read whole");
    outcome.expect(
        (1..4 << 20).contains(&number(0, "ahead_bytes")),
        format_args!("what is read fits 81 rows: {}", rows[0]),
    );
    // Pages at the edges of the tables are not watched.
    outcome.expect(
        number(0, "touched_bytes") <= 64 << 10,
        format_args!("the rows that the indices name were read before the kernel: {}", rows[0]),
    );
    outcome.expect_equal(number(1, "turned"), 2, "tables read whole");
    outcome.expect(0 < number(1, "ahead_bytes"), format_args!("the tables were read ahead: {}", rows[1]));
    for (index, row) in rows.iter().enumerate() {
        outcome.expect(
            number(index, "cached_after_bytes") <= number(index, "cached_before_bytes"),
            format_args!("verification leaves no pages in the cache: {row}"),
        );
    }
    let after = cached(&files).unwrap_or_default();
    // Checking the plan has read the headers, whose pages may stay in the cache.
    outcome.expect(after <= before + 512, format_args!("{after} pages after {before}"));
}

#[test]
fn run_reads_what_is_used_and_leaves_the_cache_unchanged() {
    for user in users() {
        reads(user);
    }
}

/// The data of a store's entries are in blobs, and entries may share a blob. After timing has read the blobs, their
/// pages must be dropped too.
#[test]
fn profile_from_a_store_leaves_the_cache_unchanged() {
    let scenario = Scenario::create();
    captures(&scenario);
    scenario.run(&["captures", "pack", "captures", "packed"]).expect_exit(0);
    for (name, from) in
        [("sparse.c", "configs/demo/embedding/fast.c"), ("dense.c", "tools/src/bench/reads/dense.c")]
    {
        scenario.write(name, std::fs::read(repository().join(from)).expect("a kernel"));
    }
    // The run reads the recorded outputs before timing, because the tolerances depend on them.
    let plan = plan("512MiB", scenario.path()).replace("captures = 'captures'", "captures = 'packed'");
    scenario.write("plan.toml", plan + "verify = { tolerance = \"gpu\" }\n");
    let folders = std::fs::read_dir(scenario.path().join("packed/blobs")).expect("a store");
    let blobs: Vec<PathBuf> = folders
        .flat_map(|folder| std::fs::read_dir(folder.expect("a folder").path()).expect("readable"))
        .map(|blob| blob.expect("a blob").path())
        .collect();
    let Some(before) = drop_from_cache(&blobs) else {
        skipped(
            "the page cache was not examined: this Linux does not report what is cached, or does not drop it",
        );
        return;
    };
    let (outcome, summary) = scenario.run_plan(0, &[]);
    for candidate in list(&summary.job("reads")["candidates"]) {
        outcome.expect_equal(candidate["status"].as_str(), Some("PASSED"), "its outputs are right");
    }
    let after = cached(&blobs).unwrap_or_default();
    outcome.expect(after <= before + 16, format_args!("{after} pages after {before}"));
}
