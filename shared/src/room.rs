//! Measures how much room a machine has for more files and processes.

use std::io;
use std::path::Path;

use rustix::fs::statvfs;
use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// The room at one moment. A field is `None` if there is no limit, or if the number was not read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// The free space on a disk, without the part that only root may use.
    pub disk: Option<Bytes>,
    /// The number of files that can still be created on the disk.
    pub inodes: Option<u64>,
    /// The number of processes and threads that can still be started.
    pub pids: Option<u64>,
}

impl Room {
    /// Reads the room on the disk that contains `path`, which must exist. Blocks for as long as the disk does not
    /// respond.
    pub fn on_disk_of(path: &Path) -> io::Result<Self> {
        let disk = statvfs(path)?;
        Ok(Self {
            // File systems that cannot tell their size report 0.
            disk: (disk.f_blocks != 0).then_some(Bytes::new(disk.f_frsize).saturating_mul(disk.f_bavail)),
            // File systems that allocate inodes as needed report 0.
            inodes: (disk.f_files != 0).then_some(disk.f_favail),
            pids: None,
        })
    }

    /// Returns the smaller value of each field. `None` is treated as larger than any number.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.into_iter().chain(other).min()
        }
        Self {
            disk: least(self.disk, other.disk),
            inodes: least(self.inodes, other.inodes),
            pids: least(self.pids, other.pids),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_read_from_the_disk_of_a_folder() {
        let room = Room::on_disk_of(Path::new("/proc")).expect("read");
        assert_eq!(room, Room::default(), "/proc has no size");
        let folder = std::env::temp_dir();
        assert!(Room::on_disk_of(&folder).expect("read").disk.is_some());
        assert!(Room::on_disk_of(&folder.join("no such folder")).is_err());
    }

    #[test]
    fn least_room_is_the_lesser_of_each_kind() {
        let room = |disk, inodes| Room { disk, inodes, pids: None };
        let (one, other) = (room(Some(Bytes::mib(3)), None), room(Some(Bytes::mib(2)), Some(7)));
        assert_eq!(one.least(other), room(Some(Bytes::mib(2)), Some(7)));
        assert_eq!(other.least(one), one.least(other));
    }
}
