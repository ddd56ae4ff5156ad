//! The device of a run is the one that the tests use.
//!
//! Runs on: soft, sim, rxe, siw

use std::time::{Duration, Instant};

use common::cm::exchange;
use common::*;
use tokio_rdma::ProviderKind;

// SIM-04: the modules of this program that name `sim` in their headers use the simulated network in the step `sim` of
// `cargo xtask test`, as this one does.
#[tokio::test]
async fn the_device_that_is_named_is_used() {
    let adapter = adapter();
    assert!(both().iter().all(|ip| adapter.info().addresses.contains(ip)), "{:?}", adapter.info().addresses);
    let device = Device::under_test();
    assert_eq!(adapter.info().provider == ProviderKind::Soft, device.is_soft());
    assert_eq!(adapter.info().name == "sim0", device == Device::Sim);
    let Pair { active, passive } = connected(&adapter).await;
    if device == Device::Sim {
        // Time is virtual: an idle hour of a connection takes none.
        let begin = Instant::now();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
    exchange(&adapter, &active.queue_pair, &passive.queue_pair).await;
}
