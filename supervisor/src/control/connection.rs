//! One connection: its unread input, its unsent output, and its limits.
//!
//! Knows only its own limits; the server keeps those of all connections together.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::MAX_LINE;

/// Bytes of answers and events that a client has not read yet. A candidate's whole record is smaller.
pub(super) const MAX_QUEUED: usize = 512 << 10;
/// Time limit from the first byte of a line to its last, and between two reads of an answer by the client.
pub(super) const LINE_TIME: Duration = Duration::from_secs(10);
/// Time limit without a request, an event stream or a pending result.
pub(super) const IDLE_TIME: Duration = Duration::from_secs(60);
/// Requests allowed per second, and in one burst.
const LINES_A_SECOND: f64 = 200.0;
const LINES_AT_ONCE: f64 = 100.0;
/// Bytes read at a time, so that serving one connection takes little time.
const CHUNK: usize = 16 << 10;

/// Why a connection is closed. It is not an error of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// The client closed its end.
    Left,
    Broken,
    LineTooLong,
    TooSlow,
    DoesNotRead,
    Idle,
}

pub(super) struct Connection {
    socket: OwnedFd,
    input: Vec<u8>,
    line_began: Option<Instant>,
    output: VecDeque<u8>,
    /// When the client last read something, or when the queue was last empty.
    output_moved: Instant,
    last_request: Instant,
    allowance: f64,
    refilled: Instant,
    pub(super) listens: bool,
    /// Requests that have not been answered yet.
    pub(super) pending: u32,
    /// Close after sending what is queued.
    closing: bool,
    /// The client will send nothing more.
    ended: bool,
    /// The client will not read anything more either: its requests are carried out, but nobody gets the answers.
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
            allowance: LINES_AT_ONCE,
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
        // A complete line is waiting for its allowance; until then nothing more is read from the socket.
        !self.closing && !self.ended && !self.has_line() && self.output.len() < MAX_QUEUED / 2
    }

    pub(super) fn wants_to_write(&self) -> bool {
        !self.output.is_empty()
    }

    /// Whether nothing is left to do for this connection.
    pub(super) fn is_over(&self) -> bool {
        let heard = self.output.is_empty() && self.pending == 0 && !self.listens;
        self.ended && !self.has_line() && (heard || self.hung_up)
    }

    /// Stops polling the connection, which would report the hang-up at every turn.
    pub(super) fn hang_up(&mut self) {
        self.hung_up = true;
    }

    pub(super) fn has_hung_up(&self) -> bool {
        self.hung_up
    }

    fn has_line(&self) -> bool {
        self.input.contains(&b'\n')
    }

    /// Reads what has arrived, up to a limit.
    pub(super) fn fill(&mut self, now: Instant) -> Result<(), Cut> {
        let mut chunk = [0u8; CHUNK];
        let room = (MAX_LINE + 1).saturating_sub(self.input.len()).min(CHUNK);
        match recv(&self.socket, &mut chunk[..room], RecvFlags::DONTWAIT) {
            Ok((0, _)) => {
                self.ended = true;
                if self.is_over() { Err(Cut::Left) } else { Ok(()) }
            }
            Ok((count, _)) => {
                self.line_began.get_or_insert(now);
                self.input.reserve_exact(count);
                self.input.extend_from_slice(&chunk[..count]);
                if MAX_LINE < self.input.len() && !self.has_line() { Err(Cut::LineTooLong) } else { Ok(()) }
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(Cut::Broken),
        }
    }

    /// The next complete line, without its newline, if the rate limit allows serving it now.
    pub(super) fn line(&mut self, now: Instant) -> Option<Vec<u8>> {
        let since = now.saturating_duration_since(self.refilled).as_secs_f64();
        self.allowance = LINES_AT_ONCE.min(self.allowance + since * LINES_A_SECOND);
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

    pub(super) fn queue(&mut self, line: &[u8], now: Instant) -> Result<(), Cut> {
        if self.output.is_empty() {
            self.output_moved = now;
        }
        if MAX_QUEUED < self.output.len() + line.len() {
            return Err(Cut::DoesNotRead);
        }
        self.output.reserve_exact(line.len());
        self.output.extend(line);
        self.flush(now)
    }

    /// Sends as much as the client accepts now.
    pub(super) fn flush(&mut self, now: Instant) -> Result<(), Cut> {
        while !self.output.is_empty() {
            let (head, _) = self.output.as_slices();
            match send(&self.socket, head, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.output.drain(..count);
                    self.output_moved = now;
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(_) => return Err(Cut::Broken),
            }
        }
        self.output = VecDeque::new();
        if self.closing || self.is_over() { Err(Cut::Left) } else { Ok(()) }
    }

    /// Reads nothing more, and closes the connection once its output has been sent.
    pub(super) fn close_after(&mut self) {
        self.closing = true;
        self.input = Vec::new();
    }

    /// Which of its time limits has passed, if any.
    pub(super) fn overdue(&self, now: Instant) -> Option<Cut> {
        self.deadline().filter(|(deadline, _)| *deadline <= now).map(|(_, cut)| cut)
    }

    /// When it needs attention even if nothing arrives: the first time limit, or the next allowance.
    pub(super) fn next_moment(&self) -> Option<Instant> {
        let allowance = (self.has_line() && !self.closing && self.output.len() < MAX_QUEUED / 2).then(|| {
            self.refilled + Duration::from_secs_f64(((1.0 - self.allowance) / LINES_A_SECOND).max(0.0))
        });
        let at_once = (self.hung_up && !self.has_line()).then_some(self.last_request);
        self.deadline().map(|(deadline, _)| deadline).into_iter().chain(allowance).chain(at_once).min()
    }

    fn deadline(&self) -> Option<(Instant, Cut)> {
        let slow_line = self
            .line_began
            .filter(|_| !self.has_line() && !self.ended)
            .map(|began| (began + LINE_TIME, Cut::TooSlow));
        let unread = (!self.output.is_empty()).then(|| (self.output_moved + LINE_TIME, Cut::DoesNotRead));
        let waits = self.listens || 0 < self.pending || !self.output.is_empty();
        let idle = (!waits).then(|| (self.last_request + IDLE_TIME, Cut::Idle));
        [slow_line, unread, idle].into_iter().flatten().min_by_key(|(at, _)| *at)
    }
}
