//! The RDMA devices of this machine, and the addresses that lead to them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tracing::debug;

use super::config::VerbsConfig;
use crate::error::OpenError;
use crate::net::kernel::interfaces::{self, is_link_local, scoped_source_for};
use crate::net::{canonical, route_error};
use crate::sys::{self, BoundDevice, EventChannel, RawCmId};
use crate::types::AdapterId;

/// A device as rdma_cm sees it: reachable under at least one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    /// As `ibv_devices` lists it.
    pub(crate) name: String,
    pub(crate) id: AdapterId,
    /// The addresses with port 0, those that are link-local last, with their scopes.
    pub(crate) addresses: Vec<SocketAddr>,
}

/// Returns the addresses that need no scope.
pub(super) fn without_scope(addresses: &[SocketAddr]) -> Vec<IpAddr> {
    addresses.iter().filter(|address| !is_link_local(address)).map(SocketAddr::ip).collect()
}

/// The device that has an address, and whether it is used.
pub(super) struct Owner {
    pub(super) device: BoundDevice,
    /// The list that excludes the device, in words.
    pub(super) excluded_by: Option<String>,
}

/// Lists the devices that own an address and are used, in the order of the addresses.
///
/// # Errors
/// `Unsupported` without any device, `Os` if the system calls fail, for lack of permission for example.
pub(crate) fn devices(config: &VerbsConfig) -> Result<Vec<Device>, OpenError> {
    Ok(list(config)?.into_iter().filter_map(|(device, excluded)| (!excluded).then_some(device)).collect())
}

/// Lists the devices that own an address, and whether they are excluded. One whose ports are excluded in part is in the
/// list twice.
pub(super) fn list(config: &VerbsConfig) -> Result<Vec<(Device, bool)>, OpenError> {
    let channel = channel()?;
    let mut devices: Vec<(Device, bool)> = Vec::new();
    for address in local_addresses()? {
        let Some(Owner { device, excluded_by }) = owner(&channel, config, address) else { continue };
        let (BoundDevice { name, guid, .. }, excluded) = (device, excluded_by.is_some());
        match devices.iter_mut().find(|(device, other)| device.name == name && *other == excluded) {
            Some((device, _)) => device.addresses.push(address),
            None => {
                devices.push((Device { id: id_of(&name, guid), name, addresses: vec![address] }, excluded));
            }
        }
    }
    Ok(devices)
}

/// Returns the device with this id, if it is used, with the first address that leads to it. Other devices are asked for
/// only until it is found: rdma_cm opens each one that it is asked for.
pub(super) fn by_id(
    id: AdapterId,
    channel: &Arc<EventChannel>,
    config: &VerbsConfig,
) -> Result<Option<Device>, OpenError> {
    let device_at = |address: SocketAddr| {
        let Owner { device: BoundDevice { name, guid, .. }, excluded_by } = owner(channel, config, address)?;
        let is_meant = excluded_by.is_none() && id_of(&name, guid) == id;
        is_meant.then(|| Device { name, id, addresses: vec![address] })
    };
    Ok(local_addresses()?.into_iter().find_map(device_at))
}

/// Lists the addresses that lead to a device of which an adapter is open, with port 0. Needs no channel of its own.
pub(super) fn addresses_of(
    device: &str,
    channel: &Arc<EventChannel>,
    config: &VerbsConfig,
) -> Result<Vec<SocketAddr>, OpenError> {
    let is_own = |address: &SocketAddr| {
        let owner = owner(channel, config, *address);
        owner.is_some_and(|owner| owner.device.name == device && owner.excluded_by.is_none())
    };
    Ok(local_addresses()?.into_iter().filter(is_own).collect())
}

/// Lists the addresses of the interfaces that are up, with port 0, those that are link-local last.
fn local_addresses() -> Result<Vec<SocketAddr>, OpenError> {
    interfaces::addresses()
        .map_err(|source: io::Error| OpenError::Os { call: "getifaddrs", source: source.into() })
}

/// Creates a channel for events, which works only on a machine with a device.
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

/// Returns the device that owns an address: the one that an id gets when it is bound to the address.
pub(super) fn owner(channel: &Arc<EventChannel>, config: &VerbsConfig, address: SocketAddr) -> Option<Owner> {
    let id = RawCmId::new(channel, 0).ok()?;
    id.bind(address).ok()?;
    let device = id.device()?;
    let excluded_by = config.excluded_by(&device.name, device.port, || id.kind());
    Some(Owner { device, excluded_by })
}

/// Returns the id of a device: the same as long as the device keeps its name. The name is part of it, because two
/// devices of one network interface share the GUID that is made from its hardware address.
fn id_of(name: &str, guid: u64) -> AdapterId {
    // FNV-1a.
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    AdapterId(name.as_bytes().iter().fold(guid, mix))
}

/// Returns the adapter that has this address, whose port does not matter.
///
/// # Errors
/// `InvalidAddress` when none does, `Excluded` when its device is not used, and those of [`devices`].
pub(crate) fn resolve(config: &VerbsConfig, address: SocketAddr) -> Result<AdapterId, OpenError> {
    let channel = channel()?;
    let mut local = canonical(address);
    local.set_port(0);
    let ip = local.ip();
    let unspecific = ip.is_unspecified() || ip.is_multicast();
    match (!unspecific).then(|| owner(&channel, config, local)).flatten() {
        Some(Owner { device, excluded_by: None }) => Ok(id_of(&device.name, device.guid)),
        Some(Owner { device, excluded_by: Some(by) }) => {
            let error = OpenError::Excluded { address: ip, device: device.name, by };
            debug!(%error, "device skipped");
            Err(error)
        }
        None => Err(match denied("uverbs") {
            // Without access to the devices, the owner of the address is not known.
            Some(source) if !unspecific => {
                OpenError::Os { call: "opening /dev/infiniband", source: source.into() }
            }
            _ => OpenError::InvalidAddress(ip),
        }),
    }
}

/// Lists the addresses of the devices that are used, except those that need a scope.
pub(crate) fn addresses(config: &VerbsConfig) -> Result<Vec<IpAddr>, OpenError> {
    Ok(devices(config)?.into_iter().flat_map(|device| without_scope(&device.addresses)).collect())
}

/// Returns the local address from which a peer is reached, with port 0, if a device owns it.
///
/// # Errors
/// `Unreachable` without a route; `InvalidAddress` when the route does not lead over a device, `Excluded` when that device
/// is not used; `Os`.
pub(crate) fn local_for(config: &VerbsConfig, remote: SocketAddr) -> Result<SocketAddr, OpenError> {
    let local = scoped_source_for(remote).map_err(|error| route_error(error, remote.ip()))?;
    resolve(config, local).map(|_| local)
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
