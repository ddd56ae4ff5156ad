//! The MPA start-up and every codec.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tokio_rdma::internals::fuzz_start_up(bytes));
