//! The lowest layers of the crate with loom's locks. `inflight::model` explores every interleaving of completions and waiting
//! tasks.
//!
//! This is a package of its own so that the other layers need not be compiled with these locks.
#![allow(
    dead_code,
    unused_imports,
    rustdoc::broken_intra_doc_links,
    reason = "the layers above use the rest, and are what the comments link to"
)]

#[path = "../../src/error/mod.rs"]
mod error;
#[path = "../../src/inflight/mod.rs"]
mod inflight;
#[path = "../../src/inspect/mod.rs"]
mod inspect;
#[path = "../../src/memory/mod.rs"]
mod memory;
#[path = "../../src/status/mod.rs"]
mod status;
#[path = "../../src/sync/mod.rs"]
mod sync;
#[path = "../../src/types.rs"]
mod types;
