//! Canaries, which are processes of our own that test, before a run, the protections against candidates.
//!
//! Owns the hidden command, which has three parts:
//! - `confine` starts a process in a candidate's sandbox, compares the results of its attempts with the expected ones,
//!   and prints one line per protection.
//! - `attempt` is the process that `confine` starts.
//! - `fill` waits for a byte, fills the requested memory, and keeps it until another byte comes or its input ends.
//!
//! None of these parts runs foreign code. The caller decides what a missing protection means.

pub(crate) mod attempts;
mod confined;
mod fill;
mod proof;

use std::io::Write as _;

pub fn main(arguments: &[String]) -> i32 {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<i32>().ok();
    match arguments.as_slice() {
        ["confine"] => {
            let protections = proof::protections();
            let text: String = protections.iter().map(|protection| protection.line() + "\n").collect();
            i32::from(std::io::stdout().write_all(text.as_bytes()).is_err())
        }
        ["fill", mib] => fill::fill(mib.parse().unwrap_or(0)),
        ["attempt", segment, parent] => match (number(segment), number(parent)) {
            (Some(segment), Some(parent)) => confined::run(segment, parent),
            _ => 2,
        },
        _ => 2,
    }
}
