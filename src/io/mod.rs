//! Byte and message streams over queue pairs.

mod config;

pub use config::StreamConfig;
