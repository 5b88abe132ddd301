//! Shared by nothing: the tests live in `it/`.
