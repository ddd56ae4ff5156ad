//! A connection of the soft provider, with a peer that does anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_harness::connection(bytes));
