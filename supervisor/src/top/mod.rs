//! `top`: a live view of a run in a terminal. It is a thin client of the control socket, and shows only what the socket
//! reports.
//!
//! ```text
//!   socket ─▶ link ── Update ─▶ model ──▶ draw ─▶ screen ─▶ terminal
//!              ▲                  ▲
//!              └── Command ◀─── keys ◀── terminal
//! ```
//! `model`, `keys` and `draw` depend only on their inputs. `view` is the loop that calls them.

mod answer;
mod draw;
mod keys;
mod link;
mod memory;
mod model;
mod screen;
#[cfg(test)]
mod tests;
mod view;

pub use view::{TopError, Watched, is_possible, watch};
