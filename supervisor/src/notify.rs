//! The word to a service manager that the run is ready, or ending: systemd's notify protocol, one datagram.
//!
//! Nobody is told where nobody asked (`NOTIFY_SOCKET`), and that nobody listens is no error.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

pub fn ready(status: &str) {
    tell(&format!("READY=1\nSTATUS={}\nMAINPID={}\n", one_line(status), std::process::id()));
}

pub fn stopping() {
    tell("STOPPING=1\n");
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

fn tell(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let name = name.as_bytes();
    let address = match name.strip_prefix(b"@") {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name),
        None => SocketAddr::from_pathname(Path::new(std::ffi::OsStr::from_bytes(name))),
    };
    let sent = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not hold the run up.
        socket.set_nonblocking(true)?;
        socket.send_to_addr(state.as_bytes(), &address)
    });
    if let Err(error) = sent {
        tracing::warn!("could not notify the service manager: {error}");
    }
}
