//! Tests with peers that are raw sockets: allowed frames, forbidden frames, and the frames that this crate sends.

mod announced;
mod bad_extensions;
mod bad_input;
mod capture;
mod checksums;
mod foreign_peers;
mod pressure;
mod siw_quirks;
mod stream_ends;
mod tshark;
