//! Detects conditions that disturb time measurements on this machine: other load, CPU time that the host of a virtual
//! machine takes away, and changing clock speeds.

use std::fs;
use std::path::Path;

/// The conditions that may disturb time measurements on this machine. A field is `None` if the machine does not report
/// it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Disturbance {
    /// The names of the CPUs' frequency governors, without repetitions. Empty if the machine reports none, as is usual
    /// in virtual machines.
    pub governors: Vec<String>,
    /// Whether two hardware threads share a core.
    pub smt: Option<bool>,
    /// The load average of the last minute, which is the average number of threads that ran, or waited for a CPU or a
    /// disk.
    pub load: Option<f64>,
    /// The total time of all CPUs since the machine started, and the part that the host took away (steal), both in
    /// clock ticks.
    ticks: Option<(u64, u64)>,
    /// The number of times that cores were throttled because of heat since the machine started. This is the sum of the
    /// counts of all CPUs, so a core with two hardware threads counts twice.
    throttled: Option<u64>,
}

impl Disturbance {
    /// Reads the current state below `root`, which is `/` except in tests.
    pub fn read(root: &Path) -> Self {
        let cpus = root.join("sys/devices/system/cpu");
        let read = |path: &Path| fs::read_to_string(path).ok();
        let (mut governors, mut throttled) = (Vec::new(), None);
        for cpu in fs::read_dir(&cpus).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if let Some(governor) = read(&cpu.join("cpufreq/scaling_governor")) {
                governors.push(governor.trim().to_owned());
            }
            let count = read(&cpu.join("thermal_throttle/core_throttle_count"));
            if let Some(count) = count.and_then(|count| count.trim().parse::<u64>().ok()) {
                *throttled.get_or_insert(0) += count;
            }
        }
        governors.sort_unstable();
        governors.dedup();
        Self {
            governors,
            smt: read(&cpus.join("smt/active")).map(|active| active.trim() == "1"),
            load: read(&root.join("proc/loadavg")).and_then(|text| text.split(' ').next()?.parse().ok()),
            ticks: read(&root.join("proc/stat")).and_then(|text| ticks(&text)),
            throttled,
        }
    }

    /// Returns the share of all CPU time since `before` that the host of a virtual machine gave to others, from 0 to 1.
    pub fn steal_since(&self, before: &Self) -> Option<f64> {
        let ((all, stolen), (all_before, stolen_before)) = self.ticks.zip(before.ticks)?;
        let passed = all.checked_sub(all_before).filter(|&passed| passed != 0)?;
        #[expect(clippy::cast_precision_loss, reason = "a share that is only displayed")]
        Some(stolen.saturating_sub(stolen_before) as f64 / passed as f64)
    }

    pub fn throttled_since(&self, before: &Self) -> Option<u64> {
        self.throttled?.checked_sub(before.throttled?)
    }
}

/// Returns the total and the stolen CPU time from the first line of `/proc/stat`.
fn ticks(text: &str) -> Option<(u64, u64)> {
    let figures: Vec<u64> = text
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .map_while(|figure| figure.parse().ok())
        .collect();
    // The last two figures are the time of guests. Leave them out, because the first two figures include them.
    let all = figures.iter().take(8).sum();
    Some((all, *figures.get(7)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(stat: &str, throttled: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        put("proc/stat", stat);
        put("proc/loadavg", "3.25 1.00 0.50 2/100 4242\n");
        put("sys/devices/system/cpu/smt/active", "1\n");
        for cpu in 0..2 {
            put(&format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"), "powersave\n");
            put(&format!("sys/devices/system/cpu/cpu{cpu}/thermal_throttle/core_throttle_count"), throttled);
        }
        root
    }

    #[test]
    fn disturbance_is_read_and_compared_with_an_earlier_state() {
        let before = machine("cpu  100 0 100 700 0 0 0 100 50 0\ncpu0 1 2\n", "3\n");
        let after = machine("cpu  150 0 150 750 0 0 0 150 90 0\n", "5\n");
        let (before, after) = (Disturbance::read(before.path()), Disturbance::read(after.path()));
        assert_eq!(before.governors, ["powersave"]);
        assert_eq!((before.smt, before.load), (Some(true), Some(3.25)));
        assert_eq!(after.steal_since(&before), Some(0.25));
        assert_eq!(after.throttled_since(&before), Some(4));
        assert_eq!(before.steal_since(&before), None, "no time has passed");
        assert_eq!(before.throttled_since(&after), None, "the machine was restarted in between");
    }

    #[test]
    fn missing_files_leave_fields_unknown() {
        let empty = tempfile::tempdir().expect("a folder");
        let found = Disturbance::read(empty.path());
        assert_eq!(found, Disturbance::default());
        assert_eq!(found.steal_since(&found), None);
    }
}
