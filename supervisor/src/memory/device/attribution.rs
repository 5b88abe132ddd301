//! Attributes a device's memory to the processes of this run and to other processes. The rest stays unattributed.
//!
//! NVML identifies processes by their pids. In a container, these may be pids of an outer namespace, which mean nothing
//! in ours. The memory of such a process counts as unattributed.

use std::path::Path;

use opt_shared::units::Bytes;

use super::Reading;

/// A process of this run. Its first pid is the one in our namespace. The others are its pids in the namespaces within
/// ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnProcess<P> {
    pub process: P,
    pub pids: Vec<u32>,
}

/// The memory in a reading, divided by the processes that hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribution<P> {
    /// The processes of this run and their memory, which is `None` if NVML lists a process without a figure.
    pub ours: Vec<(P, Option<Bytes>)>,
    /// The memory of other processes on this machine. Their number is `other_processes`.
    pub others: Bytes,
    pub other_processes: u32,
    /// The used memory that belongs to no known process. `None` if the device has no totals and every listed process is
    /// known.
    pub unattributed: Option<Bytes>,
}

/// Attributes the memory in a reading to the processes that hold it. `is_here` returns whether a pid belongs to a
/// living process in our namespace.
pub fn attribute<P: Copy>(
    reading: &Reading,
    ours: &[OwnProcess<P>],
    is_here: impl Fn(u32) -> bool,
) -> Attribution<P> {
    let mut found =
        Attribution { ours: Vec::new(), others: Bytes::ZERO, other_processes: 0, unattributed: None };
    let (mut named, mut unnamed) = (Bytes::ZERO, None);
    for listed in &reading.processes {
        let bytes = listed.bytes.unwrap_or_default();
        if let Some(process) = owner(listed.pid, ours) {
            found.ours.push((process, listed.bytes));
            named += bytes;
        } else if is_here(listed.pid) {
            found.others += bytes;
            found.other_processes += 1;
            named += bytes;
        } else {
            unnamed = Some(unnamed.unwrap_or(Bytes::ZERO) + bytes);
        }
    }
    found.unattributed = reading.totals.map(|totals| totals.used - named).or(unnamed);
    found
}

/// Returns the process of this run that has this pid in our namespace. If there is none, returns the process that has
/// this pid in another namespace, provided that there is only one.
fn owner<P: Copy>(pid: u32, ours: &[OwnProcess<P>]) -> Option<P> {
    if let Some(found) = ours.iter().find(|it| it.pids.first() == Some(&pid)) {
        return Some(found.process);
    }
    let mut others = ours.iter().filter(|it| it.pids.contains(&pid));
    let found = others.next()?;
    others.next().is_none().then_some(found.process)
}

/// Returns a process's pids in our namespace and in the namespaces within ours. If Linux does not list them, returns
/// only `pid`.
pub fn pids(proc: &Path, pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(proc.join(pid.to_string()).join("status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let pids: Vec<u32> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    if pids.is_empty() { vec![pid] } else { pids }
}

#[cfg(test)]
mod tests {
    use super::super::{DeviceTotals, Listed};
    use super::*;

    fn reading(used: Option<u64>, processes: &[(u32, Option<u64>)]) -> Reading {
        Reading {
            totals: used.map(|mib| DeviceTotals { total: Bytes::gib(8), used: Bytes::mib(mib) }),
            processes: processes
                .iter()
                .map(|&(pid, mib)| Listed { pid, bytes: mib.map(Bytes::mib) })
                .collect(),
            utilisation: None,
        }
    }

    fn ours(process: char, pids: &[u32]) -> OwnProcess<char> {
        OwnProcess { process, pids: pids.to_vec() }
    }

    #[test]
    fn memory_is_ours_another_processes_or_unattributed() {
        let reading = reading(Some(1000), &[(7, Some(300)), (8, Some(200)), (9, Some(100)), (10, None)]);
        let found = attribute(&reading, &[ours('a', &[7]), ours('b', &[10, 1])], |pid| pid == 8);
        assert_eq!(found.ours, [('a', Some(Bytes::mib(300))), ('b', None)]);
        assert_eq!((found.others, found.other_processes), (Bytes::mib(200), 1));
        assert_eq!(found.unattributed, Some(Bytes::mib(500)));
    }

    #[test]
    fn device_without_totals_reports_only_listed_memory() {
        let nothing = attribute(&reading(None, &[(7, Some(1))]), &[ours('a', &[7])], |_| false);
        assert_eq!((nothing.ours.len(), nothing.unattributed), (1, None));
        let foreign = attribute(&reading(None, &[(7, Some(1))]), &[ours('a', &[70])], |_| false);
        assert_eq!((foreign.ours.len(), foreign.unattributed), (0, Some(Bytes::mib(1))));
    }

    #[test]
    fn pid_of_another_namespace_is_mapped_only_if_unambiguous() {
        let all = [ours('a', &[70, 7]), ours('b', &[80, 1]), ours('c', &[90, 1]), ours('d', &[7, 3])];
        let owners = |pid| attribute(&reading(None, &[(pid, Some(1))]), &all, |_| true).ours;
        assert_eq!(owners(7), [('d', Some(Bytes::mib(1)))], "a pid of this namespace comes first");
        assert_eq!(owners(3), [('d', Some(Bytes::mib(1)))]);
        assert_eq!(owners(1), [], "two of our processes have it");
    }

    #[test]
    fn pids_of_a_process_are_read_from_its_status() {
        let root = tempfile::tempdir().expect("folder");
        std::fs::create_dir(root.path().join("12")).expect("made");
        std::fs::write(root.path().join("12/status"), "Name:\tx\nNSpid:\t12\t1\n").expect("written");
        assert_eq!(pids(root.path(), 12), [12, 1]);
        assert_eq!(pids(root.path(), 13), [13], "without a status, a process has only its own pid");
        assert_eq!(pids(Path::new("/proc"), std::process::id()).first(), Some(&std::process::id()));
    }
}
