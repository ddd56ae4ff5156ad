//! Socket addresses as C writes them.

use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

/// An address in the form that C reads.
#[repr(C)]
pub(super) union RawAddress {
    any: sockaddr,
    v4: sockaddr_in,
    v6: sockaddr_in6,
}

impl RawAddress {
    pub(super) fn new(address: SocketAddr) -> Self {
        // SAFETY: all members are plain integers, for which zero is a value.
        let mut raw: Self = unsafe { mem::zeroed() };
        match address {
            SocketAddr::V4(address) => {
                raw.v4 = sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                    sin_zero: [0; 8],
                }
            }
            SocketAddr::V6(address) => {
                raw.v6 = sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                }
            }
        }
        raw
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut sockaddr {
        (&raw mut *self).cast()
    }
}

/// Returns the address in a storage of the library; `None` while it is unset, or of a family that is no internet's.
pub(super) fn from_storage(storage: &sockaddr_storage) -> Option<SocketAddr> {
    let start = (&raw const *storage).cast::<sockaddr>();
    match libc::c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the storage is larger and stricter aligned than the address that its family says it holds.
            let v4 = unsafe { &*start.cast::<sockaddr_in>() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*start.cast::<sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_to_c_and_back() {
        for text in ["1.2.3.4:5", "0.0.0.0:0", "[2001:db8::1]:65535", "[fe80::1%3]:7"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut raw = RawAddress::new(address);
            // SAFETY: plain integers.
            let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
            let target = (&raw mut storage).cast::<u8>();
            // SAFETY: a storage has room for every address, and the two do not overlap.
            unsafe { target.copy_from(raw.as_mut_ptr().cast(), size_of::<RawAddress>()) };
            assert_eq!(from_storage(&storage), Some(address), "{text}");
        }
    }

    #[test]
    fn an_unset_address_is_none() {
        // SAFETY: plain integers.
        let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
        assert_eq!(from_storage(&storage), None);
        storage.ss_family = libc::AF_UNIX as libc::sa_family_t;
        assert_eq!(from_storage(&storage), None);
    }
}
