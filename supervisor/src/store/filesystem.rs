//! Chooses a journal mode of SQLite that works on the file system of a folder.
//!
//! SQLite's write-ahead log needs memory that is shared by the processes that have the database open. Network file
//! systems may not provide it, and the log could then corrupt the database. DELETE mode is slower, but needs no shared
//! memory.

use std::path::Path;

/// The mechanism by which the database survives a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Journal {
    /// The write-ahead log. Readers do not block the writer. Apart from checkpoints, a synced commit costs one sync,
    /// and any other commit costs none.
    WriteAhead,
    /// SQLite's DELETE mode. Each commit costs several syncs, but no shared memory is needed.
    Delete,
}

/// The types (`f_type`) of file systems that are or may be remote, from `statfs(2)` and Linux's `magic.h`. FUSE may be
/// local or remote. It is listed because DELETE costs little, whereas WAL could lose the run.
const REMOTE: &[(u32, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "kAFS"),
    (0x7375_7245, "Coda"),
    (0x00c3_6400, "Ceph"),
    (0x0102_1997, "9P"),
    (0x6573_5546, "FUSE"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x7461_636f, "OCFS2"),
    (0x0116_1970, "GFS2"),
    (0x786f_4256, "VirtualBox shared folder"),
    (0xbacb_acbc, "VMware shared folder"),
];

impl Journal {
    pub(super) const fn pragma(self) -> &'static str {
        match self {
            Self::WriteAhead => "wal",
            Self::Delete => "delete",
        }
    }
}

/// Chooses the journal for a folder. If the choice is not `WriteAhead`, the text gives the reason. If the file system
/// cannot be determined, the choice is `Delete`.
pub(super) fn journal_for(folder: &Path) -> (Journal, Option<String>) {
    match rustix::fs::statfs(folder) {
        Ok(filesystem) => {
            // On some targets `f_type` is signed or has another width; the magic numbers have 32 bits.
            #[expect(clippy::cast_possible_truncation, reason = "the low 32 bits are the magic number")]
            #[expect(clippy::cast_sign_loss, reason = "only the bit pattern matters")]
            journal_for_magic(filesystem.f_type as u64 as u32)
        }
        Err(error) => (
            Journal::Delete,
            Some(format!(
                "the run database is kept without a write-ahead log, because the file system is unknown ({error})"
            )),
        ),
    }
}

fn journal_for_magic(magic: u32) -> (Journal, Option<String>) {
    match REMOTE.iter().find(|(known, _)| *known == magic) {
        Some((_, name)) => (
            Journal::Delete,
            Some(format!(
                "the run database is kept without a write-ahead log, because the run folder is on {name} (slower, but \
                 just as safe)"
            )),
        ),
        None => (Journal::WriteAhead, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_get_no_write_ahead_log() {
        const EXT4: u32 = 0xef53;
        const TMPFS: u32 = 0x0102_1994;
        const XFS: u32 = 0x5846_5342;
        for local in [EXT4, TMPFS, XFS] {
            assert_eq!(journal_for_magic(local), (Journal::WriteAhead, None));
        }
        for &(magic, name) in REMOTE {
            let (journal, note) = journal_for_magic(magic);
            assert_eq!(journal, Journal::Delete, "{name}");
            assert!(note.is_some_and(|note| note.contains(name)), "{name}");
        }
    }

    #[test]
    fn missing_folder_gets_the_safe_journal() {
        let (journal, note) = journal_for(Path::new("/nonexistent/folder"));
        assert_eq!(journal, Journal::Delete);
        assert!(note.is_some());
    }
}
