//! Measures how fast one large file is read by every method and through a memory map, compared with raw reads.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use opt_shared::cache::cached_pages;
use opt_shared::stream::{FileDisk, ReadFault, ReadMethod, Shape, stream};
use opt_shared::units::Bytes;
use opt_worker::read_ahead::ReadAhead;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use serde_json::{Value, json};

use super::{Rates, Section, prepare, timed};
use crate::figures::mib;
use crate::verify_large::median;

/// The read-ahead setting of most machines, in KiB.
const COMMON_READ_AHEAD: &str = "128";

#[derive(Clone, Copy)]
enum Way {
    Raw(&'static str),
    ReadMethod(ReadMethod, usize),
}

pub(super) fn run(folder: &Path, bytes: u64, runs: u32) -> Result<Section> {
    let path = folder.join("stream.bin");
    write(&path, bytes)?;
    let ways = [
        ("`dd`, direct, before", Way::Raw("direct")),
        ("`dd`, before", Way::Raw("")),
        ("uncached, 1 reader", Way::ReadMethod(ReadMethod::Uncached, 1)),
        ("uncached, 2 readers", Way::ReadMethod(ReadMethod::Uncached, 2)),
        ("direct, 1 reader", Way::ReadMethod(ReadMethod::Direct, 1)),
        ("direct, 2 readers", Way::ReadMethod(ReadMethod::Direct, 2)),
        ("behind, 1 reader", Way::ReadMethod(ReadMethod::Behind, 1)),
        ("behind, 2 readers", Way::ReadMethod(ReadMethod::Behind, 2)),
        ("`dd`, after", Way::Raw("")),
        ("`dd`, direct, after", Way::Raw("direct")),
    ];
    let mut cold = vec![Vec::new(); ways.len()];
    let mut warm = vec![Vec::new(); ways.len()];
    let mut cached_after = vec![0; ways.len()];
    let mut owed = vec![0; ways.len()];
    for _ in 0..runs {
        for (at, (_, way)) in ways.iter().enumerate() {
            prepare(&path, true)?;
            cold[at].push(timed(|| read(&path, bytes, *way))?);
            cached_after[at] = cached_after[at].max(cached(&path)?);
            prepare(&path, false)?;
            warm[at].push(timed(|| read(&path, bytes, *way))?);
            // Measure memory in a separate process, because sampling slows the process down and would distort the
            // times.
            prepare(&path, true)?;
            owed[at] = owed[at].max(super::owed::peak(command(&path, bytes, *way)?)?);
        }
    }
    let mut text = format!("{} GiB in one file, {runs} runs in turn\n\n", bytes >> 30);
    text += "| way | cold GB/s (least–most) | warm GB/s | left in cache MiB | peak owed MiB |\n|---|---|---|---|---|\n";
    let mut rows = Vec::new();
    let (mut raw, mut own) = (f64::INFINITY, f64::INFINITY);
    for (at, (name, way)) in ways.iter().enumerate() {
        let seconds = median(&mut cold[at]);
        match way {
            Way::Raw(_) => raw = raw.min(seconds),
            Way::ReadMethod(..) => own = own.min(seconds),
        }
        let (cold, warm) = (Rates::of(bytes, &mut cold[at]), Rates::of(bytes, &mut warm[at]));
        let (cached_after, owed) = (cached_after[at], owed[at]);
        text += &format!(
            "| {name} | {cold} | {:.2} | {} | {:.1} |\n",
            warm.median,
            cached_after >> 20,
            mib(owed)
        );
        rows.push(json!({ "way": name, "cold": cold.to_json(), "warm": warm.to_json(), "left_in_cache_bytes": cached_after, "peak_owed_bytes": owed }));
    }
    text += &format!(
        "\nThe best method reached {:.0} % of the speed of the best raw read (medians).\n\n",
        raw / own * 100.0
    );
    let faults = faults(&path, bytes, runs)?;
    Ok(Section {
        text: text + &faults.text,
        sheet: json!({ "bytes": bytes, "ways": rows, "best_method_over_raw": raw / own, "through_a_map": faults.sheet }),
        good: faults.good && 0.95 <= raw / own,
    })
}

fn write(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let mut chunk = vec![0_u8; 1 << 20];
    for at in 0..bytes >> 20 {
        chunk.iter_mut().enumerate().for_each(|(byte, it)| *it = (byte as u64 * 31 + at).to_le_bytes()[0]);
        file.write_all(&chunk)?;
    }
    file.sync_all().context("flushing the file to read")
}

fn read(path: &Path, bytes: u64, way: Way) -> Result<()> {
    match way {
        Way::Raw(flag) => {
            ensure!(dd(path, flag).status().context("starting dd")?.success(), "dd failed");
            Ok(())
        }
        Way::ReadMethod(method, readers) => by_method(path, bytes, method, readers),
    }
}

/// Returns the command that reads in the same way in a separate process.
fn command(path: &Path, bytes: u64, way: Way) -> Result<Command> {
    match way {
        Way::Raw(flag) => Ok(dd(path, flag)),
        Way::ReadMethod(method, readers) => super::owed::command(path, bytes, method, readers),
    }
}

fn dd(path: &Path, flag: &str) -> Command {
    let mut dd = Command::new("dd");
    dd.arg(format!("if={}", path.display())).args(["of=/dev/null", "bs=4M", "status=none"]);
    if !flag.is_empty() {
        dd.arg(format!("iflag={flag}"));
    }
    dd
}

pub(super) fn by_method(path: &Path, bytes: u64, method: ReadMethod, readers: usize) -> Result<()> {
    let disk = FileDisk::with_method(&File::open(path)?, readers, Some(method))?;
    let shape = Shape { chunk: Bytes::mib(4), readers };
    let mut seen = 0;
    stream(&disk, 0..bytes, shape, |chunk| {
        seen += chunk.len() as u64;
        Ok::<_, ReadFault>(())
    })?;
    ensure!(seen == bytes, "{seen} of {bytes} bytes arrived");
    Ok(())
}

fn cached(path: &Path) -> Result<u64> {
    let pages = cached_pages(File::open(path)?.as_fd())
        .context("this version of Linux does not report what is cached")?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// How the pages of a map get into memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Touch {
    /// Page faults bring them in, with the system's read-ahead.
    Plain,
    /// Page faults bring them in, while the product's own code reads ahead.
    ReadAhead,
    /// Page faults bring them in after `MADV_SEQUENTIAL`, which makes Linux read further ahead.
    Sequential,
    /// `MADV_POPULATE_READ` brings in one piece after the other, so that reading causes no faults.
    Populate,
}

impl Touch {
    const ALL: [(&'static str, Self); 4] = [
        ("plain faults", Self::Plain),
        ("the product's read-ahead", Self::ReadAhead),
        ("MADV_SEQUENTIAL", Self::Sequential),
        ("MADV_POPULATE_READ", Self::Populate),
    ];
}

/// Touches a map of the file from front to back, in every way, with a read-ahead of `COMMON_READ_AHEAD`. Changes the
/// setting of the disk just before the file is opened, and restores it right after. This is enough, because an open
/// file keeps the read-ahead with which it was opened.
fn faults(path: &Path, bytes: u64, runs: u32) -> Result<Section> {
    let Some(setting) = Setting::of(path) else {
        let text = "Reads through a map: not measured, because the disk's read-ahead cannot be set here.\n\n";
        return Ok(Section { text: text.to_owned(), sheet: Value::Null, good: true });
    };
    let mut raw = Vec::new();
    let mut seconds = vec![Vec::new(); Touch::ALL.len()];
    let mut dense_runs = 0;
    for _ in 0..runs {
        prepare(path, true)?;
        raw.push(timed(|| read(path, bytes, Way::Raw("direct")))?);
        for (at, (_, way)) in Touch::ALL.into_iter().enumerate() {
            prepare(path, true)?;
            let file = Arc::new(setting.open_with(COMMON_READ_AHEAD, path)?);
            seconds[at].push(timed(|| {
                if way != Touch::ReadAhead {
                    return touch(&file, bytes, way);
                }
                let watched = ReadAhead::over_file(&file, 0..bytes);
                watched.read_exactly();
                let watch = watched.start();
                watch.set_runner(std::process::id());
                let touched = touch(&file, bytes, way);
                dense_runs += watch.stop().turned;
                touched
            })?);
        }
    }
    let gain = median(&mut seconds[0]) / median(&mut seconds[1]);
    let mut text = format!(
        "| through a map, read-ahead of {COMMON_READ_AHEAD} KiB | cold GB/s (least–most) |\n|---|---|\n"
    );
    let mut rows = Vec::new();
    let names = std::iter::once("`dd`, direct").chain(Touch::ALL.map(|(name, _)| name));
    for (name, seconds) in names.zip(std::iter::once(&mut raw).chain(&mut seconds)) {
        let cold = Rates::of(bytes, seconds);
        text += &format!("| {name} | {cold} |\n");
        rows.push(json!({ "way": name, "cold": cold.to_json() }));
    }
    text += &format!("\nReading ahead: {gain:.2} times as fast as plain faults.\n\n");
    ensure!(dense_runs == runs, "the reads were recognised as dense in {dense_runs} of {runs} runs");
    Ok(Section {
        text,
        sheet: json!({ "read_ahead_kib": COMMON_READ_AHEAD, "ways": rows, "read_ahead_over_plain": gain }),
        good: 2.7 <= gain,
    })
}

/// The setting `read_ahead_kb` of the disk that holds a file.
struct Setting(PathBuf);

impl Setting {
    fn of(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let device = std::fs::metadata(path).ok()?.dev();
        let block_device =
            format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        let whole = Path::new(&block_device).join("queue/read_ahead_kb");
        let part = Path::new(&block_device).join("../queue/read_ahead_kb");
        let setting = [whole, part].into_iter().find(|path| path.exists())?;
        std::fs::OpenOptions::new().write(true).open(&setting).ok()?;
        Some(Self(setting))
    }

    fn open_with(&self, kib: &str, path: &Path) -> Result<File> {
        let before = std::fs::read_to_string(&self.0)?;
        std::fs::write(&self.0, kib)?;
        let file = File::open(path);
        std::fs::write(&self.0, before.trim()).context("restoring read_ahead_kb")?;
        Ok(file?)
    }
}

/// The number of bytes to populate at a time. The other methods read as many at a time.
const PIECE: usize = 4 << 20;

fn touch(file: &File, bytes: u64, way: Touch) -> Result<()> {
    let length = usize::try_from(bytes)?;
    // SAFETY: this is a new map, at an address that Linux chooses, of a file that does not change.
    let start =
        unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE, file.as_fd(), 0) }?;
    let advice = match way {
        Touch::Plain | Touch::Populate => None,
        Touch::ReadAhead => Some(Advice::Random),
        Touch::Sequential => Some(Advice::Sequential),
    };
    if let Some(advice) = advice {
        // SAFETY: this only advises Linux about our own map.
        unsafe { madvise(start, length, advice) }?;
    }
    // SAFETY: the map is readable and has this length.
    let words = unsafe { std::slice::from_raw_parts(start.cast::<u64>(), length / 8) };
    let mut sum = 0_u64;
    for piece in words.chunks(PIECE / 8) {
        if way == Touch::Populate {
            // SAFETY: this fills page tables of our own map, and pieces begin at page boundaries.
            unsafe {
                madvise(piece.as_ptr().cast_mut().cast(), size_of_val(piece), Advice::LinuxPopulateRead)
            }?;
        }
        sum = piece.iter().fold(sum, |sum, word| sum.wrapping_add(*word));
    }
    std::hint::black_box(sum);
    // SAFETY: this is our own map, and the slice is not used any more.
    unsafe { munmap(start, length) }?;
    Ok(())
}
