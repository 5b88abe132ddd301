//! Samples the machine's memory and swap, from descriptors of `/proc/meminfo` and `/proc/vmstat` that stay open.
//!
//! In a container, these figures are those of the host. The module `cgroup` finds the container's own limit.

use std::path::Path;

use opt_shared::units::Bytes;

use super::text::{KeptFile, kilobytes, lines, name_and_value, number, words};
use super::{SampleError, page_size};

/// The maximum size of `/proc/meminfo`, which has about 1.5 KiB. A longer file is an error.
const MEMINFO_BYTES: usize = 16 << 10;
/// The maximum size of `/proc/vmstat`, which has about 4 KiB. It contains a line for each counter that Linux was built
/// with.
const VMSTAT_BYTES: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineSample {
    pub total: Bytes,
    /// Linux's estimate of how much memory is available without swapping.
    pub available: Bytes,
    pub free: Bytes,
    /// The total swap space. `None` if `/proc/meminfo` has no such line, although Linux always writes one, with 0 if
    /// there is no swap space.
    pub swap_total: Option<Bytes>,
    pub swap_free: Option<Bytes>,
}

/// The swap traffic since boot. A field is `None` if Linux was built without event counters, or if a container hides
/// `/proc/vmstat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapTraffic {
    pub read: Option<Bytes>,
    pub written: Option<Bytes>,
}

#[derive(Debug)]
pub struct MachineSampler {
    meminfo: KeptFile,
    vmstat: Option<KeptFile>,
    page: Bytes,
}

impl MachineSampler {
    /// Opens the files below `proc`, which is `/proc` except in tests.
    pub fn open(proc: &Path) -> Result<Self, SampleError> {
        let path = proc.join("meminfo");
        let Some(meminfo) = KeptFile::open(path.clone(), MEMINFO_BYTES)? else {
            return Err(SampleError::io(&path, "open it", std::io::ErrorKind::NotFound.into()));
        };
        // Some containers hide this file. In them, the swap traffic is unknown.
        let vmstat = KeptFile::open(proc.join("vmstat"), VMSTAT_BYTES)?;
        Ok(Self { meminfo, vmstat, page: page_size() })
    }

    pub fn sample(&mut self) -> Result<MachineSample, SampleError> {
        let (mut total, mut available, mut free, mut swap_total, mut swap_free) =
            (None, None, None, None, None);
        let Some((path, text)) = self.meminfo.read()? else {
            return Err(SampleError::Absent { path: self.meminfo.path().to_owned(), wanted: "MemTotal" });
        };
        for line in lines(text) {
            let Some((name, value)) = name_and_value(line) else { continue };
            let figure = match name {
                b"MemTotal" => &mut total,
                b"MemAvailable" => &mut available,
                b"MemFree" => &mut free,
                b"SwapTotal" => &mut swap_total,
                b"SwapFree" => &mut swap_free,
                _ => continue,
            };
            *figure = Some(kilobytes(path, line, value)?);
        }
        let required = |figure: Option<Bytes>, wanted| {
            figure.ok_or_else(|| SampleError::Absent { path: path.to_owned(), wanted })
        };
        Ok(MachineSample {
            total: required(total, "MemTotal")?,
            available: required(available, "MemAvailable")?,
            free: required(free, "MemFree")?,
            swap_total,
            swap_free,
        })
    }

    pub fn swap_traffic(&mut self) -> Result<SwapTraffic, SampleError> {
        let mut traffic = SwapTraffic::default();
        let Some(vmstat) = &mut self.vmstat else { return Ok(traffic) };
        let Some((path, text)) = vmstat.read()? else { return Ok(traffic) };
        for line in lines(text) {
            let mut words = words(line);
            let figure = match words.next() {
                Some(b"pswpin") => &mut traffic.read,
                Some(b"pswpout") => &mut traffic.written,
                _ => continue,
            };
            let pages = words
                .next()
                .and_then(number)
                .ok_or_else(|| SampleError::line(path, line, "a name and a page count"))?;
            *figure = Some(self.page.saturating_mul(pages));
        }
        Ok(traffic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       24584908 kB\nMemFree:        24088260 kB\nMemAvailable:   24183432 kB\n\
        Buffers:           12345 kB\nSwapTotal:          2048 kB\nSwapFree:           1024 kB\n\
        HugePages_Total:       0\nHugepagesize:       2048 kB\n";

    fn fake(meminfo: &str, vmstat: Option<&str>) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("folder");
        std::fs::write(root.path().join("meminfo"), meminfo).expect("writes");
        if let Some(vmstat) = vmstat {
            std::fs::write(root.path().join("vmstat"), vmstat).expect("writes");
        }
        root
    }

    #[test]
    fn sampler_reads_totals_and_swap() {
        let root = fake(MEMINFO, Some("nr_free_pages 5\npswpin 3\npswpout 4\npswpout_other 9\n"));
        let mut sampler = MachineSampler::open(root.path()).expect("opens");
        let sample = sampler.sample().expect("reads");
        assert_eq!(sample.total, Bytes::kib(24_584_908));
        assert_eq!(sample.available, Bytes::kib(24_183_432));
        assert_eq!((sample.swap_total, sample.swap_free), (Some(Bytes::mib(2)), Some(Bytes::mib(1))));
        let page = page_size();
        assert_eq!(
            sampler.swap_traffic().expect("reads"),
            SwapTraffic { read: Some(page.saturating_mul(3)), written: Some(page.saturating_mul(4)) }
        );
    }

    #[test]
    fn swap_figures_are_none_if_the_files_lack_them() {
        let root = fake("MemTotal: 8 kB\nMemFree: 4 kB\nMemAvailable: 6 kB\n", None);
        let mut sampler = MachineSampler::open(root.path()).expect("opens");
        let sample = sampler.sample().expect("reads");
        assert_eq!((sample.swap_total, sample.swap_free), (None, None));
        assert_eq!(sampler.swap_traffic().expect("reads"), SwapTraffic::default());
    }

    #[test]
    fn errors_name_the_missing_figure_and_its_file() {
        let root = fake("MemTotal: 8 kB\nMemFree: 4 kB\n", Some("pswpin many\n"));
        let mut sampler = MachineSampler::open(root.path()).expect("opens");
        let error = sampler.sample().expect_err("refuses").to_string();
        assert!(error.contains("meminfo") && error.contains("MemAvailable"), "{error}");
        let error = sampler.swap_traffic().expect_err("refuses").to_string();
        assert!(error.contains("vmstat") && error.contains("pswpin many"), "{error}");
        assert!(MachineSampler::open(&root.path().join("none")).is_err());
    }

    #[test]
    fn sampler_reads_this_machine() {
        let mut sampler = MachineSampler::open(Path::new("/proc")).expect("opens");
        let sample = sampler.sample().expect("reads");
        assert!(sample.available <= sample.total && sample.total > Bytes::mib(64));
        sampler.swap_traffic().expect("reads");
    }
}
