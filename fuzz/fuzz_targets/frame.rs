//! A libFuzzer target for `frame` in `opt_tests::hostile`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (opt_tests::hostile::target("frame").run)(bytes));
