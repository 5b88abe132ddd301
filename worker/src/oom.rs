//! Sets the order in which Linux kills processes when the machine runs out of memory: runners and compilers first, then
//! workers, and the supervisor last.

use std::io;

/// The `oom_score_adj` of a sandboxed process, which is the highest possible value.
pub(crate) const SANDBOXED: u16 = 1000;
pub(crate) const WORKER: u16 = 500;

/// Raises this process's own score, unless the score is already higher. Call this before the process is made not
/// dumpable, because its files in /proc then belong to root.
pub(crate) fn raise_score(score: u16) -> io::Result<()> {
    const OWN: &str = "/proc/self/oom_score_adj";
    let present = std::fs::read_to_string(OWN)?.trim().parse().unwrap_or(i32::MIN);
    if present < i32::from(score) { std::fs::write(OWN, score.to_string()) } else { Ok(()) }
}
