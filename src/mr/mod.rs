//! Memory for work requests: [`Buffer`] for what stays private, [`Region`] for what a peer may reach by key.

mod buffer;
mod region;
mod remote;

pub use buffer::{Buffer, BufferPart};
pub use region::{Region, RegionSlice};
pub use remote::RemoteRegion;
