//! The kind of card that the device is: RoCE, InfiniBand or iWARP.
//!
//! It is chosen once, by the line `dress` and before the device is opened, because a card does not change its transport.

use std::ffi::c_int;

use super::number::{IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP};
use super::types::ibv_port_attr;
use super::world::World;
use super::{Answer, instant, status::node};

/// A vendor that no driver has.
const VENDOR: u32 = 0xface;
const INFINIBAND: u8 = 1;
const ETHERNET: u8 = 2;
/// The address of the subnet manager, and that of the first port; InfiniBand's ports have addresses of their own.
const SUBNET_MANAGER: u16 = 1;
const FIRST_LID: u16 = 0x10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Dress {
    #[default]
    Roce,
    Infiniband,
    Iwarp,
}

impl Dress {
    fn named(name: &str) -> Option<Self> {
        match name {
            "roce" => Some(Self::Roce),
            "infiniband" => Some(Self::Infiniband),
            "iwarp" => Some(Self::Iwarp),
            _ => None,
        }
    }

    fn node_type(self) -> c_int {
        if self == Self::Iwarp { node::RNIC } else { node::CHANNEL_ADAPTER }
    }

    fn transport(self) -> c_int {
        if self == Self::Iwarp { IBV_TRANSPORT_IWARP } else { IBV_TRANSPORT_IB }
    }

    /// Fills in what a port of this kind shows of its link.
    pub(super) fn fill_port(self, number: u8, port: &mut ibv_port_attr) {
        port.link_layer = if self == Self::Infiniband { INFINIBAND } else { ETHERNET };
        (port.lid, port.sm_lid) =
            (self.lid(number), if self == Self::Infiniband { SUBNET_MANAGER } else { 0 });
        if self == Self::Iwarp {
            (port.gid_tbl_len, port.pkey_tbl_len) = (1, 1);
        }
    }

    /// The address of a port in its subnet, which only InfiniBand has.
    pub(super) fn lid(self, port: u8) -> u16 {
        if self == Self::Infiniband { FIRST_LID + u16::from(port) } else { 0 }
    }
}

/// The words said of the card.
pub(super) struct Card {
    pub(super) dress: Dress,
    pub(super) vendor: u32,
    /// Somebody has opened the device: nothing of this changes any more.
    pub(super) opened: bool,
    /// The room of a send queue and of a shared receive queue.
    pub(super) sends: QueueBytes,
    pub(super) shared: QueueBytes,
    /// The most inline bytes of a request: a queue pair for which more are asked gets so many, and no error.
    pub(super) inline: Option<u32>,
    /// The driver knows dma-bufs.
    pub(super) dmabuf: bool,
    /// The length of a shared receive queue is fixed.
    pub(super) fixed_shared: bool,
    /// The vendor of the options that new queue pairs have, and these options.
    pub(super) ece: Option<(u32, u32)>,
}

/// The bytes that a queue of the device may have, and the error of one that would have more. `None`: any number.
#[derive(Clone, Copy, Default)]
pub(super) struct QueueBytes(Option<(u64, c_int)>);

impl QueueBytes {
    pub(super) fn new(bytes: u64, error: c_int) -> Self {
        Self(Some((bytes, error)))
    }

    /// Checks a queue for so many requests of this size, as libmlx5 does: it has a power of two of bytes.
    pub(super) fn check(self, depth: u32, size: u64) -> Answer<()> {
        match self.0 {
            Some((bytes, error)) if (u64::from(depth) * size).next_power_of_two() > bytes => Err(error),
            _ => Ok(()),
        }
    }
}

/// The unit of a request in the queues of a card.
const BLOCK: u64 = 64;
/// The control segments of a request of the send queue, and those of an entry and of the head of the inline bytes.
const CONTROL: u64 = 128;
const ENTRY: u64 = 16;
const INLINE_HEAD: u64 = 4;

/// The size of a request of a send queue: the entries and the inline bytes share the room behind the control segments.
pub(super) fn send_size(entries: u32, inline: u32) -> u64 {
    let bytes = if inline == 0 { 0 } else { INLINE_HEAD + u64::from(inline) };
    (CONTROL + bytes.max(ENTRY * u64::from(entries))).next_multiple_of(BLOCK)
}

/// The size of a receive of a shared queue.
pub(super) fn receive_size(entries: u32) -> u64 {
    (ENTRY * (1 + u64::from(entries))).next_power_of_two()
}

impl Default for Card {
    fn default() -> Self {
        let (sends, shared) = Default::default();
        Self {
            dress: Dress::default(),
            vendor: VENDOR,
            opened: false,
            sends,
            shared,
            inline: None,
            dmabuf: false,
            fixed_shared: false,
            ece: None,
        }
    }
}

impl World {
    pub(super) fn is_iwarp(&self) -> bool {
        self.card.dress == Dress::Iwarp
    }

    /// Has the device be another card.
    pub(super) fn put_on(&mut self, name: &str) -> Answer<()> {
        let dress = Dress::named(name).ok_or(libc::EINVAL)?;
        self.not_opened()?;
        self.card.dress = dress;
        self.devices.show(dress.node_type(), dress.transport());
        Ok(())
    }

    pub(super) fn set_vendor(&mut self, vendor: u32) -> Answer<()> {
        self.not_opened()?;
        self.card.vendor = vendor;
        Ok(())
    }

    /// Has the device cost next to nothing.
    pub(super) fn make_instant(&mut self) -> Answer<()> {
        self.not_opened()?;
        instant::turn_on();
        Ok(())
    }

    fn not_opened(&self) -> Answer<()> {
        if self.card.opened { Err(libc::EBUSY) } else { Ok(()) }
    }
}
