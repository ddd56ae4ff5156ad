//! Settings of the soft provider with extreme values.

use tokio_rdma::soft::{Capture, SoftConfig};

use super::*;

// Each time of `SoftConfig` may be zero and `Duration::MAX`, except that no request can arrive in no time (SEC-09).
#[tokio::test]
async fn times_of_the_provider() {
    for time in TIMES {
        let config = SoftConfig::default;
        for config in [
            config().spin(time),
            config().path_timeout(Some(time)),
            config().disconnect_timeout(time),
            config().disconnect_timeout(time).path_timeout(None),
            config().message_timeout(Some(time)),
            config().message_timeout(None),
            config().address_timeout(time),
            // No peer is fast enough for none at all.
            config().request_timeout(time.max(patience())),
        ] {
            assert_connects_and_drops(&adapter_with(config)).await;
        }
    }
}

// A request is refused unless it arrives together with its connection (SEC-09).
#[tokio::test]
async fn no_time_for_a_request_is_a_refusal() {
    let adapter = adapter_with(SoftConfig::default().request_timeout(Duration::ZERO));
    let (listener, address) = listening(&adapter);
    let (connector, queue_pair) = (adapter.connector(), queue_pair(&adapter));
    let connect = connector.connect(&queue_pair, address, ConnectParams::default());
    tokio::select! {
        outcome = within(connect) => drop(outcome.expect_err("refused")),
        request = listener.request() => drop(request.expect("it came together with the connection")),
    }
}

// Zero and `usize::MAX` are taken, and a range without a usable port counts as the default (SEC-09).
#[tokio::test]
async fn numbers_of_the_provider() {
    for half_open in NUMBERS {
        assert_connects(&adapter_with(SoftConfig::default().half_open(half_open))).await;
    }
    // A capture of nothing, and of everything.
    for limit in NUMBERS {
        let capture = Capture::new(limit);
        assert_connects(&adapter_with(SoftConfig::default().capture(&capture))).await;
    }
    // A range of none, or of a port that cannot be had, counts as the default.
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is tried")]
    for ports in [0..=0, 0..=65535, 65535..=0] {
        let adapter = adapter_with(SoftConfig::default().ephemeral_ports(ports));
        let (_listener, address) = listening(&adapter);
        assert!(address.port() > 0);
    }
}
