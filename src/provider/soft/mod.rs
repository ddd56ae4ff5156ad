//! The software provider: iWARP in user space, over tokio's TCP.

pub(crate) mod net;
