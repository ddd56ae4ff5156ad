//! The adapter of an interface that the test creates, and the example that prints adapters.

use common::deviation::{all_adapters, loops_back};
use common::net::{ip, isolated};
use common::programs::{address, example, stdout};
use common::*;
use tokio_rdma::{Adapter, AdapterInfo, ReadLimits};

// AD-04
#[test]
fn an_adapter_that_is_not_the_loopback_interface_connects_to_itself() {
    isolated(async || {
        ip("link add left type veth peer name right");
        ip("address add 10.9.0.1/24 dev left");
        ip("link set left up");
        let adapter = adapter_at(address("10.9.0.1"));
        assert_eq!(adapter.info().name, "left");
        assert!(adapter.info().loopback && loops_back(&adapter, address("10.9.0.1")).await);
    });
}

/// The lines of the tool about one adapter, as name and value.
fn section<'a>(text: &'a str, info: &AdapterInfo) -> Vec<(&'a str, &'a str)> {
    let title = format!("  adapter {} (id {}, info version {})", info.name, info.id.0, info.version);
    let lines = text.lines().skip_while(|line| *line != title).skip(1);
    let fields = lines.take_while(|line| line.starts_with("    "));
    fields
        .map(|line| line.trim().split_once(' ').map_or((line, ""), |(name, rest)| (name, rest.trim())))
        .collect()
}

// AD-08
#[tokio::test]
async fn the_tool_prints_every_limit_and_flag_of_every_adapter() {
    let output = example("adapters", &[]);
    assert!(output.status.success(), "{output:?}");
    let text = stdout(&output);
    for info in all_adapters().iter().map(Adapter::info) {
        let yes = |flag| if flag { "yes".to_owned() } else { "no".to_owned() };
        let addresses: Vec<_> = info.addresses.iter().map(ToString::to_string).collect();
        let ReadLimits { inbound, outbound } = info.max_read_limits;
        let expected = [
            ("addresses", addresses.join(" ")),
            ("max_read_limits", format!("{inbound} inbound, {outbound} outbound")),
            ("max_request_data", info.max_request_data.to_string()),
            ("max_reply_data", info.max_reply_data.to_string()),
            ("max_active_reject_data", info.max_active_reject_data.to_string()),
            ("max_transfer", info.max_transfer.to_string()),
            ("max_registration", info.max_registration.to_string()),
            ("max_queue_depth", info.max_queue_depth.to_string()),
            ("max_entries", info.max_entries.to_string()),
            ("max_read_entries", info.max_read_entries.to_string()),
            ("iwarp", yes(info.iwarp)),
            ("three_phase", yes(info.three_phase)),
            ("exact_private_data", yes(info.exact_private_data)),
            ("loopback", yes(info.loopback)),
            ("in_order_dma", yes(info.in_order_dma)),
            ("early_completion", yes(info.early_completion)),
        ];
        let printed = section(&text, &info);
        let expected: Vec<_> = expected.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(printed, expected, "of adapter {}", info.name);
    }
}
