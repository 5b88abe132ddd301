//! Decides whether the machine or the candidate is to blame for a compiler that failed.

use opt_shared::outcome::Status;
use opt_shared::room::Room;
use opt_shared::units::Bytes;

use crate::toolchain::log::{
    NO_SPACE, blames_the_source, lacking_resource, part_is_missing, part_was_killed,
};

/// The free space that counts as plenty, as a number of files of the largest size that a compiler may write.
const PLENTY_OF_FILES: u64 = 2;
/// The number of free inodes that counts as plenty.
const PLENTY_OF_INODES: u64 = 10_000;

/// Returns the machine's fault that made a compiler exit with an error, or `None` if the candidate is to blame. The
/// text is worded so that it can follow the compiler's name. All of the output is searched, because warnings may
/// precede the fault.
///
/// A source can make a compiler print any line. A reported fault is therefore ignored if there is proof that the
/// candidate is to blame. There are two such proofs: the compiler found a mistake in the source, or the compiler
/// reported a full disk although the disk had plenty of free space whenever it was checked. If the fault is not
/// ignored, the build is repeated.
pub(super) fn fault_of_the_machine(
    log: &str,
    least_room: Option<Room>,
    largest_file: Bytes,
) -> Option<String> {
    if blames_the_source(log) {
        return None;
    }
    if part_was_killed(log) {
        return Some("lost a subprocess, which was ended by a process outside the build".to_owned());
    }
    let Some(resource) = lacking_resource(log) else {
        let why = "could not run one of its own programs (is the compiler installed completely, and does [build] env suit \
                   it?)";
        return part_is_missing(log).then(|| why.to_owned());
    };
    if resource == NO_SPACE && least_room.is_some_and(|room| is_plenty(room, largest_file)) {
        return None;
    }
    Some(format!("lacked a resource of this machine: {resource}"))
}

/// Returns true if there is so much free space that the disk cannot have been full, even if the compiler has just
/// removed a file of the largest allowed size.
pub(super) fn is_plenty(room: Room, largest_file: Bytes) -> bool {
    let plenty = largest_file.saturating_mul(PLENTY_OF_FILES);
    room.disk.is_some_and(|disk| plenty <= disk)
        && room.inodes.is_none_or(|inodes| PLENTY_OF_INODES <= inodes)
}

/// Returns the status of a build whose compiler was ended by a signal. Usually the cause may be a lack of memory or a
/// shutdown, so the build is repeated. But if the build runs the source, the source may have sent any signal to itself,
/// and only SIGKILL is attributed to the machine. The source can cause SIGKILL too (Linux sends it to a process in
/// seccomp's strict mode that makes a forbidden call), so the source is blamed if the repeated build ends in the same
/// way (`Built::unexplained`).
pub(super) fn status_after_signal(runs_source: bool, signal: &str) -> Status {
    if runs_source && signal != "SIGKILL" { Status::CompileError } else { Status::InfraError }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGEST: Bytes = Bytes::gib(1);

    #[test]
    fn candidate_is_blamed_at_once_only_for_signals_that_its_source_alone_can_cause() {
        for (runs_source, signal, expected) in [
            (false, "SIGKILL", Status::InfraError),
            (false, "SIGSEGV", Status::InfraError),
            (true, "SIGKILL", Status::InfraError),
            (true, "SIGSEGV", Status::CompileError),
            (true, "SIGTERM", Status::CompileError),
        ] {
            assert_eq!(status_after_signal(runs_source, signal), expected, "{runs_source}, {signal}");
        }
    }

    fn room(disk: Bytes, inodes: u64) -> Option<Room> {
        Some(Room { disk: Some(disk), inodes: Some(inodes), pids: None })
    }

    #[test]
    fn faults_of_the_machine_are_told_from_mistakes_in_the_source() {
        let full = "k.c:9:1: fatal error: error writing to /s/cc.s: No space left on device";
        let killed = "cc: fatal error: Killed signal terminated program cc1";
        let (tight, ample) = (room(Bytes::mib(3), 1 << 20), room(Bytes::gib(2), 1 << 20));
        for (log, least_room, expected) in [
            (full, tight, Some("No space left on device")),
            (full, None, Some("No space left on device")),
            (full, room(Bytes::gib(2), 9), Some("No space left on device")),
            (full, room(Bytes::gib(2) - Bytes::new(1), 1 << 20), Some("No space left on device")),
            (full, ample, None),
            (
                "cc: fatal error: cannot execute 'cc1': vfork: Resource temporarily unavailable",
                ample,
                Some("Resource"),
            ),
            (killed, ample, Some("lost a subprocess")),
            (
                "cc: fatal error: cannot execute 'cc1': execvp: No such file or directory",
                ample,
                Some("could not run one of its own programs"),
            ),
            (
                "k.c:1:2: error: expected `;`\ncc: fatal error: Killed signal terminated program cc1",
                tight,
                None,
            ),
            ("k.c:1:2: error: #error Fatal error: No space left on device", tight, None),
            ("k.c:1:2: error: expected `;`", tight, None),
        ] {
            let found = fault_of_the_machine(log, least_room, LARGEST);
            assert_eq!(found.is_some(), expected.is_some(), "{log} with {least_room:?}: {found:?}");
            assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()), "{log}");
        }
    }
}
