//! Serves the metrics page to scrapers with a minimal HTTP/1.1 server. Each connection carries one GET request and one
//! answer, and is then closed. The server runs in the main loop of a run and never blocks.
//!
//! Scrapers are untrusted, so the size and duration of a request and the number of connections are limited, and no part
//! of a request is kept.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

/// The maximum number of simultaneous connections. Further clients wait until one of these connections has been closed.
const MAX_CLIENTS: usize = 8;
/// The maximum length of a request with its headers, in bytes.
const MAX_REQUEST: usize = 8 << 10;
/// The maximum time from accepting a connection to sending the last byte of the answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The media type of OpenMetrics.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug, thiserror::Error)]
#[error("serving metrics at {address} (use a free port of an address of this machine)")]
pub struct MetricsError {
    address: SocketAddr,
    source: std::io::Error,
}

struct Client {
    stream: TcpStream,
    /// The time at which the connection is closed even if it is not done.
    until: Instant,
    request: Vec<u8>,
    answer: Vec<u8>,
    written: usize,
}

/// The server: its listening socket and its connections.
pub struct Responder {
    listener: TcpListener,
    address: SocketAddr,
    clients: Vec<Client>,
    /// No connection is accepted before this time.
    accepts_from: Option<Instant>,
}

impl Responder {
    pub fn bind(address: SocketAddr) -> Result<Self, MetricsError> {
        let open = || -> std::io::Result<_> {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let bound = listener.local_addr()?;
            Ok(Self { listener, address: bound, clients: Vec::new(), accepts_from: None })
        };
        open().map_err(|source| MetricsError { address, source })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn descriptors(&self) -> impl Iterator<Item = PollFd<'_>> {
        let room = self.clients.len() < MAX_CLIENTS && self.accepts_from.is_none();
        let listener =
            room.then(|| PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN)).into_iter();
        listener.chain(self.clients.iter().map(|client| {
            let flags = if client.answer.is_empty() { PollFlags::IN } else { PollFlags::OUT };
            PollFd::from_borrowed_fd(client.stream.as_fd(), flags)
        }))
    }

    /// Returns the time at which `serve` must be called even if no descriptor is ready.
    pub fn next_moment(&self) -> Option<Instant> {
        self.clients.iter().map(|client| client.until).chain(self.accepts_from).min()
    }

    /// Serves connections. `page` is called only if a request asks for the metrics.
    pub fn serve(&mut self, now: Instant, page: &dyn Fn() -> Option<String>) {
        if self.accepts_from.is_some_and(|until| until <= now) {
            self.accepts_from = None;
        }
        while self.clients.len() < MAX_CLIENTS && self.accepts_from.is_none() {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // This client has gone, but other clients may be waiting.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(_) => {
                    // For example, no file descriptor is free. Without a pause, the connection that waits to be
                    // accepted would wake the loop again at once.
                    self.accepts_from = Some(now + ACCEPT_PAUSE);
                    break;
                }
            };
            if stream.set_nonblocking(true).is_ok() {
                let until = now + TIMEOUT;
                self.clients.push(Client {
                    stream,
                    until,
                    request: Vec::new(),
                    answer: Vec::new(),
                    written: 0,
                });
            }
        }
        self.clients.retain_mut(|client| now < client.until && client.advance(page));
    }
}

impl Client {
    /// Reads more of the request, or writes more of the answer. Returns false when the connection is done.
    fn advance(&mut self, page: &dyn Fn() -> Option<String>) -> bool {
        if self.answer.is_empty() && !self.read(page) {
            return false;
        }
        while self.written < self.answer.len() {
            match self.stream.write(&self.answer[self.written..]) {
                Ok(0) => return false,
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        self.answer.is_empty()
    }

    fn read(&mut self, page: &dyn Fn() -> Option<String>) -> bool {
        let mut chunk = [0u8; 2048];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return false,
                Ok(count) => self.request.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return false,
            }
            if self.request.windows(4).any(|end| end == b"\r\n\r\n") {
                self.answer = answer(&self.request, page);
                self.request = Vec::new();
                return true;
            }
            if MAX_REQUEST < self.request.len() {
                self.answer = plain("431 Request Header Fields Too Large", "the request is too long\n");
                self.request = Vec::new();
                return true;
            }
        }
    }
}

fn answer(request: &[u8], page: &dyn Fn() -> Option<String>) -> Vec<u8> {
    let line = request.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    if !version.is_some_and(|version| version.starts_with(b"HTTP/1.")) || words.next().is_some() {
        return plain("400 Bad Request", "the request is not valid HTTP/1.1\n");
    }
    if method != Some(b"GET") {
        return plain("405 Method Not Allowed", "only GET is supported\n");
    }
    let path = target.unwrap_or_default().split(|&byte| byte == b'?').next().unwrap_or_default();
    if path != b"/metrics" {
        return plain("404 Not Found", "there is only /metrics\n");
    }
    match page() {
        Some(page) => response("200 OK", CONTENT_TYPE, &page),
        None => plain("500 Internal Server Error", "the metrics cannot be written\n"),
    }
}

fn plain(status: &str, text: &str) -> Vec<u8> {
    response(status, "text/plain; charset=utf-8", text)
}

fn response(status: &str, kind: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(responder: &mut Responder, request: &[u8]) -> String {
        let mut socket = TcpStream::connect(responder.address()).expect("a connection");
        socket.write_all(request).expect("written");
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a time limit");
        let (now, mut answer) = (Instant::now(), Vec::new());
        // Alternate between serving and reading until the answer is complete.
        for _ in 0..500 {
            responder.serve(now, &|| Some("figures\n# EOF\n".to_owned()));
            let mut chunk = [0u8; 4096];
            match socket.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => answer.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        String::from_utf8(answer).expect("text")
    }

    #[test]
    fn get_is_answered_and_everything_else_refused() {
        let mut responder = Responder::bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
        let answer = served(&mut responder, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nfigures\n# EOF\n"),
            "{answer}"
        );
        assert!(answer.contains(CONTENT_TYPE));
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"nonsense\r\n\r\n", "400"),
            (b"GET /metrics HTTP/1.1 x\r\n\r\n", "400"),
            (&[b'x'; MAX_REQUEST + 1], "431"),
        ] {
            let answer = served(&mut responder, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
        }
        assert!(responder.next_moment().is_none(), "no connection stays open");
    }

    #[test]
    fn silent_client_is_dropped_and_the_others_wait() {
        let mut responder = Responder::bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
        let now = Instant::now();
        let sockets: Vec<TcpStream> = (0..MAX_CLIENTS + 2)
            .map(|_| TcpStream::connect(responder.address()).expect("a connection"))
            .collect();
        while responder.clients.len() < MAX_CLIENTS {
            responder.serve(now, &|| None);
        }
        responder.serve(now, &|| None);
        assert_eq!(responder.clients.len(), MAX_CLIENTS);
        responder.serve(now + TIMEOUT, &|| None);
        assert!(responder.clients.len() <= 2);
        drop(sockets);
    }
}
