//! A libFuzzer target for `control` in `opt_tests::hostile`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (opt_tests::hostile::target("control").run)(bytes));
