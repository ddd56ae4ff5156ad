//! The adapter of an interface that the test creates, and the example that prints adapters.

use common::deviation::{all_adapters, loops_back};
use common::life::eventually;
use common::net::{ip, isolated};
use common::programs::{address, example, stdout};
use common::*;
use tokio_rdma::cm::PortState;
use tokio_rdma::error::OpenError;
use tokio_rdma::{Adapter, AdapterEvent, AdapterEvents, AdapterInfo, ReadLimits};

// The interface is one end of a veth pair, and a connection to its own address stays on the host (AD-04, CM-30).
#[test]
fn non_loopback_adapter_connects_to_itself() {
    isolated(async || {
        ip("link add left type veth peer name right");
        ip("address add 10.9.0.1/24 dev left");
        ip("link set left up");
        let adapter = adapter_at(address("10.9.0.1"));
        assert_eq!(adapter.info().name, "left");
        assert!(adapter.info().loopback && loops_back(&adapter, address("10.9.0.1")).await);
    });
}

/// The next event of an adapter.
async fn event(events: &mut AdapterEvents) -> Option<AdapterEvent> {
    within(events.recv()).await
}

// AD-09: the carrier, the switch and the addresses of the interface, and its deletion.
#[test]
fn changes_of_the_interface_are_events() {
    isolated(async || {
        ip("link add left type veth peer name right");
        ip("address add 10.9.0.1/24 dev left");
        ip("link set right up");
        ip("link set left up");
        // The kernel notices the carrier a moment after both ends are up.
        let open = || adapter_at(address("10.9.0.1"));
        let is_up = || open().ports().is_ok_and(|ports| ports[0].state == PortState::Active);
        eventually("the carrier is noticed", is_up).await;
        let adapter = open();
        let mut events = adapter.events();
        for _ in 0..2 {
            ip("link set right down");
            assert_eq!(event(&mut events).await, Some(AdapterEvent::PortDown { port: 1 }));
            // AD-10: the port is as the event says.
            assert_eq!(adapter.ports().expect("listed")[0].state, PortState::Down);
            ip("link set right up");
            assert_eq!(event(&mut events).await, Some(AdapterEvent::PortUp { port: 1 }));
            assert_eq!(adapter.ports().expect("listed")[0].state, PortState::Active);
        }
        ip("address add 10.9.0.2/24 dev left");
        assert_eq!(event(&mut events).await, Some(AdapterEvent::AddressesChanged));
        // A change that another call has found first.
        ip("address del 10.9.0.2/24 dev left");
        assert_eq!(adapter.info().addresses, [address("10.9.0.1")]);
        assert_eq!(event(&mut events).await, Some(AdapterEvent::AddressesChanged));
        ip("link set left down");
        assert_eq!(event(&mut events).await, Some(AdapterEvent::PortDown { port: 1 }));
        // The changes of another interface are no events.
        ip("address add 10.10.0.1/24 dev right");
        ip("link del left");
        assert_eq!(event(&mut events).await, Some(AdapterEvent::Removed));
        assert_eq!(event(&mut events).await, None);
        let mut later = adapter.events();
        assert_eq!([event(&mut later).await, event(&mut later).await], [Some(AdapterEvent::Removed), None]);
        assert!(matches!(adapter.ports(), Err(OpenError::DeviceRemoved)));
    });
}

// AD-09: a stream does not keep the adapter open, and ends with it or with its runtime.
#[tokio::test]
async fn events_end_with_the_adapter_or_its_runtime() {
    let adapter = adapter();
    let mut events = adapter.events();
    drop(adapter);
    assert_eq!(event(&mut events).await, None);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let adapter = runtime.spawn(async { common::adapter() }).await.expect("opened");
    let mut events = adapter.events();
    runtime.shutdown_background();
    assert_eq!(event(&mut events).await, None);
    assert_eq!(event(&mut adapter.events()).await, None);
}

/// Returns the lines of the tool about one adapter, as name and value.
fn section<'a>(text: &'a str, info: &AdapterInfo) -> Vec<(&'a str, &'a str)> {
    let title = format!("  adapter {} (id {}, info version {})", info.name, info.id.0, info.version);
    let lines = text.lines().skip_while(|line| *line != title).skip(1);
    let fields = lines.take_while(|line| line.starts_with("    "));
    fields
        .map(|line| line.trim().split_once(' ').map_or((line, ""), |(name, rest)| (name, rest.trim())))
        .collect()
}

// A field of `AdapterInfo` that the tool leaves out fails the test, because `Debug` names every field (AD-08).
#[tokio::test]
async fn adapters_tool_prints_every_limit_and_flag() {
    let output = example("adapters", &[]);
    assert!(output.status.success(), "{output:?}");
    let text = stdout(&output);
    for info in all_adapters().iter().map(Adapter::info) {
        let yes = |flag| if flag { "yes".to_owned() } else { "no".to_owned() };
        let addresses: Vec<_> = info.addresses.iter().map(ToString::to_string).collect();
        let ReadLimits { inbound, outbound } = info.max_read_limits;
        let number = |limit: usize| limit.to_string();
        let timeout = info.answer_timeout.map_or("none".to_owned(), |limit| format!("{} s", limit.as_secs()));
        let expected = [
            ("vendor_id", format!("{:#x}", info.vendor_id)),
            ("device_id", format!("{:#x}", info.device_id)),
            ("firmware", if info.firmware.is_empty() { "none".to_owned() } else { info.firmware.clone() }),
            ("node_guid", format!("{:#x}", info.node_guid)),
            ("ports", info.ports.to_string()),
            ("addresses", addresses.join(" ")),
            ("max_read_limits", format!("{inbound} inbound, {outbound} outbound")),
            ("max_request_data", number(info.max_request_data)),
            ("max_reply_data", number(info.max_reply_data)),
            ("max_reject_data", number(info.max_reject_data)),
            ("max_active_reject_data", number(info.max_active_reject_data)),
            ("max_transfer", number(info.max_transfer)),
            ("max_registration", number(info.max_registration)),
            ("max_queue_depth", number(info.max_queue_depth)),
            ("max_entries", number(info.max_entries)),
            ("max_read_entries", number(info.max_read_entries)),
            ("max_inline", number(info.max_inline)),
            ("max_completion_depth", number(info.max_completion_depth)),
            ("max_shared_depth", number(info.max_shared_depth)),
            ("answer_timeout", timeout),
            ("iwarp", yes(info.iwarp)),
            ("three_phase", yes(info.three_phase)),
            ("exact_private_data", yes(info.exact_private_data)),
            ("loopback", yes(info.loopback)),
            ("in_order_dma", yes(info.in_order_dma)),
            ("early_completion", yes(info.early_completion)),
            ("passive_sends_first", yes(info.passive_sends_first)),
            ("per_request_errors", yes(info.per_request_errors)),
            ("accept_limits_reads", yes(info.accept_limits_reads)),
            ("detects_withdrawal", yes(info.detects_withdrawal)),
            ("checks_remote_read", yes(info.checks_remote_read)),
            ("read_sink_required", yes(info.read_sink_required)),
            ("memory_windows", yes(info.memory_windows)),
            ("checks_window_bounds", yes(info.checks_window_bounds)),
            ("atomics", yes(info.atomics)),
            ("global_atomics", yes(info.global_atomics)),
            ("invalidates", yes(info.invalidates)),
            ("solicited_events", yes(info.solicited_events)),
            ("waits_for_shared_receives", yes(info.waits_for_shared_receives)),
            ("immediate", yes(info.immediate)),
            ("immediate_send", yes(info.immediate_send)),
        ];
        // Every field that the structure has, as its `Debug` names them; the first line of the section has the others.
        let debug = format!("{info:#?}");
        let fields = debug.lines().filter_map(|line| line.strip_prefix("    ")?.split_once(':'));
        let fields = fields.map(|(name, _)| name).filter(|name| !name.starts_with(' '));
        let missing: Vec<_> = fields
            .filter(|name| !["version", "provider", "id", "name"].contains(name))
            .filter(|name| !expected.iter().any(|(known, _)| known == name))
            .collect();
        assert!(missing.is_empty(), "not printed: {missing:?}");
        let printed = section(&text, &info);
        let expected: Vec<_> = expected.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(printed, expected, "of adapter {}", info.name);
    }
}
