//! Addresses: bind, resolve, listen.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use libc::sockaddr;

use super::super::address;
use super::super::control::Step;
use super::super::dress::Dress;
use super::*;

/// The first port that is given out, and how many there are.
const FIRST_PORT: u16 = 32_768;
const PORTS: u16 = 28_000;

impl World {
    /// Binds an id: the port is taken, and the device is known unless the address is a wildcard.
    fn bind_id(&mut self, at: usize, to: SocketAddr) -> Answer<()> {
        if address::is_link_local(to.ip()) && address::scope(to) == 0 {
            return Err(libc::EINVAL);
        }
        let device = match to.ip().is_unspecified() {
            true => None,
            false => Some(self.devices.owner(to).ok_or(libc::ENODEV)?),
        };
        let to = match to.port() {
            0 => self.free_port(at, to)?,
            _ => to,
        };
        self.check_port(at, to, false)?;
        let Some(id) = self.cm.ids.get_mut(&at) else { return Err(libc::EINVAL) };
        id.source = Some(to);
        id.phase = Phase::Bound;
        let raw = id.raw;
        // SAFETY: an id in the table is live.
        let own = unsafe { &raw mut (*raw).route.addr.src_addr_union.src_storage };
        // SAFETY: the caller of the library reads these fields after this call.
        unsafe { address::write(own, to) };
        if let Some(device) = device {
            self.attach(raw, device);
        }
        Ok(())
    }

    /// The way to a peer settles the address of an id that is bound to a wildcard.
    fn settle_source(&mut self, raw: *mut rdma_cm_id, device: (*mut ibv_context, Place)) {
        let id = live(&mut self.cm.ids, raw);
        let Some(source) = id.source.filter(|source| source.ip().is_unspecified()) else { return };
        let source = at(device.1.ip, device.1.scope, source.port());
        id.source = Some(source);
        self.attach(raw, device);
        // SAFETY: the id is live.
        let own = unsafe { &raw mut (*raw).route.addr.src_addr_union.src_storage };
        // SAFETY: the caller of the library reads these fields after this call.
        unsafe { address::write(own, source) };
    }

    fn free_port(&mut self, at: usize, to: SocketAddr) -> Answer<SocketAddr> {
        for _ in 0..PORTS {
            self.cm.next_port = (self.cm.next_port + 1) % PORTS;
            let tried = with_port(to, FIRST_PORT + self.cm.next_port);
            if self.check_port(at, tried, true).is_ok() {
                return Ok(tried);
            }
        }
        Err(libc::EADDRNOTAVAIL)
    }

    /// Whether another id is in the way: one with that port, unless both let others have it.
    fn check_port(&self, at: usize, to: SocketAddr, strict: bool) -> Answer<()> {
        let own = &self.cm.ids[&at];
        for (other_at, other) in &self.cm.ids {
            let Some(taken) = other.source.filter(|taken| taken.port() == to.port()) else { continue };
            if *other_at == at || is_child(other) || own.reuses && other.reuses && !strict {
                continue;
            }
            let families = taken.is_ipv4() != to.is_ipv4();
            if families && (own.family_only || other.family_only) {
                continue;
            }
            if taken.ip().is_unspecified() || to.ip().is_unspecified() {
                return Err(libc::EADDRNOTAVAIL);
            }
            if taken.ip() == to.ip() {
                return Err(libc::EADDRINUSE);
            }
        }
        Ok(())
    }
}

/// Whether it is the id of a request, which shares the port of its listener.
fn is_child(id: &Id) -> bool {
    id.backlog == CHILD
}

/// The mark of the id of a request.
pub(super) const CHILD: usize = usize::MAX;

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_bind_addr(raw: *mut rdma_cm_id, to: *mut sockaddr) -> c_int {
    minus_one(world::enter("rdma_bind_addr").and_then(|mut world| {
        if live(&mut world.cm.ids, raw).phase != Phase::Idle {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's address.
        let to = unsafe { given(to) }.ok_or(libc::EAFNOSUPPORT)?;
        world.bind_id(raw.addr(), to)
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_addr(
    raw: *mut rdma_cm_id,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    timeout: c_int,
) -> c_int {
    minus_one(world::enter("rdma_resolve_addr").and_then(|mut world| {
        // SAFETY: the caller's address.
        let source = unsafe { given(source) };
        // SAFETY: as above.
        let destination = unsafe { given(destination) };
        let destination = destination.ok_or(libc::EAFNOSUPPORT)?;
        let id = live(&mut world.cm.ids, raw);
        match id.phase {
            Phase::Idle => {
                let from = source.filter(|source| !source.ip().is_unspecified()).unwrap_or(destination);
                let port = source.map_or(0, |source| source.port());
                world.bind_id(raw.addr(), with_port(from, port))?;
            }
            Phase::Bound => {}
            _ => return Err(libc::EINVAL),
        }
        let destination = itself(destination);
        let device = world.devices.owner(destination).ok_or(libc::ENETUNREACH)?;
        world.settle_source(raw, device);
        let unresolved = world.script.unresolved;
        let expired = world.script.expires(Step::Address);
        let id = live(&mut world.cm.ids, raw);
        id.destination = Some(destination);
        // SAFETY: the id is live.
        let theirs = unsafe { &raw mut (*raw).route.addr.dst_addr_union.dst_storage };
        // SAFETY: the caller of the library reads this after the call.
        unsafe { address::write(theirs, destination) };
        // SAFETY: as above.
        let route = unsafe { &mut (*raw).route };
        route.addr.addr.ibaddr.dgid = gid(destination.ip());
        if world.is_answered("rdma_resolve_addr", raw.addr()) {
            return Ok(());
        }
        if !world.devices.is_up(device.1.port) && world.card.dress != Dress::Infiniband {
            // Nobody answers who is asked for the address of Ethernet.
            world.tell_status(raw.addr(), kind::ADDR_ERROR, -libc::EHOSTUNREACH);
            return Ok(());
        }
        let id = live(&mut world.cm.ids, raw);
        if unresolved {
            let (serial, time) = (id.serial, Duration::from_millis(timeout.max(1) as u64));
            world.after(time, Timer::Unresolved(serial));
            return Ok(());
        }
        if expired {
            world.tell_status(raw.addr(), kind::ADDR_ERROR, -libc::ETIMEDOUT);
            return Ok(());
        }
        if id.moved {
            world.tell_status(raw.addr(), kind::ADDR_ERROR, -libc::ENODEV);
            return Ok(());
        }
        id.phase = Phase::AddressResolved;
        world.tell_status(raw.addr(), kind::ADDR_RESOLVED, 0);
        Ok(())
    }))
}

/// The wildcard address as a destination is this host.
fn itself(destination: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match destination.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    if ip == destination.ip() { destination } else { SocketAddr::new(ip, destination.port()) }
}

/// The same address with another port.
fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// An address with a scope.
fn at(ip: IpAddr, scope: u32, port: u16) -> SocketAddr {
    match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, port),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, scope).into(),
    }
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_route(raw: *mut rdma_cm_id, _timeout: c_int) -> c_int {
    minus_one(world::enter("rdma_resolve_route").and_then(|mut world| {
        let id = live(&mut world.cm.ids, raw);
        if id.phase != Phase::AddressResolved {
            return Err(libc::EINVAL);
        }
        let place = id.place;
        if world.script.expires(Step::Route) {
            world.tell_status(raw.addr(), kind::ROUTE_ERROR, -libc::ETIMEDOUT);
            return Ok(());
        }
        if world.is_answered("rdma_resolve_route", raw.addr()) {
            return Ok(());
        }
        if place.is_some_and(|place| !world.devices.is_up(place.port)) {
            // The subnet manager does not answer.
            world.tell_status(raw.addr(), kind::ROUTE_ERROR, -libc::ETIMEDOUT);
            return Ok(());
        }
        live(&mut world.cm.ids, raw).phase = Phase::RouteResolved;
        world.tell_status(raw.addr(), kind::ROUTE_RESOLVED, 0);
        Ok(())
    }))
}

/// # Safety
/// As its manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_listen(raw: *mut rdma_cm_id, backlog: c_int) -> c_int {
    minus_one(world::enter("rdma_listen").and_then(|mut world| {
        let id = live(&mut world.cm.ids, raw);
        let (Phase::Bound, Some(source)) = (id.phase, id.source) else { return Err(libc::EINVAL) };
        if id.reuses {
            world.check_port(raw.addr(), source, true)?;
        }
        let id = live(&mut world.cm.ids, raw);
        id.phase = Phase::Listening;
        id.backlog = usize::try_from(backlog).ok().filter(|most| *most > 0).unwrap_or(1024);
        Ok(())
    }))
}
