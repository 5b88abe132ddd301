//! Tests of the program at its public face, and of the repository itself.

mod tidy;
