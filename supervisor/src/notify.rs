//! Notifies a service manager when the run is ready, alive or stopping. Each notice is one datagram of systemd's notify
//! protocol.
//!
//! Nothing is sent if `NOTIFY_SOCKET` is not set. If sending fails, a warning is logged and the run continues.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

/// Tells the manager that the run is ready. `status` is shown to users of the manager.
pub fn ready(status: &str) {
    send(&format!("READY=1\nSTATUS={}\nMAINPID={}\n", one_line(status), std::process::id()));
}

/// Tells the manager that the run is about to end.
pub fn stopping() {
    send("STOPPING=1\n");
}

/// Tells the manager's watchdog that the run is alive.
pub fn alive() {
    send("WATCHDOG=1\n");
}

/// Returns the longest interval between two calls of `alive` that the manager accepts. `None` if the manager has no
/// watchdog for this process (`WATCHDOG_USEC`, `WATCHDOG_PID`).
pub fn watchdog_every() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    watchdog_interval(number("WATCHDOG_USEC"), number("WATCHDOG_PID"))
}

fn watchdog_interval(micros: Option<u64>, watched_pid: Option<u64>) -> Option<Duration> {
    let ours = watched_pid.is_none_or(|pid| pid == u64::from(std::process::id()));
    micros.filter(|&micros| ours && 0 < micros).map(Duration::from_micros)
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

fn send(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let name = name.as_bytes();
    let address = match name.strip_prefix(b"@") {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name),
        None => SocketAddr::from_pathname(Path::new(std::ffi::OsStr::from_bytes(name))),
    };
    let sent = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read its socket must not block the run.
        socket.set_nonblocking(true)?;
        socket.send_to_addr(state.as_bytes(), &address)
    });
    if let Err(error) = sent {
        tracing::warn!("could not notify the service manager: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_is_ignored_if_it_is_for_another_process() {
        let (second, own) = (Some(Duration::from_secs(1)), Some(u64::from(std::process::id())));
        assert_eq!(watchdog_interval(Some(1_000_000), None), second);
        assert_eq!(watchdog_interval(Some(1_000_000), own), second);
        assert_eq!(watchdog_interval(Some(1_000_000), Some(1)), None, "another process of the unit");
        assert_eq!(watchdog_interval(Some(0), own), None);
        assert_eq!(watchdog_interval(None, own), None);
    }
}
