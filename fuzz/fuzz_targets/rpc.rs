//! A connection of calls in messages, each end of it with a peer that does anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_harness::rpc(bytes));
