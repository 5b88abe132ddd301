//! Handles one connection to the control socket: its unread input, its unsent output, and its limits. The limits on all
//! connections together are enforced by the server.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::MAX_LINE;

/// The maximum number of bytes of answers and events that the client has not read yet. The record of a candidate is
/// smaller than this.
pub(super) const MAX_QUEUED: usize = 512 << 10;
/// The timeout for receiving a line, counted from its first byte, and for the pause between two reads by the client.
pub(super) const LINE_TIME: Duration = Duration::from_secs(10);
/// The timeout of a connection that has no request, event stream or pending result.
pub(super) const IDLE_TIME: Duration = Duration::from_secs(60);
/// The number of requests allowed per second.
const LINES_PER_SECOND: f64 = 200.0;
/// The number of requests allowed in one burst.
const MAX_BURST_LINES: f64 = 100.0;
/// The number of bytes that are read at a time. It is small, so that serving one connection takes little time.
const CHUNK: usize = 16 << 10;

/// The reason for closing a connection. It is not an error of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// The client has closed its end, or it has received everything before a planned close.
    Left,
    /// Reading or writing failed.
    Broken,
    LineTooLong,
    TooSlow,
    DoesNotRead,
    Idle,
}

pub(super) struct Connection {
    socket: OwnedFd,
    input: Vec<u8>,
    /// The time at which the first byte of the next line arrived, or the time at which the previous line was served.
    line_began: Option<Instant>,
    output: VecDeque<u8>,
    /// The last time at which the client read something or the queue was empty.
    output_moved: Instant,
    last_request: Instant,
    /// The number of requests that the rate limit still allowed at `refilled`.
    allowance: f64,
    /// The time at which `allowance` was last increased.
    refilled: Instant,
    /// Whether the client has asked for events.
    pub(super) listens: bool,
    /// The number of requests that have not been answered yet.
    pub(super) pending: u32,
    /// Whether the connection is closed once its output has been sent.
    closing: bool,
    /// Whether the client has stopped sending.
    ended: bool,
    /// Whether the client has also stopped reading. Its requests are still carried out, but their answers are dropped.
    hung_up: bool,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, now: Instant) -> Self {
        Self {
            socket,
            input: Vec::new(),
            line_began: None,
            output: VecDeque::new(),
            output_moved: now,
            last_request: now,
            allowance: MAX_BURST_LINES,
            refilled: now,
            listens: false,
            pending: 0,
            closing: false,
            ended: false,
            hung_up: false,
        }
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn buffered(&self) -> usize {
        self.input.capacity() + self.output.capacity()
    }

    pub(super) fn queued(&self) -> usize {
        self.output.len()
    }

    pub(super) fn wants_to_read(&self) -> bool {
        // If the rate limit delays a complete line, no more bytes are read from the socket until the line has been
        // served.
        !self.closing && !self.ended && !self.has_line() && self.output.len() < MAX_QUEUED / 2
    }

    pub(super) fn wants_to_write(&self) -> bool {
        !self.output.is_empty()
    }

    /// Returns whether this connection can be closed.
    pub(super) fn is_over(&self) -> bool {
        let answered = self.output.is_empty() && self.pending == 0 && !self.listens;
        self.ended && !self.has_line() && (answered || self.hung_up)
    }

    /// Records that the client has hung up. The loop then no longer polls the connection, because every poll would
    /// report the hang-up.
    pub(super) fn mark_hung_up(&mut self) {
        self.hung_up = true;
    }

    pub(super) fn has_hung_up(&self) -> bool {
        self.hung_up
    }

    fn has_line(&self) -> bool {
        self.input.contains(&b'\n')
    }

    /// Reads the bytes that have arrived, up to a limit.
    pub(super) fn fill(&mut self, now: Instant) -> Result<(), CloseReason> {
        let mut chunk = [0u8; CHUNK];
        let space = (MAX_LINE + 1).saturating_sub(self.input.len()).min(CHUNK);
        match recv(&self.socket, &mut chunk[..space], RecvFlags::DONTWAIT) {
            Ok((0, _)) => {
                self.ended = true;
                if self.is_over() { Err(CloseReason::Left) } else { Ok(()) }
            }
            Ok((count, _)) => {
                self.line_began.get_or_insert(now);
                self.input.reserve_exact(count);
                self.input.extend_from_slice(&chunk[..count]);
                if MAX_LINE < self.input.len() && !self.has_line() {
                    Err(CloseReason::LineTooLong)
                } else {
                    Ok(())
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(CloseReason::Broken),
        }
    }

    /// Returns the next complete line without its newline, if the rate limit and the amount of unread output allow it
    /// to be served now.
    pub(super) fn next_line(&mut self, now: Instant) -> Option<Vec<u8>> {
        let since = now.saturating_duration_since(self.refilled).as_secs_f64();
        self.allowance = MAX_BURST_LINES.min(self.allowance + since * LINES_PER_SECOND);
        self.refilled = now;
        if self.closing || self.allowance < 1.0 || MAX_QUEUED / 2 <= self.output.len() {
            return None;
        }
        let end = self.input.iter().position(|&byte| byte == b'\n')?;
        self.allowance -= 1.0;
        self.last_request = now;
        let mut line: Vec<u8> = self.input.drain(..=end).collect();
        line.pop();
        self.line_began = (!self.input.is_empty()).then_some(now);
        if self.input.is_empty() {
            self.input = Vec::new();
        }
        Some(line)
    }

    /// Queues a line, and sends as much as the client accepts now.
    pub(super) fn queue(&mut self, line: &[u8], now: Instant) -> Result<(), CloseReason> {
        if self.output.is_empty() {
            self.output_moved = now;
        }
        if MAX_QUEUED < self.output.len() + line.len() {
            return Err(CloseReason::DoesNotRead);
        }
        self.output.reserve_exact(line.len());
        self.output.extend(line);
        self.flush(now)
    }

    /// Sends as many bytes as the client accepts now.
    pub(super) fn flush(&mut self, now: Instant) -> Result<(), CloseReason> {
        while !self.output.is_empty() {
            let (head, _) = self.output.as_slices();
            match send(&self.socket, head, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.output.drain(..count);
                    self.output_moved = now;
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(_) => return Err(CloseReason::Broken),
            }
        }
        self.output = VecDeque::new();
        if self.closing || self.is_over() { Err(CloseReason::Left) } else { Ok(()) }
    }

    /// Stops reading, and closes the connection once its output has been sent.
    pub(super) fn close_when_sent(&mut self) {
        self.closing = true;
        self.input = Vec::new();
    }

    /// Returns the timeout that has expired, if any.
    pub(super) fn overdue(&self, now: Instant) -> Option<CloseReason> {
        self.deadline().filter(|(deadline, _)| *deadline <= now).map(|(_, reason)| reason)
    }

    /// Returns the next time at which the connection must be served even if nothing arrives. This is when a timeout
    /// expires, or when the rate limit allows the next line. After a hang-up, it is at once.
    pub(super) fn next_moment(&self) -> Option<Instant> {
        let allowance = (self.has_line() && !self.closing && self.output.len() < MAX_QUEUED / 2).then(|| {
            self.refilled + Duration::from_secs_f64(((1.0 - self.allowance) / LINES_PER_SECOND).max(0.0))
        });
        let at_once = (self.hung_up && !self.has_line()).then_some(self.last_request);
        self.deadline().map(|(deadline, _)| deadline).into_iter().chain(allowance).chain(at_once).min()
    }

    fn deadline(&self) -> Option<(Instant, CloseReason)> {
        let slow_line = self
            .line_began
            .filter(|_| !self.has_line() && !self.ended)
            .map(|began| (began + LINE_TIME, CloseReason::TooSlow));
        let unread =
            (!self.output.is_empty()).then(|| (self.output_moved + LINE_TIME, CloseReason::DoesNotRead));
        let waits = self.listens || 0 < self.pending || !self.output.is_empty();
        let idle = (!waits).then(|| (self.last_request + IDLE_TIME, CloseReason::Idle));
        [slow_line, unread, idle].into_iter().flatten().min_by_key(|(at, _)| *at)
    }
}
