//! `top`: a run on a terminal, live. A thin client of the control socket: it knows what the socket says and nothing else.
//!
//! ```text
//!   socket ─▶ link ── News ──▶ model ──▶ draw ─▶ screen ─▶ terminal
//!              ▲                 ▲
//!              └──── Wish ── keys ◀── terminal
//! ```
//! `model`, `keys` and `draw` are functions of what they are given; `view` is the loop around them.

mod answer;
mod draw;
mod keys;
mod link;
mod model;
mod screen;
#[cfg(test)]
mod tests;
mod view;

pub use view::{TopError, Watched, is_possible, watch};
