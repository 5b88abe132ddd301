//! The server of the control socket. It accepts, reads, answers and closes connections, in steps of bounded length.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use opt_shared::wait::{readable, timespec};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with, sockopt,
};
use rustix::process::Uid;

use super::connection::{CloseReason, Connection};
use super::message::{self, Notification};
use super::methods::Request;
use super::refusal::{Code, Refusal, Reply};
use super::socket::{RunSocket, SocketError};

/// The maximum number of connections. A client needs one or two.
const MAX_CONNECTIONS: usize = 32;
/// The maximum number of connections accepted or refused in one step.
const MAX_ACCEPTED_PER_STEP: usize = 64;
/// The number of connections that Linux keeps waiting until they are accepted.
const BACKLOG: i32 = 128;
/// How long no connection is accepted after the process has run out of descriptors or memory. Without this pause, the
/// connection that is waiting would wake the loop again at once.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// The maximum number of bytes that are buffered for all connections, in both directions. The buffers are part of the
/// supervisor's own memory, which should be at most 20 MiB.
const BUDGET: usize = 4 << 20;
/// The maximum number of requests of one connection that are waiting for an answer.
const MAX_PENDING: u32 = 64;
/// A step reads lines in rounds, and takes one line from each connection in a round. After this number of lines, a step
/// begins no further round, so that the run's own events do not have to wait long.
const LINES_PER_STEP: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("preparing the folder of the control socket")]
    Socket(#[from] SocketError),
    #[error("{action} the control socket {path}")]
    Io { action: &'static str, path: PathBuf, source: Errno },
}

/// Identifies a request and the connection to answer it on. If the connection has been closed, the answer is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    connection: u64,
    id: Option<Box<str>>,
}

/// The listening socket of a run, and its connections.
pub struct Server {
    listener: OwnedFd,
    socket: RunSocket,
    connections: BTreeMap<u64, Connection>,
    /// The number of the next connection.
    next: u64,
    /// No connection is accepted before this time.
    accepts_from: Option<Instant>,
    /// The number of connections that were closed at a limit or because of an error. It is logged.
    closed: u64,
}

impl Server {
    /// Listens on the socket's path, where `RunSocket::take` has removed old files, and creates the links to the
    /// socket.
    pub fn open(socket: RunSocket) -> Result<Self, ControlError> {
        let path = socket.path().to_owned();
        let fail = |action| {
            let path = path.clone();
            move |source| ControlError::Io { action, path, source }
        };
        let address = SocketAddrUnix::new(&path).map_err(fail("naming"))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(fail("creating"))?;
        bind(&listener, &address).map_err(fail("binding"))?;
        // Clients cannot connect before `listen`, so no client can use the socket while it has its old mode.
        rustix::fs::chmod(&path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .map_err(fail("restricting access to"))?;
        listen(&listener, BACKLOG).map_err(fail("listening on"))?;
        socket.publish()?;
        Ok(Self { listener, socket, connections: BTreeMap::new(), next: 1, accepts_from: None, closed: 0 })
    }

    pub fn path(&self) -> &std::path::Path {
        self.socket.path()
    }

    /// Returns the descriptors for the loop to poll.
    pub fn descriptors(&self) -> impl Iterator<Item = PollFd<'_>> {
        let listener = self.accepts_from.is_none().then(|| self.listener.as_fd());
        listener
            .into_iter()
            .map(|listener| PollFd::from_borrowed_fd(listener, PollFlags::IN))
            .chain(self.connections.values().filter(|it| !it.has_hung_up()).map(poll_fd))
    }

    /// Returns the next time at which `serve` must be called even if nothing arrives.
    pub fn next_moment(&self) -> Option<Instant> {
        self.connections.values().filter_map(Connection::next_moment).chain(self.accepts_from).min()
    }

    pub fn has_listeners(&self) -> bool {
        self.connections.values().any(|it| it.listens)
    }

    /// Does one bounded step of work. Returns the requests that the caller must answer.
    pub fn serve(&mut self, now: Instant) -> Vec<(Token, Request)> {
        for (id, seen) in self.ready() {
            let Some(it) = self.connections.get_mut(&id) else { continue };
            if seen.intersects(PollFlags::HUP | PollFlags::ERR) {
                it.mark_hung_up();
            }
            let written = if seen.contains(PollFlags::OUT) { it.flush(now) } else { Ok(()) };
            let readable = seen.contains(PollFlags::IN) || it.has_hung_up();
            let moved =
                written.and_then(|()| if readable && it.wants_to_read() { it.fill(now) } else { Ok(()) });
            if let Err(reason) = moved {
                self.close_connection(id, reason, now);
            }
        }
        let requests = self.requests(now);
        let late: Vec<(u64, CloseReason)> =
            self.connections.iter().filter_map(|(&id, it)| Some((id, it.overdue(now)?))).collect();
        for (id, reason) in late {
            self.close_connection(id, reason, now);
        }
        self.connections.retain(|_, it| !it.is_over());
        self.enforce_budget(now);
        self.accept(now);
        requests
    }

    /// Returns the connections that are ready, with the events for which they are ready. Connections that have hung up
    /// are always included.
    fn ready(&self) -> Vec<(u64, PollFlags)> {
        if self.connections.is_empty() {
            return Vec::new();
        }
        let mut polled: Vec<PollFd<'_>> = self.connections.values().map(poll_fd).collect();
        if poll(&mut polled, Some(&timespec(Duration::ZERO))).is_err() {
            return Vec::new();
        }
        self.connections
            .keys()
            .zip(&polled)
            .map(|(&id, it)| (id, it.revents()))
            .filter(|(_, seen)| !seen.is_empty())
            .collect()
    }

    /// Takes one line from each connection in turn, so that no connection can keep the others from being served.
    fn requests(&mut self, now: Instant) -> Vec<(Token, Request)> {
        let mut requests = Vec::new();
        let mut served = 0;
        let mut found_a_line = true;
        while found_a_line && served < LINES_PER_STEP {
            found_a_line = false;
            let ids: Vec<u64> = self.connections.keys().copied().collect();
            for id in ids {
                let Some(line) = self.connections.get_mut(&id).and_then(|it| it.next_line(now)) else {
                    continue;
                };
                served += 1;
                found_a_line = true;
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                let parsed = message::parse(&line);
                let token = Token { connection: id, id: parsed.id };
                match parsed.request {
                    Ok(Request::Events) => {
                        if let Some(it) = self.connections.get_mut(&id) {
                            it.listens = true;
                        }
                        self.write(&token, &Ok(serde_json::json!({ "outcome": "done" })), now);
                    }
                    Ok(request) => {
                        let Some(it) = self.connections.get_mut(&id) else { continue };
                        if MAX_PENDING <= it.pending {
                            let why = format!("{MAX_PENDING} requests are already waiting for answers");
                            self.write(&token, &Err(Refusal::new(Code::Busy, why)), now);
                            continue;
                        }
                        it.pending += 1;
                        requests.push((token, request));
                    }
                    Err(refusal) => self.write(&token, &Err(refusal), now),
                }
            }
        }
        requests
    }

    /// Answers a request. Every request that `serve` returned must be answered exactly once.
    pub fn answer(&mut self, token: &Token, reply: &Reply, now: Instant) {
        if let Some(it) = self.connections.get_mut(&token.connection) {
            it.pending = it.pending.saturating_sub(1);
            self.write(token, reply, now);
        }
    }

    fn write(&mut self, token: &Token, reply: &Reply, now: Instant) {
        let Some(id) = &token.id else { return };
        let line = message::format_answer(id, reply);
        if let Some(it) = self.connections.get_mut(&token.connection)
            && let Err(reason) = it.queue(&line, now)
        {
            self.close_connection(token.connection, reason, now);
        }
        self.enforce_budget(now);
    }

    /// Sends an event to all connections that asked for events.
    pub fn broadcast(&mut self, notification: &Notification, now: Instant) {
        let line = message::format_event(notification);
        let listeners: Vec<u64> =
            self.connections.iter().filter(|(_, it)| it.listens).map(|(&id, _)| id).collect();
        for id in listeners {
            let queued = self.connections.get_mut(&id).map_or(Ok(()), |it| it.queue(&line, now));
            if let Err(reason) = queued {
                self.close_connection(id, reason, now);
            }
        }
        self.enforce_budget(now);
    }

    /// Returns whether the connection on which the answer will be sent still exists.
    pub fn is_connected(&self, token: &Token) -> bool {
        self.connections.contains_key(&token.connection)
    }

    fn close_connection(&mut self, id: u64, reason: CloseReason, now: Instant) {
        if reason == CloseReason::LineTooLong
            && let Some(it) = self.connections.get_mut(&id)
        {
            let why = format!("a line can have at most {} bytes", super::MAX_LINE);
            let line = message::format_answer("null", &Err(Refusal::new(Code::LineTooLong, why)));
            it.close_when_sent();
            if it.queue(&line, now).is_ok() {
                return;
            }
        }
        self.connections.remove(&id);
        if reason != CloseReason::Left {
            self.closed += 1;
            // Clients can cause closed connections arbitrarily often, so a line is logged only when the count is a
            // power of two.
            if self.closed.is_power_of_two() {
                tracing::info!(
                    "control socket: {} connections were closed at a limit or after an error (latest reason: {reason:?})",
                    self.closed
                );
            }
        }
    }

    /// Closes the connections with the largest buffers until all buffers together are within the limit.
    fn enforce_budget(&mut self, now: Instant) {
        while BUDGET < self.connections.values().map(Connection::buffered).sum() {
            let largest = self.connections.iter().max_by_key(|(_, it)| it.buffered()).map(|(&id, _)| id);
            let Some(id) = largest else { return };
            self.close_connection(id, CloseReason::DoesNotRead, now);
        }
    }

    fn accept(&mut self, now: Instant) {
        if self.accepts_from.is_some_and(|until| now < until) {
            return;
        }
        self.accepts_from = None;
        // Polling is cheaper than an attempt to accept, which creates a socket first.
        if !readable(&self.listener, Duration::ZERO).unwrap_or(true) {
            return;
        }
        for _ in 0..MAX_ACCEPTED_PER_STEP {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    self.accepts_from = Some(now + ACCEPT_PAUSE);
                    return;
                }
                Err(_) => return,
            };
            let mut connection = Connection::new(socket, now);
            if let Err(refusal) = check_peer(connection.descriptor()) {
                send_refusal(&mut connection, refusal, now);
            } else if MAX_CONNECTIONS <= self.connections.len() {
                let why = format!("there are already {MAX_CONNECTIONS} connections: try again later");
                send_refusal(&mut connection, Refusal::new(Code::Busy, why), now);
            } else {
                self.connections.insert(self.next, connection);
                self.next += 1;
            }
        }
    }

    /// Sends the remaining answers to clients that read them within `timeout`, and then closes all connections.
    pub fn close(mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        loop {
            let now = Instant::now();
            self.connections.retain(|_, it| it.wants_to_write() && it.flush(now).is_ok() && 0 < it.queued());
            if self.connections.is_empty() || deadline <= now {
                return;
            }
            let mut polled: Vec<PollFd<'_>> = self.connections.values().map(poll_fd).collect();
            let time_left = deadline.saturating_duration_since(now);
            let _ = poll(&mut polled, Some(&timespec(time_left)));
        }
    }
}

fn poll_fd(connection: &Connection) -> PollFd<'_> {
    let mut flags = PollFlags::empty();
    if connection.wants_to_read() {
        flags |= PollFlags::IN;
    }
    if connection.wants_to_write() {
        flags |= PollFlags::OUT;
    }
    PollFd::from_borrowed_fd(connection.descriptor(), flags)
}

fn send_refusal(connection: &mut Connection, refusal: Refusal, now: Instant) {
    // The message fits into the buffer of any new socket. If it ever did not, the client would only see that the
    // connection is closed.
    let _ = connection.queue(&message::format_answer("null", &Err(refusal)), now);
}

/// Returns whether a user may use the socket. Only the run's user and root may.
pub(super) fn is_admitted(peer: Uid, own: Uid) -> bool {
    peer == own || peer.is_root()
}

/// Asks Linux which user is at the other end, and refuses all but the run's user and root.
fn check_peer(socket: BorrowedFd<'_>) -> Result<(), Refusal> {
    let forbidden = |why: String| Refusal::new(Code::Forbidden, why);
    let peer = sockopt::socket_peercred(socket)
        .map_err(|errno| forbidden(format!("cannot determine your user: {errno}")))?;
    if is_admitted(peer.uid, rustix::process::geteuid()) {
        return Ok(());
    }
    Err(forbidden(format!("this run belongs to another user (you are uid {})", peer.uid.as_raw())))
}
