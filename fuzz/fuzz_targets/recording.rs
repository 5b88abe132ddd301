//! libFuzzer over `opt_tests::hostile`'s `recording`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (opt_tests::hostile::target("recording").run)(bytes));
