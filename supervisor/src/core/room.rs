//! Holds builds back while the machine lacks room for their files and processes. Other steps continue, because they
//! create few files and processes.
//!
//! The driver reads the available room regularly. A build that ends without a verdict also reports a reading, because
//! the room may have been short only during the build.

use std::fmt;
use std::time::Duration;

use opt_shared::room::Room;
use opt_shared::units::Bytes;

use super::Core;
use super::event::{Moment, Stage};
use super::worker::Lease;

/// How long a run that has nothing else to do waits for room. It is long enough for a user to notice. Then the run
/// ends, and can be resumed.
const ROOM_TIMEOUT: Duration = Duration::from_secs(3600);
/// The number of times that a candidate's build may fail during a shortage of room before such failures count as
/// losses. A unit's second pass counts from zero. Without a limit, a build that fills the disk itself would be repeated
/// forever.
const MAX_WITHOUT_ROOM: u32 = 3;

/// The amounts of a resource at which builds are held and released.
struct Limit {
    /// Builds are held when a regular reading finds less than this.
    least: u64,
    /// Builds that are held may start again when there is at least this much. This amount is larger than `least`, so
    /// that builds are not held and released in quick succession.
    enough: u64,
}

/// Free disk space, in bytes. Most kernels need far less. A build that needs more can still fail.
const DISK: Limit = Limit { least: 32 << 20, enough: 64 << 20 };
/// The number of files that can still be created.
const INODES: Limit = Limit { least: 128, enough: 256 };
/// The number of processes and threads that can still be started. A compiler consists of a few processes, and the
/// workers and runners of a run have threads.
const PIDS: Limit = Limit { least: 32, enough: 64 };

/// A resource that is too scarce for builds. `needed` is the amount that a run needs to start or, if builds are
/// waiting, the amount that they need to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    Disk { free: Bytes, needed: Bytes },
    Inodes { free: u64, needed: u64 },
    Pids { free: u64, needed: u64 },
}

impl Shortage {
    pub fn of(room: &Room) -> Option<Self> {
        Self::below(room, |limit| limit.least, |limit| limit.least)
    }

    /// Returns the first resource whose amount is below the mark. `needed` is the amount to report.
    fn below(room: &Room, mark: fn(&Limit) -> u64, needed: fn(&Limit) -> u64) -> Option<Self> {
        let short = |free: Option<u64>, limit: &Limit| free.filter(|&free| free < mark(limit));
        if let Some(free) = short(room.disk.map(Bytes::get), &DISK) {
            return Some(Self::Disk { free: Bytes::new(free), needed: Bytes::new(needed(&DISK)) });
        }
        if let Some(free) = short(room.inodes, &INODES) {
            return Some(Self::Inodes { free, needed: needed(&INODES) });
        }
        short(room.pids, &PIDS).map(|free| Self::Pids { free, needed: needed(&PIDS) })
    }

    fn numbers(&self) -> Vec<(&'static str, u64)> {
        match *self {
            Self::Disk { free, needed } => vec![("free_bytes", free.get()), ("needed_bytes", needed.get())],
            Self::Inodes { free, needed } => vec![("free_inodes", free), ("needed_inodes", needed)],
            Self::Pids { free, needed } => vec![("free_pids", free), ("needed_pids", needed)],
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk { free, needed } => {
                write!(
                    f,
                    "{free} are free on the disk of the run's folder, and builds need {needed} (delete files to make space)"
                )
            }
            Self::Inodes { free, needed } => write!(
                f,
                "{free} more files can be created on the disk of the run's folder, and builds need {needed} (remove \
                 files, because the file system is short of inodes)"
            ),
            Self::Pids { free, needed } => write!(
                f,
                "{free} more processes can be started, and builds need {needed} (end processes, or raise the limit of \
                 the user (`ulimit -u`), of the control group (`pids.max`) or of the machine)"
            ),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoomForBuilds {
    pub(super) latest: Room,
    pub(super) short: Option<Short>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Short {
    pub(super) since: Moment,
    pub(super) what: Shortage,
    /// Whether the policy log already says that a build has to wait.
    reported: bool,
    /// The time since which the run has had nothing to do except builds that wait for room.
    only_builds_since: Option<Moment>,
}

impl Core {
    pub(super) fn room_read(&mut self, now: Moment, room: Room) {
        self.room.latest = room;
        let mark: fn(&Limit) -> u64 =
            if self.room.short.is_some() { |limit| limit.enough } else { |limit| limit.least };
        self.set_shortage(now, Shortage::below(&room, mark, |limit| limit.enough));
    }

    /// Holds builds if the room that a failed build reports is below `enough`. Comparing it with `least` would miss a
    /// shortage, because the build's own files have been deleted by now, or soon will be. The number of processes is
    /// ignored, because only regular readings show how many are left.
    pub(super) fn room_read_by_a_build(&mut self, now: Moment, disk: Room) {
        let room = Room { pids: None, ..disk };
        if let Some(what) = Shortage::below(&room, |limit| limit.enough, |limit| limit.enough) {
            self.set_shortage(now, Some(what));
        }
    }

    fn set_shortage(&mut self, now: Moment, shortage: Option<Shortage>) {
        match (shortage, &mut self.room.short) {
            (Some(what), Some(short)) => short.what = what,
            (Some(what), None) => {
                self.room.short = Some(Short { since: now, what, reported: false, only_builds_since: None });
            }
            (None, Some(short)) => {
                let (reported, since) = (short.reported, short.since);
                self.room.short = None;
                if reported {
                    let ms = u64::try_from(now.saturating_sub(since).as_millis()).unwrap_or(u64::MAX);
                    let text = "there is room for builds again".to_owned();
                    self.policy("room_back", text, vec![("short_ms", ms)]);
                }
            }
            (None, None) => {}
        }
    }

    pub(super) fn lacks_room(&self) -> bool {
        self.room.short.is_some()
    }

    /// Returns the shortage if a build waits because of it.
    pub(super) fn held_builds(&self) -> Option<Short> {
        let short = self.room.short?;
        // Within a turn, builds are served first, so looking at the first waiting unit of each job is enough.
        let first = self.jobs.iter().filter_map(|job| job.roster.waiting(None).next());
        first.map(|id| self.unit(id).step().stage).any(|stage| stage == Stage::Build).then_some(short)
    }

    /// Records whether builds wait for room. Reports this once, and starts the timeout while nothing else is running.
    /// `is_granting` is false during a pause or a stall, when nothing starts in any case.
    pub(super) fn note_held_builds(&mut self, now: Moment, is_granting: bool) {
        let held = is_granting && self.held_builds().is_some();
        let at_work = self.workers.values().any(|it| it.lease().is_some());
        let Some(short) = &mut self.room.short else { return };
        short.only_builds_since = (held && !at_work).then(|| short.only_builds_since.unwrap_or(now));
        if held && !short.reported {
            short.reported = true;
            let what = short.what;
            let text = format!("no build starts until there is more room: {what}");
            self.policy("room_short", text, what.numbers());
        }
    }

    /// Counts an attempt that was a build and failed during a shortage of room. Returns true if the build is repeated
    /// without counting as a loss.
    pub(super) fn excuse_for_lack_of_room(&mut self, lease: &Lease) -> bool {
        let applies = self.lacks_room() && lease.order.stage == Stage::Build;
        applies
            && self.change(lease.order.unit, |unit| {
                unit.losses().without_room += 1;
                unit.losses().without_room <= MAX_WITHOUT_ROOM
            })
    }

    /// Returns the time at which the run stops waiting for room.
    pub(super) fn room_timeout_at(&self) -> Option<Moment> {
        Some(self.room.short?.only_builds_since? + ROOM_TIMEOUT)
    }

    pub(super) fn room_overdue(&mut self, now: Moment) {
        let Some(short) = self.room.short else { return };
        if self.ending == super::Ending::No && self.room_timeout_at().is_some_and(|at| at <= now) {
            let why = format!("there was no room for builds for {ROOM_TIMEOUT:?}: {}", short.what);
            self.stop_for_the_host(now, why, short.what.numbers());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortage_below_the_least_names_the_resource() {
        let plenty = Room { disk: Some(Bytes::gib(1)), inodes: Some(1 << 20), pids: Some(1 << 15) };
        for (room, says) in [
            (plenty, None),
            (Room::default(), None),
            (Room { disk: Some(Bytes::mib(32)), inodes: Some(128), pids: Some(32) }, None),
            (
                Room { disk: Some(Bytes::mib(31)), ..plenty },
                Some(
                    "31.0 MiB are free on the disk of the run's folder, and builds need 32.0 MiB (delete files to make space)",
                ),
            ),
            (Room { inodes: Some(127), ..plenty }, Some("127 more files can be created")),
            (Room { pids: Some(0), ..plenty }, Some("0 more processes can be started")),
        ] {
            let found = Shortage::of(&room).map(|it| it.to_string());
            let agrees = match (&found, says) {
                (Some(found), Some(says)) => found.starts_with(says),
                (found, says) => found.is_none() && says.is_none(),
            };
            assert!(agrees, "{room:?}: {found:?}");
        }
    }

    #[test]
    fn policy_rows_of_a_shortage_have_its_numbers() {
        for (room, numbers) in [
            (
                Room { disk: Some(Bytes::mib(31)), ..Room::default() },
                [("free_bytes", 31 << 20), ("needed_bytes", 32 << 20)],
            ),
            (Room { inodes: Some(127), ..Room::default() }, [("free_inodes", 127), ("needed_inodes", 128)]),
            (Room { pids: Some(31), ..Room::default() }, [("free_pids", 31), ("needed_pids", 32)]),
        ] {
            assert_eq!(Shortage::of(&room).map(|it| it.numbers()), Some(numbers.to_vec()));
        }
    }
}
