//! Parses PTX text into declarations and statements, each with its line.

pub mod lexer;
mod module;
mod number;
mod statement;
pub mod syntax;
mod variable;

pub use module::parse;
pub use variable::single;
