//! The facts of a device and of its ports, as the device has them.
//!
//! Runs on: fake, fake-iwarp

use std::net::{IpAddr, Ipv6Addr};

use common::life::eventually;
use common::process::alone;
use common::stream::streams_with;
use common::verbs::{fake, fake_reset};
use common::*;
use tokio_rdma::cm::{LinkLayer, PortState};
use tokio_rdma::error::{OpenError, StreamError};
use tokio_rdma::{AdapterEvent, StreamConfig};

/// The GID of an address.
fn gid(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

// AD-10: firmware and GUID of the device; state, link, speed, MTU, LID and GID of each port.
#[tokio::test]
async fn device_and_ports_have_their_facts() {
    if !alone(module_path!(), "device_and_ports_have_their_facts") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let info = adapter.info();
    assert_eq!((&info.firmware[..], info.ports), ("16.35.2000", 2));
    assert_eq!(info.node_guid, 0x00fa_ce00_00fa_ce01);
    let is_infiniband = fake("dress") == Some(1);
    let link = if is_infiniband { LinkLayer::InfiniBand } else { LinkLayer::Ethernet };
    let mut events = adapter.events();
    fake("port 2 down");
    assert_eq!(within(events.recv()).await, Some(AdapterEvent::PortDown { port: 2 }));
    let ports = adapter.ports().expect("queried");
    assert_eq!([ports[0].state, ports[1].state], [PortState::Active, PortState::Down]);
    for port in &ports {
        assert_eq!((port.mtu, port.speed), (Some(4096), Some(100_000_000_000)));
        assert_eq!(port.link_layer, Some(link));
        assert_eq!(port.lid, is_infiniband.then_some(0x10 + u16::from(port.number)));
    }
    let used = (!info.iwarp).then(|| gid(v4()));
    assert_eq!([ports[0].gid, ports[1].gid], [used, None]);
    fake("remove");
    assert_eq!(within(events.recv()).await, Some(AdapterEvent::Removed));
    assert!(matches!(adapter.ports(), Err(OpenError::DeviceRemoved)));
}

// CM-39: the path of each connection is that of its own addresses.
#[tokio::test]
async fn details_are_those_of_the_path() {
    if !alone(module_path!(), "details_are_those_of_the_path") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    fake(&format!("place {} 2 0", v6()));
    let adapter = adapter();
    for (ip, port) in [(v4(), 1), (v6(), 2)] {
        let pair = common::verbs::connected_at(&adapter, ip).await;
        let known = (!adapter.info().iwarp).then(|| gid(ip));
        for end in [&pair.active, &pair.passive] {
            let details = end.connection.details();
            assert_eq!(details.port, Some(port));
            assert_eq!([details.gid, details.peer_gid], [known; 2]);
            assert_eq!(details.path_mtu, known.map(|_| 4096));
        }
    }
}

// HW-19: each end of a stream registers what its settings say, as the program of the check-up counts.
#[tokio::test]
async fn streams_lock_what_their_settings_say() {
    if !alone(module_path!(), "streams_lock_what_their_settings_say") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let registered = || usize::try_from(fake("registered").expect("a fake device")).expect("a number");
    let usual = StreamConfig::default();
    let before = registered();
    for config in [usual, usual.send_buffer(70_001).receive_buffer(100_000).receive_depth(17)] {
        let each = config.locked_memory(&adapter).expect("in range");
        let streams = streams_with(&adapter, &config, &config).await;
        assert_eq!(registered(), before + 2 * each);
        drop(streams);
        eventually("the memory is returned", || registered() == before).await;
    }
    let error = usual.send_depth(0).locked_memory(&adapter).expect_err("out of range");
    assert!(matches!(error, StreamError::OutOfRange { .. }), "{error:?}");
}
