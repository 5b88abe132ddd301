//! libFuzzer over `opt_tests::hostile`'s `pickle`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (opt_tests::hostile::target("pickle").run)(bytes));
