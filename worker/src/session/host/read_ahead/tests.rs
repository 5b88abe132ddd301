//! Tests with inputs that are not in the cache, and candidates that read parts of them or all of them.

use std::io::Write;
use std::os::fd::AsFd;

use opt_shared::cache::cached_pages;
use opt_shared::units::{Bytes, to_index};

use super::*;
use crate::runner::map::{Mapped, map_input};

const SIZE: usize = 96 << 20;
const TIMEOUT: Duration = Duration::from_mins(1);
/// The offset of the input. Like most records of a capture, it does not start at a page boundary.
const START: u64 = 4 * 4096 + 64;

/// Creates a file that is not in the cache; `None` if the file system keeps everything in memory, or ignores requests
/// to drop pages.
fn cold() -> Option<(Arc<File>, InputRange)> {
    let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).expect("a file");
    for chunk in 0..SIZE >> 20 {
        file.write_all(&vec![chunk.to_le_bytes()[0] + 1; 1 << 20]).expect("written");
    }
    file.sync_all().expect("on disk");
    fadvise(&file, 0, None, Advice::DontNeed).expect("advised");
    if cached_pages(file.as_fd()).is_some_and(|pages| pages != 0) {
        println!("skipped: this file system keeps its pages");
        return None;
    }
    let bytes = SIZE as u64 - START - 100;
    Some((Arc::new(file), InputRange { source: 0, file_offset: START, bytes, address_phase: 0 }))
}

fn mapped(file: &File, range: &InputRange, page_by_page: bool) -> Mapped {
    let mapped = map_input(file, range).expect("mapped");
    if page_by_page {
        mapped.without_read_ahead();
    }
    mapped
}

fn byte(mapped: &Mapped, at: usize) -> u8 {
    // SAFETY: within the input, which stays mapped for the life of the process.
    unsafe { mapped.data.add(at).read_volatile() }
}

fn expected_byte(at: usize) -> u8 {
    ((at + to_index(START)) >> 20).to_le_bytes()[0] + 1
}

fn watch(file: &Arc<File>, range: &InputRange, query: CacheQuery) -> Option<(Watch, Mapped)> {
    let ahead = ReadAhead::over(std::iter::once((0, file, range)), &[query]);
    if !ahead.page_by_page() {
        println!("skipped: {query:?} does not work on this machine");
        return None;
    }
    ahead.read_exactly();
    let mapped = mapped(file, range, true);
    Some((ahead.start(), mapped))
}

#[test]
fn sparse_candidate_reads_little_more_than_it_touches() {
    for query in [CacheQuery::CacheStat, CacheQuery::MinCore] {
        let Some((file, range)) = cold() else { return };
        let Some((watch, mapped)) = watch(&file, &range, query) else { continue };
        let mut at = 1;
        for _ in 0..500 {
            at = (at * 1_103_515_245 + 12_345) % to_index(range.bytes);
            assert_eq!(byte(&mapped, at), expected_byte(at));
        }
        let report = watch.stop();
        let page = rustix::param::page_size() as u64;
        assert_eq!(report.turned, 0, "{query:?}: {report:?}");
        assert_eq!(report.page_by_page, 1);
        assert!(
            report.touched_bytes.get() <= 500 * page && report.ahead_bytes == Bytes::ZERO,
            "{query:?}: {report:?}"
        );
        if let Some(pages) = cached_pages(file.as_fd()) {
            // Mapping an input reads the partial pages at its edges.
            assert!(pages <= 502, "{query:?}: {pages} pages of the file were read");
        }
    }
}

#[test]
fn bytes_that_are_read_before_the_candidate_count_as_read_ahead() {
    for query in [CacheQuery::CacheStat, CacheQuery::MinCore] {
        let Some((file, range)) = cold() else { return };
        let mut ahead = ReadAhead::over(std::iter::once((0, &file, &range)), &[query]);
        let Some(input) = ahead.inputs.first_mut() else {
            println!("skipped: {query:?} does not work on this machine");
            continue;
        };
        let rows: Vec<Range<u64>> =
            (0..500).map(|row| START + row * 50_000..START + row * 50_000 + 100).collect();
        let page = rustix::param::page_size() as u64;
        // Every row lies in one page or two.
        let pages: u64 = rows.iter().map(|row| row.end.div_ceil(page) - row.start / page).sum();
        input.read_now(rows.iter().cloned());
        ahead.read_exactly();
        let mapped = mapped(&file, &range, true);
        let watch = ahead.start();
        for row in &rows {
            let at = to_index(row.start - START);
            assert_eq!(byte(&mapped, at), expected_byte(at));
        }
        let report = watch.stop();
        // The first page is not whole, so it is not counted.
        assert!(Bytes::new((pages - 1) * page) <= report.ahead_bytes, "{query:?}: {report:?}, {pages} pages");
        assert!(report.touched_bytes <= Bytes::new(page), "{query:?}: {report:?}");
    }
}

#[test]
fn many_bytes_are_not_read_before_the_candidate() {
    let Some((file, range)) = cold() else { return };
    let queries = [CacheQuery::CacheStat, CacheQuery::MinCore];
    let mut ahead = ReadAhead::over(std::iter::once((0, &file, &range)), &queries);
    let Some(input) = ahead.inputs.first_mut() else {
        println!("skipped: Linux does not report cached pages here");
        return;
    };
    input.read_now(std::iter::once(START..START + range.bytes / 2));
    assert_eq!(ahead.start().stop().ahead_bytes, Bytes::ZERO);
}

#[test]
fn dense_candidate_is_read_ahead() {
    for query in [CacheQuery::CacheStat, CacheQuery::MinCore] {
        let Some((file, range)) = cold() else { return };
        let Some((watch, mapped)) = watch(&file, &range, query) else { continue };
        for at in (0..to_index(range.bytes)).step_by(512) {
            assert_eq!(byte(&mapped, at), expected_byte(at), "{query:?}");
        }
        let report = watch.stop();
        assert_eq!(report.turned, 1, "{query:?}: {report:?}");
        // Even if the thread started late, the candidate did not wait for every page.
        assert!(0 < report.ahead_bytes.get(), "{query:?}: {report:?}");
        assert!(report.touched_bytes + report.ahead_bytes <= Bytes::from(SIZE), "{query:?}: {report:?}");
    }
}

#[test]
fn input_used_whole_before_is_read_from_the_start() {
    let mut whole = Whole::default();
    for known in [false, true] {
        let Some((file, range)) = cold() else { return };
        let ahead = ReadAhead::over(
            std::iter::once((0, &file, &range)),
            &[CacheQuery::CacheStat, CacheQuery::MinCore],
        );
        ahead.read_exactly();
        let watch = ahead.start_expecting(Expected { whole, turn: None });
        watch.set_runner(std::process::id());
        let mapped = mapped(&file, &range, true);
        for at in (0..to_index(range.bytes)).step_by(512) {
            assert_eq!(byte(&mapped, at), expected_byte(at));
        }
        let (report, learned) = watch.stop_and_learn();
        assert_eq!(report.turned, 1, "{report:?}");
        assert!(report.touched_bytes + report.ahead_bytes <= Bytes::from(SIZE), "{report:?}");
        whole = learned;
        assert_eq!(whole, Whole(vec![0]), "known before: {known}");
    }
    let Some((file, range)) = cold() else { return };
    let ahead =
        ReadAhead::over(std::iter::once((0, &file, &range)), &[CacheQuery::CacheStat, CacheQuery::MinCore]);
    let (done, turn) = channel();
    let watch = ahead.start_expecting(Expected { whole, turn: Some(Turn(turn)) });
    let pages = || cached_pages(file.as_fd());
    if let Some(before) = pages() {
        assert_eq!(before, 0, "read before its turn");
        drop(done);
        let deadline = Instant::now() + TIMEOUT;
        while pages() == Some(0) {
            assert!(Instant::now() < deadline, "nothing was read after its turn came");
            std::thread::yield_now();
        }
    }
    let (report, learned) = watch.stop_and_learn();
    assert_eq!((report.turned, learned), (0, Whole::default()), "{report:?}");
    assert!(report.ahead_bytes <= Bytes::mib(64), "{report:?}");
}

#[test]
fn turn_comes_once_everything_is_read() {
    let Some((file, range)) = cold() else { return };
    let Some((mut watch, mapped)) = watch(&file, &range, CacheQuery::CacheStat) else { return };
    let turn = watch.take_turn().expect("not taken before");
    assert!(!turn.has_come());
    let deadline = Instant::now() + TIMEOUT;
    let mut at = 0;
    // Reads it from front to back, more than once if necessary, because pages may have left the cache.
    while !turn.has_come() {
        assert!(Instant::now() < deadline, "{at}");
        at = (at + 512) % to_index(range.bytes);
        assert_eq!(byte(&mapped, at), expected_byte(at));
    }
    assert!(watch.take_turn().is_none());
}

#[test]
fn cached_inputs_are_not_read_again() {
    let Some((file, range)) = cold() else { return };
    let warm = mapped(&file, &range, false);
    // If the machine is short of memory, pages can leave the cache at any time and are read again.
    let mut tries = 20;
    let ahead = loop {
        (0..to_index(range.bytes))
            .step_by(4096)
            .for_each(|at| assert_eq!(byte(&warm, at), expected_byte(at)));
        let ahead = ReadAhead::over(
            std::iter::once((0, &file, &range)),
            &[CacheQuery::CacheStat, CacheQuery::MinCore],
        );
        if !ahead.page_by_page() {
            break ahead;
        }
        tries -= 1;
        assert!(0 < tries, "{:?} of {} pages are in the cache", cached_pages(file.as_fd()), SIZE / 4096);
    };
    assert_eq!(ahead.start().stop(), ReadReport::default());
}

#[test]
fn unobservable_inputs_are_left_to_linux() {
    let Some((file, range)) = cold() else { return };
    let ahead = ReadAhead::over(std::iter::once((0, &file, &range)), &[]);
    assert!(!ahead.page_by_page());
    assert_eq!(ahead.start().stop(), ReadReport { left_to_kernel: 1, ..ReadReport::default() });
}

#[test]
fn small_input_is_requested_without_its_neighbours() {
    let Some((file, large)) = cold() else { return };
    // The inputs are adjacent. Reading one must not count as touching the other.
    let large = InputRange { bytes: 32 << 20, ..large };
    let small = InputRange { source: 0, file_offset: 40 << 20, bytes: 300_000, address_phase: 0 };
    let ahead = ReadAhead::over(
        [(0, &file, &small), (1, &file, &large)].into_iter(),
        &[CacheQuery::CacheStat, CacheQuery::MinCore],
    );
    ahead.read_exactly();
    let watch = ahead.start();
    let _map = mapped(&file, &small, true);
    watch.stop();
    if let Some(pages) = cached_pages(file.as_fd()) {
        let page = rustix::param::page_size() as u64;
        let max = small.bytes.div_ceil(page) + crate::recorded::READAHEAD_WINDOW / page;
        assert!(0 < pages && pages <= max, "{pages} pages");
    }
}
