//! Enhanced connection establishment: the options of a vendor's queue pairs that both ends agree on, in fields of the messages that
//! connect them. librdmacm negotiates them for queue pairs that it makes; for others rdma_set_local_ece(3) has the steps.

use std::io;

use super::id::RawCmId;
use super::queue_pair::QueuePair;
use super::{call, ffi};

/// The options of a queue pair, in the bits of its vendor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ece {
    pub(crate) vendor: u32,
    pub(crate) options: u32,
}

impl Ece {
    fn of(raw: &ffi::ibv_ece) -> Option<Self> {
        // Without a vendor there is nothing to agree on.
        (raw.vendor_id != 0).then_some(Self { vendor: raw.vendor_id, options: raw.options })
    }

    fn raw(self) -> ffi::ibv_ece {
        ffi::ibv_ece { vendor_id: self.vendor, options: self.options, comp_mask: 0 }
    }

    /// Returns the options that a queue pair with these options is to use with a peer that has sent `peer`: the peer's
    /// options, or none if the peer is of another vendor or has sent none.
    pub(crate) fn agreed(self, peer: Option<Self>) -> Self {
        let options = peer.filter(|peer| peer.vendor == self.vendor).map_or(0, |peer| peer.options);
        Self { options, ..self }
    }
}

impl QueuePair {
    /// Returns the options of the queue pair; `None` if the library or the driver has none.
    pub(crate) fn ece(&self) -> Option<Ece> {
        let query = ffi::ece()?.query;
        let mut raw = ffi::ibv_ece::default();
        // SAFETY: the queue pair is live; the call fills the structure.
        call::number(|| unsafe { query(self.raw.as_ptr(), &mut raw) }).ok()?;
        Ece::of(&raw)
    }

    /// Has the queue pair use these options with the next change of its state.
    ///
    /// # Errors
    /// `EINVAL` for options of another vendor, `EOPNOTSUPP` where there are none.
    pub(crate) fn set_ece(&self, options: Ece) -> io::Result<()> {
        let unknown = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        let set = ffi::ece().ok_or_else(unknown)?.set;
        let mut raw = options.raw();
        // SAFETY: the queue pair is live; the structure is read, and written.
        call::number(|| unsafe { set(self.raw.as_ptr(), &mut raw) })
    }
}

impl RawCmId {
    /// Adds these options to the next request or reply.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the library does not know how.
    pub(crate) fn set_local_ece(&self, options: Ece) -> io::Result<()> {
        let unknown = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        let set = ffi::ece().ok_or_else(unknown)?.set_local;
        let mut raw = options.raw();
        let _fields = self.fields();
        // SAFETY: the identifier is live and has no queue pair; the structure is read.
        call::errno(|| unsafe { set(self.raw.as_ptr(), &mut raw) })
    }

    /// Returns the options in the request or the reply of the peer.
    pub(crate) fn remote_ece(&self) -> Option<Ece> {
        let get = ffi::ece()?.get_remote;
        let mut raw = ffi::ibv_ece::default();
        let _fields = self.fields();
        // SAFETY: the identifier is live and has no queue pair; the call fills the structure.
        call::errno(|| unsafe { get(self.raw.as_ptr(), &mut raw) }).ok()?;
        Ece::of(&raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Options of another vendor, and none, give the own vendor's without an option (CM-35).
    #[test]
    fn only_options_of_same_vendor_are_agreed() {
        let own = Ece { vendor: 0x2c9, options: 7 };
        assert_eq!(own.agreed(Some(Ece { vendor: 0x2c9, options: 5 })), Ece { vendor: 0x2c9, options: 5 });
        assert_eq!(own.agreed(Some(Ece { vendor: 0x1425, options: 5 })), Ece { vendor: 0x2c9, options: 0 });
        assert_eq!(own.agreed(None), Ece { vendor: 0x2c9, options: 0 });
    }
}
