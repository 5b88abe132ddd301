//! Samples the memory of one process from `/proc/PID/statm` and `/proc/PID/status`. Reading `statm` is cheap enough for
//! the hot loop. Reading `status` takes longer, but distinguishes owed memory from reclaimable memory.
//!
//! Both files stay open. An open descriptor always describes the process that it was opened for, never a later one with
//! the same pid. A sampler allocates nothing after `open`, except for errors.

use std::path::{Path, PathBuf};

use opt_shared::units::Bytes;

use super::text::{KeptFile, kilobytes, lines, name_and_value, number, read_small, words};
use super::{SampleError, Seen, page_size};

/// The maximum size of `statm`, which contains seven numbers of at most 20 digits.
const STATM_BYTES: usize = 512;
/// The maximum size of `status`. The file has about 1.5 KiB, but its lists of CPUs and memory nodes are longer on large
/// machines.
const STATUS_BYTES: usize = 64 << 10;
/// The maximum size of `stat`, which contains 52 fields, one of them a name.
const STAT_BYTES: usize = 4 << 10;

/// The memory figures in `/proc/PID/status`. A figure that Linux does not report is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessSample {
    pub rss_anon: Option<Bytes>,
    pub rss_shmem: Option<Bytes>,
    pub rss_file: Option<Bytes>,
    pub vm_swap: Option<Bytes>,
    pub vm_pte: Option<Bytes>,
}

impl ProcessSample {
    /// Returns the owed memory, which stays in use until the process frees it or ends. `None` if one of the four
    /// figures is unknown.
    pub fn owed(&self) -> Option<Bytes> {
        Some(self.rss_anon? + self.rss_shmem? + self.vm_swap? + self.vm_pte?)
    }

    /// Returns the size of the file pages, which Linux can reclaim.
    pub fn reclaimable(&self) -> Option<Bytes> {
        self.rss_file
    }
}

/// The resident memory of a process. It includes file pages, but neither swapped memory nor page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Anonymous, shared and file pages.
    pub resident: Bytes,
    /// File pages and shared memory.
    pub shared: Bytes,
}

impl Resident {
    pub fn anonymous(&self) -> Bytes {
        self.resident.saturating_sub(self.shared)
    }
}

#[derive(Debug)]
pub struct ProcessSampler {
    statm: KeptFile,
    status: KeptFile,
    page: Bytes,
}

impl ProcessSampler {
    /// Opens the files of a process. Returns `None` if there is no such process.
    pub fn open(proc: &Path, pid: u32) -> Result<Option<Self>, SampleError> {
        let folder = process_folder(proc, pid);
        let Some(statm) = KeptFile::open(folder.join("statm"), STATM_BYTES)? else { return Ok(None) };
        let Some(status) = KeptFile::open(folder.join("status"), STATUS_BYTES)? else { return Ok(None) };
        Ok(Some(Self { statm, status, page: page_size() }))
    }

    /// Takes the cheap sample from `statm`.
    pub fn resident(&mut self) -> Result<Seen<Resident>, SampleError> {
        let wanted = "seven page counts";
        let Some((path, text)) = self.statm.read()? else { return Ok(Seen::Gone) };
        let mut counts = words(text).map(number);
        let (Some(Some(size)), Some(Some(resident)), Some(Some(shared))) =
            (counts.next(), counts.next(), counts.next())
        else {
            return Err(SampleError::line(path, text, wanted));
        };
        if size == 0 {
            return Ok(Seen::NoMemory);
        }
        let pages = |count| self.page.saturating_mul(count);
        Ok(Seen::Alive(Resident { resident: pages(resident), shared: pages(shared) }))
    }

    /// Takes the full sample from `status`.
    pub fn sample(&mut self) -> Result<Seen<ProcessSample>, SampleError> {
        let Some((path, text)) = self.status.read()? else { return Ok(Seen::Gone) };
        let mut sample = ProcessSample::default();
        for line in lines(text) {
            let Some((name, value)) = name_and_value(line) else { continue };
            let figure = match name {
                b"RssAnon" => &mut sample.rss_anon,
                b"RssShmem" => &mut sample.rss_shmem,
                b"RssFile" => &mut sample.rss_file,
                b"VmSwap" => &mut sample.vm_swap,
                b"VmPTE" => &mut sample.vm_pte,
                _ => continue,
            };
            *figure = Some(kilobytes(path, line, value)?);
        }
        if sample == ProcessSample::default() { Ok(Seen::NoMemory) } else { Ok(Seen::Alive(sample)) }
    }
}

/// The parent and start time of a process. The start time distinguishes the process from a later one with the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub parent: u32,
    /// The time at which the process started, in clock ticks since boot.
    pub start_time: u64,
}

/// Returns the identity of a process, or `None` if there is no such process. A zombie still has an identity.
pub fn identity(proc: &Path, pid: u32) -> Result<Option<Identity>, SampleError> {
    let path = process_folder(proc, pid).join("stat");
    let Some(text) = read_small(&path, STAT_BYTES)? else { return Ok(None) };
    parse_stat(&text)
        .map(Some)
        .ok_or_else(|| SampleError::line(&path, &text, "a parent in field 4 and a start time in field 22"))
}

pub fn parent(proc: &Path, pid: u32) -> Result<Option<u32>, SampleError> {
    Ok(identity(proc, pid)?.map(|identity| identity.parent))
}

pub fn start_time(proc: &Path, pid: u32) -> Result<Option<u64>, SampleError> {
    Ok(identity(proc, pid)?.map(|identity| identity.start_time))
}

/// Parses `/proc/PID/stat`. Field 2, the name in parentheses, can contain spaces, parentheses and newlines. Later
/// fields contain no parentheses, so parsing begins after the last one.
fn parse_stat(text: &[u8]) -> Option<Identity> {
    const FIRST_FIELD_AFTER_NAME: usize = 3;
    let end = text.iter().rposition(|&byte| byte == b')')?;
    let mut fields = words(&text[end + 1..]);
    let parent = number(fields.nth(4 - FIRST_FIELD_AFTER_NAME)?)?;
    let start_time = number(fields.nth(22 - 4 - 1)?)?;
    Some(Identity { parent: u32::try_from(parent).ok()?, start_time })
}

pub(super) fn process_folder(proc: &Path, pid: u32) -> PathBuf {
    proc.join(pid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A fake `/proc` with one process, which has these files.
    fn fake(pid: u32, files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("folder");
        let folder = process_folder(root.path(), pid);
        std::fs::create_dir(&folder).expect("folder");
        for (name, text) in files {
            std::fs::write(folder.join(name), text).expect("writes");
        }
        root
    }

    fn sampler(statm: &str, status: &str) -> (tempfile::TempDir, ProcessSampler) {
        let root = fake(7, &[("statm", statm), ("status", status)]);
        let sampler = ProcessSampler::open(root.path(), 7).expect("opens").expect("is there");
        (root, sampler)
    }

    const STATUS: &str = "Name:\tpython3: x\nUmask:\t0022\nState:\tS (sleeping)\nVmHWM:\t  307680 kB\n\
        RssAnon:\t     100 kB\nRssFile:\t    2000 kB\nRssShmem:\t      30 kB\nVmPTE:\t      12 kB\n\
        VmSwap:\t       4 kB\nThreads:\t1\n";

    #[test]
    fn sample_splits_memory_into_owed_and_reclaimable() {
        let (_root, mut sampler) = sampler("10 9 8 1 0 2 0\n", STATUS);
        let sample = sampler.sample().expect("reads").alive().expect("alive");
        assert_eq!(sample.owed(), Some(Bytes::kib(100 + 30 + 4 + 12)));
        assert_eq!(sample.reclaimable(), Some(Bytes::kib(2000)));
        let resident = sampler.resident().expect("reads").alive().expect("alive");
        assert_eq!(resident.resident, page_size().saturating_mul(9));
        assert_eq!(resident.anonymous(), page_size());
    }

    #[test]
    fn owed_is_unknown_if_a_figure_is_missing() {
        for missing in ["RssAnon", "RssShmem", "VmPTE", "VmSwap"] {
            let status: String = STATUS
                .lines()
                .filter(|line| !line.starts_with(missing))
                .map(|line| format!("{line}\n"))
                .collect();
            let (_root, mut sampler) = sampler("1 1 1 1 0 1 0", &status);
            let sample = sampler.sample().expect("reads").alive().expect("alive");
            assert_eq!(sample.owed(), None, "{missing}");
        }
    }

    #[test]
    fn zombie_has_no_memory() {
        let (_root, mut sampler) = sampler("0 0 0 0 0 0 0\n", "Name:\tx\nState:\tZ (zombie)\nThreads:\t1\n");
        assert_eq!(sampler.sample().expect("reads"), Seen::NoMemory);
        assert_eq!(sampler.resident().expect("reads"), Seen::NoMemory);
    }

    #[test]
    fn errors_name_the_file_and_the_malformed_line() {
        for (statm, status) in [
            ("10 x 8\n", "RssAnon:\t 12 MB\n"),
            ("", "RssAnon:\t-1 kB\n"),
            ("10 9\n", "RssAnon:\t kB\n"),
            ("99999999999999999999999 1 1\n", "RssAnon:\t1 kB 2\n"),
        ] {
            let (_root, mut sampler) = sampler(statm, status);
            let error = sampler.sample().expect_err("refuses").to_string();
            assert!(
                error.contains("7/status") && error.contains("RssAnon") && error.contains("kB"),
                "{error}"
            );
            let error = sampler.resident().expect_err("refuses").to_string();
            assert!(error.contains("7/statm") && error.contains("page counts"), "{error}");
        }
    }

    #[test]
    fn missing_process_is_not_an_error() {
        let root = fake(7, &[]);
        assert!(ProcessSampler::open(root.path(), 7).expect("an answer").is_none());
        assert!(ProcessSampler::open(root.path(), 8).expect("an answer").is_none());
        assert_eq!(identity(root.path(), 8).expect("an answer"), None);
    }

    #[test]
    fn dead_process_has_no_memory_and_is_gone_once_it_is_reaped() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("cat");
        let proc = Path::new("/proc");
        let mut sampler = ProcessSampler::open(proc, child.id()).expect("opens").expect("is there");
        assert!(matches!(sampler.resident().expect("reads"), Seen::Alive(_)));
        assert_eq!(parent(proc, child.id()).expect("reads"), Some(std::process::id()));

        child.kill().expect("kills");
        // WNOWAIT leaves the dead child unreaped.
        let options = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::waitid(rustix::process::WaitId::Pid(pid), options).expect("waits");
        assert_eq!(sampler.sample().expect("an answer"), Seen::NoMemory);
        assert_eq!(sampler.resident().expect("an answer"), Seen::NoMemory);
        assert!(identity(proc, child.id()).expect("reads").is_some());

        child.wait().expect("reaps");
        assert_eq!(sampler.sample().expect("an answer"), Seen::Gone);
        assert_eq!(sampler.resident().expect("an answer"), Seen::Gone);
    }

    #[test]
    fn sampler_reads_this_process() {
        let mut sampler =
            ProcessSampler::open(Path::new("/proc"), std::process::id()).expect("opens").expect("is there");
        let sample = sampler.sample().expect("reads").alive().expect("alive");
        assert!(sample.owed().expect("all figures") > Bytes::kib(64));
        assert!(start_time(Path::new("/proc"), std::process::id()).expect("reads").expect("is there") > 0);
    }

    proptest! {
        #[test]
        fn parse_stat_accepts_any_process_name(name in "[a-z() \n\\[\\]0-9]{0,15}", parent in 0u32.., start in 0u64..) {
            let text = format!(
                "42 ({name}) S {parent} 42 42 0 -1 4194304 1 0 0 0 1 2 0 0 20 0 1 0 {start} 5000000 900\n"
            );
            let wanted = Identity { parent, start_time: start };
            prop_assert_eq!(parse_stat(text.as_bytes()), Some(wanted));
        }

        #[test]
        fn sampler_does_not_panic_on_any_text(text in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            let root = fake(7, &[]);
            let folder = process_folder(root.path(), 7);
            for name in ["stat", "statm", "status"] {
                std::fs::write(folder.join(name), &text).expect("writes");
            }
            let mut sampler = ProcessSampler::open(root.path(), 7).expect("opens").expect("is there");
            let _ = sampler.sample();
            let _ = sampler.resident();
            let _ = identity(root.path(), 7);
        }
    }
}
