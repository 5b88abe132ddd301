//! libFuzzer over `opt_tests::hostile`'s `frame`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (opt_tests::hostile::target("frame").run)(bytes));
