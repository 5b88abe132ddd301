//! libFuzzer over `opt_tests::hostile`'s `store`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (opt_tests::hostile::target("store").run)(bytes));
