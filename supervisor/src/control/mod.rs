//! The control socket: who may speak on it, what a line may be, and which requests there are.
//!
//! Owns connections, their limits and the protocol (JSON-RPC 2.0, one message a line). Holds no truth about the run:
//! requests come out typed, answers go in. Everything is non-blocking and driven by the run's one loop. Where the
//! socket lies is `place`'s; `client` is the other end, for `ctl`.
//!
//! ```text
//!   accept ── more than 32? ─▶ "busy", closed
//!      │ ── another uid? ────▶ "forbidden", closed
//!      ▼
//!   line ── too long, too slow, too many ─▶ cut off
//!      │ ── not a request ─▶ an error with a code
//!      ▼
//!   Request ─▶ driver ─▶ core ─▶ Reply ─▶ out queue ── never read ─▶ cut off
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

/// Whether a line is a request that would be carried out. Does nothing with it.
pub fn understands(line: &[u8]) -> bool {
    message::read(line).request.is_ok()
}

/// Longest line of a request, in both directions; answers may be as long as their queue.
pub const MAX_LINE: usize = 64 << 10;
