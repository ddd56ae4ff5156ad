//! The choice of devices by name, port and kind, in a machine with several.
//!
//! Runs on: fake, fake-iwarp

use std::net::IpAddr;

use common::process::{alone, alone_with};
use common::raw::{bytes, room, success};
use common::verbs::{connected_at, fake};
use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::error::{OpenError, StreamError};
use tokio_rdma::io::{RdmaConnector, RdmaListener, RdmaStream};
use tokio_rdma::verbs::{CheckUp, Fault, VerbsConfig, check_up};
use tokio_rdma::{Adapter, Provider, ProviderKind, Status};

/// The variable, and a list that excludes the second device.
const WITHOUT_THE_SECOND: (&str, &str) = ("TOKIO_RDMA_DEVICES", "^fake1");

/// Adds a device that has the IPv6 address. `None`, with a line that says so, where another device is tested.
fn two_devices() -> Option<()> {
    fake("reset")?;
    fake("device fake1")?;
    fake(&format!("place {} 1 0 fake1", v6()))?;
    Some(())
}

fn with(list: &str) -> Provider {
    Provider::verbs_with(VerbsConfig::default().devices(list)).expect("there are devices")
}

/// The word for the kind of the devices.
fn kind() -> &'static str {
    match fake("dress") {
        Some(0) => "roce",
        Some(1) => "infiniband",
        Some(2) => "iwarp",
        other => panic!("{other:?}"),
    }
}

/// The two ends of a stream to a listener.
async fn streams(listener: &RdmaListener, ip: IpAddr) -> (RdmaStream, RdmaStream) {
    let port = listener.local_addr().expect("listening").port();
    let both = async { tokio::join!(RdmaStream::connect((ip, port)), listener.accept()) };
    let (ours, theirs) = within(both).await;
    (ours.expect("connected"), theirs.expect("accepted").0)
}

/// A stream within this machine, at an address.
async fn streams_at(ip: IpAddr) {
    let listener = RdmaListener::bind((ip, 0)).await.expect("listening");
    let (mut ours, mut theirs) = streams(&listener, ip).await;
    within(ours.write_all(b"through")).await.expect("written");
    let mut received = [0; 7];
    within(theirs.read_exact(&mut received)).await.expect("read");
    assert_eq!(&received, b"through");
}

/// The addresses, adapters and reasons of the choices.
fn choices(found: &CheckUp) -> Vec<(IpAddr, &str, ProviderKind, &str)> {
    let choices = found.choices.iter();
    choices.map(|choice| (choice.address, &choice.adapter[..], choice.provider, &choice.reason[..])).collect()
}

// HW-15: the settings name the devices that are used or those that are not, by name, port and kind.
#[tokio::test]
async fn settings_choose_devices() {
    if !alone(module_path!(), "settings_choose_devices") {
        return;
    }
    let Some(()) = two_devices() else { return };
    let all = both().to_vec();
    let other = if kind() == "iwarp" { "roce" } else { "iwarp" };
    for (list, expected) in [
        ("", all.clone()),
        ("fake0", vec![v4()]),
        ("fake1", vec![v6()]),
        ("fake0, fake1", all.clone()),
        ("fake*", all.clone()),
        ("^fake1", vec![v4()]),
        ("^fake0,fake1", vec![]),
        ("^*", vec![]),
        ("fake0:1", vec![v4()]),
        ("fake0:2", vec![]),
        ("^fake0:1", vec![v6()]),
        (kind(), all.clone()),
        (&format!("^{}", kind()), vec![]),
        (other, vec![]),
        (&format!("^{other}"), all.clone()),
    ] {
        let provider = with(list);
        assert_eq!(provider.addresses().expect("known"), expected, "{list:?}");
        for ip in both() {
            assert_eq!(provider.resolve(ip).is_ok(), expected.contains(&ip), "{list:?} {ip}");
            assert_eq!(provider.is_usable(ip), expected.contains(&ip), "{list:?} {ip}");
        }
    }
}

// HW-15: a device that is not used can be found neither by its address nor by its id, and the error says why.
#[tokio::test]
async fn the_error_names_the_device_and_the_list() {
    if !alone(module_path!(), "the_error_names_the_device_and_the_list") {
        return;
    }
    let Some(()) = two_devices() else { return };
    let id = with("").resolve(v6()).expect("all are used");
    let provider = with("^fake1");
    let error = provider.resolve(v6()).expect_err("excluded");
    assert_eq!(
        error.to_string(),
        r#"the device fake1, which has the address ::1, is excluded by VerbsConfig::devices("^fake1")"#
    );
    assert_eq!(error.status(), Status::INVALID_ADDRESS);
    assert!(matches!(provider.local_for(v6()), Err(OpenError::Excluded { .. })));
    assert!(matches!(provider.open(v6()), Err(OpenError::Excluded { .. })));
    assert!(matches!(provider.open(id), Err(OpenError::InvalidAdapter(_))));
    // The ports of one device: its adapter has the addresses of those that are used.
    fake(&format!("place {} 2 0", v6()));
    let adapter = with("^fake0:2").open(v4()).expect("port 1 is used");
    assert_eq!(adapter.info().addresses, [v4()]);
    // The devices that are used work.
    let pair = connected_at(&adapter, v4()).await;
    let receive = pair.passive.queue_pair.receive(room(&adapter, 8)).expect("posted");
    success(pair.active.queue_pair.send(bytes(&adapter, b"received")).expect("posted")).await;
    assert_eq!(&success(receive).await.1[..], b"received");
}

// HW-15: with the variable, every program leaves the device alone, and the soft provider serves its address.
#[tokio::test]
async fn the_environment_excludes_a_device() {
    if !alone_with(module_path!(), "the_environment_excludes_a_device", &[WITHOUT_THE_SECOND]) {
        return;
    }
    let Some(()) = two_devices() else { return };
    let verbs = Provider::verbs().expect("there are devices");
    assert_eq!(verbs.addresses().expect("known"), [v4()]);
    let error = verbs.resolve(v6()).expect_err("excluded").to_string();
    assert!(error.ends_with("is excluded by TOKIO_RDMA_DEVICES=^fake1"), "{error}");
    // A program cannot bring it back, and may exclude more.
    assert!(matches!(with("fake1").resolve(v6()), Err(OpenError::Excluded { by, .. }) if by.contains('=')));
    assert!(with("^fake0").addresses().expect("known").is_empty());
    let kind = |ip| Adapter::open(ip).expect("opened").info().provider;
    assert_eq!((kind(v4()), kind(v6())), (ProviderKind::Verbs, ProviderKind::Soft));
    for ip in both() {
        streams_at(ip).await;
    }
    // A listener at every address has one of each provider.
    let listener = RdmaListener::bind("[::]:0").await.expect("listening");
    for ip in both() {
        drop(streams(&listener, ip).await);
    }
    let found = within(check_up(None)).await;
    assert!(found.faults.is_empty(), "{found:?}");
    let reason = "the device fake1, which has the address ::1, is excluded by TOKIO_RDMA_DEVICES=^fake1";
    assert_eq!(
        choices(&found),
        [
            (v4(), "fake0", ProviderKind::Verbs, "rdma_cm finds this device for the address"),
            (v6(), "lo", ProviderKind::Soft, reason),
        ]
    );
    assert_eq!(found.choices[1].to_string(), format!("::1: lo of the provider soft, because {reason}"));
    // A fault of a device that nobody uses is none.
    fake(&format!("refuse ibv_open_device {}", libc::EIO));
    let found = within(check_up(Some(v6()))).await;
    assert!(found.faults.is_empty(), "{found:?}");
}

// HW-15, HW-17: beside a device that works, rdma_cm chooses one that cannot connect to itself. The check-up says what to
// type, and typing it helps.
#[tokio::test]
async fn rival_beside_working_device_is_named() {
    if !alone(module_path!(), "rival_beside_working_device_is_named") {
        return;
    }
    let Some(()) = two_devices() else { return };
    fake(&format!("rival fake1 {}", libc::EPROTO));
    let listener = RdmaListener::bind((v6(), 0)).await.expect("listening");
    let address = listener.local_addr().expect("listening");
    let error = within(RdmaConnector::new().connect(address)).await.expect_err("it cannot connect");
    assert!(matches!(error, StreamError::Connect(_)), "{error:?}");
    let found = within(check_up(None)).await;
    let [fault @ Fault::Rival { device, address, .. }] = &found.faults[..] else { panic!("{found:?}") };
    assert_eq!((&device[..], *address), ("fake1", v6()));
    let (variable, list) = WITHOUT_THE_SECOND;
    assert!(fault.remedy().starts_with(&format!("export {variable}={list}, ")), "{}", fault.remedy());
    assert_eq!(found.choices.len(), 2, "{found:?}");
}

// HW-15: the same machine after that.
#[tokio::test]
async fn excluded_rival_does_not_interfere() {
    if !alone_with(module_path!(), "excluded_rival_does_not_interfere", &[WITHOUT_THE_SECOND]) {
        return;
    }
    let Some(()) = two_devices() else { return };
    fake(&format!("rival fake1 {}", libc::EPROTO));
    for ip in both() {
        streams_at(ip).await;
    }
    let found = within(check_up(None)).await;
    assert!(found.faults.is_empty(), "{found:?}");
}
