//! libFuzzer over `opt_tests::hostile`'s `control`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (opt_tests::hostile::target("control").run)(bytes));
