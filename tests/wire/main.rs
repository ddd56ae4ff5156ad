//! Peers that are not this crate, byte by byte: what they may do, what they may not, and what we send them.

mod bad_extensions;
mod bad_input;
mod foreign_peers;
mod siw_quirks;
mod tshark;
