//! A libFuzzer target for `recording` in `opt_tests::hostile`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (opt_tests::hostile::target("recording").run)(bytes));
