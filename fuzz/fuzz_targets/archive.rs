//! libFuzzer over `opt_tests::hostile`'s `archive`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (opt_tests::hostile::target("archive").run)(bytes));
