//! Memory for work requests: [`Buffer`] for what stays private, [`Region`] for what a peer may reach by key.

mod buffer;
mod entry;
mod inline;
mod region;
mod remote;
mod window;

pub use buffer::{Buffer, BufferPart};
pub use entry::Entry;
pub use inline::Inline;
pub use region::{Region, RegionSlice};
pub use remote::RemoteRegion;
pub use window::MemoryWindow;
