//! The id of a request at the device.

/// The id of a request at the device: the key of the device's queue pair, the queue, and the place in it.
#[derive(Clone, Copy)]
pub(crate) struct RequestId {
    pub(crate) key: u32,
    pub(crate) receive: bool,
    pub(crate) sequence: u32,
}

impl RequestId {
    const RECEIVE: u32 = 1 << 31;
    /// Below the place of the empty request that asks for a sign of life, which is not among the others.
    pub(super) const SEQUENCE: u32 = Self::KEEPALIVE - 1;
    /// The place of that one.
    pub(crate) const KEEPALIVE: u32 = 1 << 30;
    const KEY: u32 = 32;
    /// The key of no queue pair: a receive of a shared queue, and the place of it there.
    pub(crate) const SHARED: u32 = u32::MAX;

    pub(crate) fn pack(self) -> u64 {
        let queue = if self.receive { Self::RECEIVE } else { 0 };
        (u64::from(self.key) << Self::KEY) | u64::from(queue | self.sequence)
    }

    pub(crate) fn unpack(id: u64) -> Self {
        let place = id as u32;
        Self {
            key: (id >> Self::KEY) as u32,
            receive: place & Self::RECEIVE != 0,
            sequence: place & !Self::RECEIVE,
        }
    }
}
