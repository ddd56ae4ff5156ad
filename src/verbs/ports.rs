//! The facts of ports.

use std::io;

use super::context::{AdapterContext, failed};
use crate::error::OpenError;
use crate::provider::details::{LinkLayer, PortInfo, PortState};
use crate::sys::{LinkState, PortAttributes};

impl AdapterContext {
    /// Returns the ports of the device as they are now.
    ///
    /// # Errors
    /// `DeviceRemoved`; `Os`.
    pub(crate) fn port_info(&self) -> Result<Vec<PortInfo>, OpenError> {
        let opened = self.opened().ok_or(OpenError::DeviceRemoved)?;
        let used = if self.is_iwarp() { None } else { opened.gid() };
        let port = |number| {
            let attributes = opened.context.port(number)?;
            let is_infiniband = attributes.is_infiniband();
            let PortAttributes { state, mtu, speed, lid, .. } = attributes;
            io::Result::Ok(PortInfo {
                number,
                state: state_of(state),
                mtu,
                speed,
                link_layer: is_infiniband
                    .map(|yes| if yes { LinkLayer::InfiniBand } else { LinkLayer::Ethernet }),
                lid: is_infiniband.unwrap_or(false).then_some(lid),
                gid: used.and_then(|(port, gid)| (port == number).then_some(gid)),
            })
        };
        (1..=self.attributes.ports).map(port).collect::<Result<_, _>>().map_err(failed("ibv_query_port"))
    }
}

fn state_of(state: LinkState) -> PortState {
    match state {
        LinkState::Down => PortState::Down,
        LinkState::Initializing => PortState::Initializing,
        LinkState::Armed => PortState::Armed,
        LinkState::Active => PortState::Active,
        LinkState::ActiveDeferred => PortState::ActiveDeferred,
        LinkState::Unknown => PortState::Unknown,
    }
}
