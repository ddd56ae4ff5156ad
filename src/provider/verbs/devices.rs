//! The RDMA devices of this machine, and the addresses that lead to them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::error::OpenError;
use crate::provider::net::kernel::interfaces::{interfaces, source_for};
use crate::sys::{self, BoundDevice, EventChannel, RawCmId};
use crate::types::AdapterId;

/// A device as rdma_cm sees it: reachable under at least one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    /// As `ibv_devices` lists it.
    pub(crate) name: String,
    pub(crate) id: AdapterId,
    pub(crate) addresses: Vec<IpAddr>,
}

/// Every device that owns an address, in the order of the addresses.
///
/// # Errors
/// `Unsupported` without any device, `Os` when the system does not tell, for want of permission for example.
pub(crate) fn devices() -> Result<Vec<Device>, OpenError> {
    let channel = channel()?;
    let known = interfaces().map_err(|source| OpenError::Os { call: "getifaddrs", source: source.into() })?;
    let mut devices: Vec<Device> = Vec::new();
    for ip in known.into_iter().filter(|interface| interface.up).flat_map(|interface| interface.addresses) {
        let Some(BoundDevice { name, guid, .. }) = owner(&channel, ip) else { continue };
        match devices.iter_mut().find(|device| device.name == name) {
            Some(device) => device.addresses.push(ip),
            None => devices.push(Device { id: id_of(&name, guid), name, addresses: vec![ip] }),
        }
    }
    Ok(devices)
}

/// A channel for events, which there is only with a device.
///
/// # Errors
/// See [`devices`]; `Unsupported` without the libraries, too.
pub(crate) fn channel() -> Result<Arc<EventChannel>, OpenError> {
    sys::load().map_err(OpenError::Unsupported)?;
    // librdmacm says that there is nothing, whatever the reason.
    let denied = || {
        denied("rdma_cm")
            .map(|source| OpenError::Os { call: "opening /dev/infiniband", source: source.into() })
    };
    EventChannel::new().map_err(|source| match source.raw_os_error() {
        Some(libc::ENODEV | libc::ENOENT | libc::ENOSYS | libc::ENXIO) => {
            let none = "this machine has no RDMA device, or rdma_ucm is not loaded";
            denied().unwrap_or(OpenError::Unsupported(none))
        }
        _ => OpenError::Os { call: "rdma_create_event_channel", source: source.into() },
    })
}

/// Returns the error of opening a file of the drivers, if a file is there and this process lacks the
/// permission.
fn denied(prefix: &str) -> Option<io::Error> {
    let files = std::fs::read_dir("/dev/infiniband").ok()?;
    let ours = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(prefix);
    files.flatten().filter(ours).find_map(|entry| {
        let opened = std::fs::OpenOptions::new().read(true).write(true).open(entry.path());
        opened.err().filter(|error| error.kind() == io::ErrorKind::PermissionDenied)
    })
}

/// The device that owns an address: the one that an id gets when it is bound to it.
pub(super) fn owner(channel: &Arc<EventChannel>, ip: IpAddr) -> Option<BoundDevice> {
    let id = RawCmId::new(channel, 0).ok()?;
    id.bind(SocketAddr::new(ip, 0)).ok()?;
    id.device()
}

/// The same for a device as long as it keeps its name; a hash of the name, because two devices of one network
/// interface share the GUID that is made from its hardware address.
fn id_of(name: &str, guid: u64) -> AdapterId {
    // FNV-1a.
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    AdapterId(name.as_bytes().iter().fold(guid, mix))
}

/// The adapter that has this address.
///
/// # Errors
/// `InvalidAddress` when none does, and those of [`devices`].
pub(crate) fn resolve(ip: IpAddr) -> Result<AdapterId, OpenError> {
    let channel = channel()?;
    let ip = ip.to_canonical();
    let unspecific = ip.is_unspecified() || ip.is_multicast();
    let owner = (!unspecific).then(|| owner(&channel, ip)).flatten();
    owner.map(|device| id_of(&device.name, device.guid)).ok_or_else(|| match denied("uverbs") {
        // Without access to the devices, the owner of the address is not known.
        Some(source) if !unspecific => {
            OpenError::Os { call: "opening /dev/infiniband", source: source.into() }
        }
        _ => OpenError::InvalidAddress(ip),
    })
}

/// Every address that a device owns.
///
/// # Errors
/// See [`devices`].
pub(crate) fn addresses() -> Result<Vec<IpAddr>, OpenError> {
    Ok(devices()?.into_iter().flat_map(|device| device.addresses).collect())
}

/// The local address from which a peer is reached, when a device owns it.
///
/// # Errors
/// `Unreachable` without a route; `InvalidAddress` when the route does not lead over a device.
pub(crate) fn local_for(remote: IpAddr) -> Result<IpAddr, OpenError> {
    let local = source_for(remote).map_err(|error: io::Error| match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => OpenError::InvalidAddress(remote),
        _ => OpenError::Unreachable(remote),
    })?;
    resolve(local).map(|_| local)
}

#[cfg(test)]
mod tests {
    use super::*;

    // PRV-05: the same name, the same adapter; another device of the same interface is another adapter.
    #[test]
    fn ids_tell_devices_apart() {
        assert_eq!(id_of("rxe0", 7), id_of("rxe0", 7));
        assert_ne!(id_of("rxe0", 7), id_of("siw0", 7));
        assert_ne!(id_of("rxe0", 7), id_of("rxe0", 8));
    }
}
