//! Streams with a session whose connection, device or port fails in mid-stream.

#[cfg(feature = "verbs")]
mod device;
mod memory;
mod relay;

use std::alloc::System;

use cap::Cap;

/// Counts the bytes that this process has allocated.
#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);
