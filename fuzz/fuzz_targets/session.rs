//! A stream with a session, whose peer resumes it and lies about it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_harness::session(bytes));
