//! Reads the text files below `/proc` that describe a process.

use std::io;

/// Returns the text of `/proc/PID/NAME`. `stat` and `status` contain the process's name, which the process can choose.
/// Bytes that are not UTF-8 are replaced, because otherwise a process could make these files unreadable by its choice
/// of name.
pub fn read(pid: u32, name: &str) -> io::Result<String> {
    std::fs::read(format!("/proc/{pid}/{name}")).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_is_not_utf_8_hides_nothing() {
        let own = std::thread::spawn(|| {
            rustix::thread::set_name(c"\xff\xfe) R 1").expect("renamed");
            let thread = rustix::thread::gettid().as_raw_pid().unsigned_abs();
            (read(thread, "stat").expect("stat"), read(thread, "status").expect("status"))
        });
        let (stat, status) = own.join().expect("the thread ends");
        let (_, fields) = stat.rsplit_once(") ").expect("a name in parentheses");
        assert!(20 < fields.split_ascii_whitespace().count(), "{stat}");
        assert!(status.contains("\nTracerPid:"), "{status}");
        assert!(read(u32::MAX, "stat").is_err());
    }
}
