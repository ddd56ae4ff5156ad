//! The MPA start-up and every codec.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_harness::start_up(bytes));
