//! One large file, read by every rung of the ladder and through a map, beside raw reads.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use opt_shared::cache::cached_pages;
use opt_shared::stream::{FileDisk, ReadFault, Rung, Shape, stream};
use opt_shared::units::Bytes;
use opt_worker::read_ahead::ReadAhead;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{prepare, rates, timed};
use crate::figures::mib;
use crate::verify_large::median;

/// The read-ahead that most machines have.
const COMMON_READ_AHEAD: &str = "128";

#[derive(Clone, Copy)]
enum Way {
    Raw(&'static str),
    Rung(Rung, usize),
}

pub(super) fn run(folder: &Path, bytes: u64, runs: u32) -> Result<bool> {
    let path = folder.join("stream.bin");
    write(&path, bytes)?;
    println!("{} GiB in one file, {runs} runs in turn\n", bytes >> 30);
    println!("| way | cold GB/s (least–most) | warm GB/s | cache left MiB | peak owed MiB |");
    println!("|---|---|---|---|---|");
    let ways = [
        ("`dd`, direct, before", Way::Raw("direct")),
        ("`dd`, before", Way::Raw("")),
        ("uncached, 1 reader", Way::Rung(Rung::Uncached, 1)),
        ("uncached, 2 readers", Way::Rung(Rung::Uncached, 2)),
        ("direct, 1 reader", Way::Rung(Rung::Direct, 1)),
        ("direct, 2 readers", Way::Rung(Rung::Direct, 2)),
        ("behind, 1 reader", Way::Rung(Rung::Behind, 1)),
        ("behind, 2 readers", Way::Rung(Rung::Behind, 2)),
        ("`dd`, after", Way::Raw("")),
        ("`dd`, direct, after", Way::Raw("direct")),
    ];
    let mut cold = vec![Vec::new(); ways.len()];
    let mut warm = vec![Vec::new(); ways.len()];
    let mut left = vec![0; ways.len()];
    let mut owed = vec![0; ways.len()];
    for _ in 0..runs {
        for (at, (_, way)) in ways.iter().enumerate() {
            prepare(&path, true)?;
            cold[at].push(timed(|| read(&path, bytes, *way))?);
            left[at] = left[at].max(cached(&path)?);
            prepare(&path, false)?;
            warm[at].push(timed(|| read(&path, bytes, *way))?);
            // In a process of its own, and not timed: it is looked at all the while.
            prepare(&path, true)?;
            owed[at] = owed[at].max(super::owed::peak(command(&path, bytes, *way)?)?);
        }
    }
    let (mut raw, mut own) = (f64::INFINITY, f64::INFINITY);
    for (at, (name, way)) in ways.iter().enumerate() {
        let seconds = median(&mut cold[at]);
        match way {
            Way::Raw(_) => raw = raw.min(seconds),
            Way::Rung(..) => own = own.min(seconds),
        }
        let warm = bytes as f64 / median(&mut warm[at]) / 1e9;
        let cold = rates(bytes, &mut cold[at]);
        println!("| {name} | {cold} | {warm:.2} | {} | {:.1} |", left[at] >> 20, mib(owed[at]));
    }
    println!("\nBest rung at {:.0} % of the best raw read, by medians.\n", raw / own * 100.0);
    let faults = faults(&path, bytes, runs)?;
    Ok(faults && 0.95 <= raw / own)
}

fn write(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let mut chunk = vec![0_u8; 1 << 20];
    for at in 0..bytes >> 20 {
        chunk.iter_mut().enumerate().for_each(|(byte, it)| *it = (byte as u64 * 31 + at) as u8);
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
        Way::Rung(rung, readers) => by_rung(path, bytes, rung, readers),
    }
}

/// The same in a process of its own.
fn command(path: &Path, bytes: u64, way: Way) -> Result<Command> {
    match way {
        Way::Raw(flag) => Ok(dd(path, flag)),
        Way::Rung(rung, readers) => super::owed::command(path, bytes, rung, readers),
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

pub(super) fn by_rung(path: &Path, bytes: u64, rung: Rung, readers: usize) -> Result<()> {
    let disk = FileDisk::at(&File::open(path)?, readers, Some(rung))?;
    let shape = Shape { chunk: Bytes::mib(4), readers };
    let mut seen = 0;
    stream(&disk, 0..bytes, shape, |chunk| {
        seen += chunk.len() as u64;
        Ok::<_, ReadFault>(())
    })?;
    ensure!(seen == bytes, "{seen} bytes came of {bytes}");
    Ok(())
}

fn cached(path: &Path) -> Result<u64> {
    let pages =
        cached_pages(File::open(path)?.as_fd()).context("this kernel does not tell what is cached")?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// A map of the file, touched from front to back: plain faults, and read ahead of, both with the read-ahead that most
/// machines have. An open file keeps the read-ahead it was opened under, so the disk's own is changed for a moment.
fn faults(path: &Path, bytes: u64, runs: u32) -> Result<bool> {
    let Some(setting) = Setting::of(path) else {
        println!("Reads through a map: not measured, the disk's read-ahead cannot be set here.\n");
        return Ok(true);
    };
    let [mut plain, mut ahead] = [Vec::new(), Vec::new()];
    let mut raw = Vec::new();
    let mut turned = 0;
    for _ in 0..runs {
        prepare(path, true)?;
        raw.push(timed(|| read(path, bytes, Way::Raw("direct")))?);
        for with in [false, true, false] {
            prepare(path, true)?;
            let file = Arc::new(setting.open_with(COMMON_READ_AHEAD, path)?);
            let seconds = timed(|| {
                if !with {
                    return touch(&file, bytes, false);
                }
                let watched = ReadAhead::over_file(&file, 0..bytes);
                watched.read_exactly();
                let watch = watched.start();
                watch.runs_in(std::process::id());
                let touched = touch(&file, bytes, true);
                turned += watch.stop().turned;
                touched
            })?;
            if with { ahead.push(seconds) } else { plain.push(seconds) }
        }
    }
    let gain = median(&mut plain) / median(&mut ahead);
    println!("| through a map, read-ahead of {COMMON_READ_AHEAD} KiB | cold GB/s (least–most) |");
    println!("|---|---|");
    println!("| `dd`, direct | {} |", rates(bytes, &mut raw));
    println!("| plain faults | {} |", rates(bytes, &mut plain));
    println!("| read ahead of | {} |", rates(bytes, &mut ahead));
    println!("\nReading ahead: {gain:.2} times as fast as plain faults.\n");
    ensure!(turned == runs, "it was seen to be dense in {turned} of {runs} runs");
    Ok(2.7 <= gain)
}

/// `read_ahead_kb` of the disk that a file lies on.
struct Setting(PathBuf);

impl Setting {
    fn of(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let device = std::fs::metadata(path).ok()?.dev();
        let place = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        let whole = Path::new(&place).join("queue/read_ahead_kb");
        let part = Path::new(&place).join("../queue/read_ahead_kb");
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

fn touch(file: &File, bytes: u64, random: bool) -> Result<()> {
    let length = usize::try_from(bytes)?;
    // SAFETY: a fresh map at a place of the kernel's choice, of a file that nobody changes.
    let start =
        unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE, file.as_fd(), 0) }?;
    if random {
        // SAFETY: advice over our own map.
        unsafe { rustix::mm::madvise(start, length, rustix::mm::Advice::Random) }?;
    }
    // SAFETY: mapped readable, and of this length.
    let words = unsafe { std::slice::from_raw_parts(start.cast::<u64>(), length / 8) };
    std::hint::black_box(words.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word)));
    // SAFETY: our own map; the slice is not used any more.
    unsafe { munmap(start, length) }?;
    Ok(())
}
