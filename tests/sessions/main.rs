//! Streams with a session whose connection, device or port fails in mid-stream.

#[cfg(feature = "verbs")]
mod device;
mod relay;
