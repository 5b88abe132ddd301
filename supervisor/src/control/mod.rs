//! Serves the control socket, through which clients query and control a run.
//!
//! This module handles connections, their limits and the protocol (JSON-RPC 2.0, one message per line). It keeps no
//! state of the run: it passes typed requests to the driver and sends the answers. The server runs in the run's main
//! loop, so it never waits, except in `Server::close`, which waits for a limited time. `socket` chooses the path of the
//! socket. `client` is the other end of the connection, for `ctl`.
//!
//! ```text
//!   accept ── uid of neither the run nor root? ─▶ "forbidden", closed
//!      │ ── more than 32? ───▶ "busy", closed
//!      ▼
//!   line ── too long ─▶ "line_too_long", closed
//!      │ ── too slow ─▶ closed
//!      │ ── not a request ─▶ an error with a code
//!      ▼
//!   Request ─▶ driver ─▶ core ─▶ Reply ─▶ out queue ── never read ─▶ closed
//! ```

pub mod client;
mod connection;
mod message;
mod methods;
mod refusal;
mod server;
pub mod socket;
#[cfg(test)]
mod tests;

pub use message::Notification;
pub use methods::{
    CancelParams, CandidatesParams, DecisionsParams, HistoryParams, RecycleParams, Request, ResultParams,
    SetParams, SubmitParams, WhyParams,
};
pub use refusal::{Code, Refusal, Reply};
pub use server::{ControlError, Server, Token};

/// Returns whether a line is a valid request. The request is not carried out.
pub fn understands(line: &[u8]) -> bool {
    message::parse(line).request.is_ok()
}

/// The maximum length of a request line, in bytes. The length of answers is limited by their queue.
pub const MAX_LINE: usize = 64 << 10;
