//! The control socket: who may use it, what a line may be, and which requests exist.
//!
//! Owns connections, their limits and the protocol (JSON-RPC 2.0, one message per line), but no state of the run:
//! it passes typed requests to the driver and sends its answers. Everything is non-blocking and driven by the
//! run's only loop. `socket` decides where the socket is; `client` is the other end, for `ctl`.
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

/// Whether a line is a request that would be carried out. Has no effect.
pub fn understands(line: &[u8]) -> bool {
    message::read(line).request.is_ok()
}

/// Longest request line; answers may be as long as their queue.
pub const MAX_LINE: usize = 64 << 10;
