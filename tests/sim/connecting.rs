//! Connections that do not come about, and those that take their time.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::time::sleep;
use tokio_rdma::error::{BindError, ConnectError, OpenError};
use tokio_rdma::sim::{self, Network};
use tokio_rdma::soft::SoftConfig;
use tokio_rdma::{AcceptParams, ConnectParams, DisconnectReason, Status};

use crate::{
    CLIENT, PATH_TIMEOUT, PORT, SECOND, adapter, connect, connected, exchange, hosts, listening, queue_pair,
};

const SEEDS: std::ops::Range<u64> = 0..20;

#[test]
fn private_data_and_read_limits_cross_the_network() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        network.link(&server, &client).segments(1..=7);
        let (passive, active) = (adapter(&server), adapter(&client));
        let (listener, address) = listening(&passive, &server);
        let (theirs, ours) = (queue_pair(&passive), queue_pair(&active));
        let connector = active.connector();
        let params = ConnectParams::default().private_data(&b"question"[..]);
        let asking = connector.connect(&ours, address, params);
        let answering = async {
            let request = listener.request().await.expect("a request");
            assert_eq!(&request.private_data()[..], b"question");
            assert_eq!(request.peer_addr().ip(), client.address());
            request
                .accept(&theirs, AcceptParams::default().private_data(&b"answer"[..]))
                .await
                .expect("accepted")
        };
        let completing = async {
            let reply = asking.await.expect("a reply");
            assert_eq!(&reply.private_data()[..], b"answer");
            reply.complete().await.expect("connected")
        };
        let (theirs, ours) = tokio::join!(answering, completing);
        assert_eq!(theirs.read_limits().inbound, ours.read_limits().outbound);
        assert_eq!(theirs.read_limits().outbound, ours.read_limits().inbound);
        let (outcome, reason) = tokio::join!(ours.disconnect(), theirs.disconnected());
        outcome.expect("disconnected");
        assert_eq!(reason, DisconnectReason::Peer);
    });
}

// Options are those of the attempt, and not of the next one of the same connector (CM-13, CM-19).
#[test]
fn options_of_an_attempt_end_with_it() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let active = adapter(&client);
        let connector = active.connector();
        connector.bind((client.address(), 0).into()).expect("bound");
        let queue_pair = queue_pair(&active);
        let nobody = SocketAddr::new(server.address(), PORT);
        for class in [None, Some(0xB8), None] {
            let params = match class {
                Some(class) => ConnectParams::default().traffic_class(class).multipath(true),
                None => ConnectParams::default(),
            };
            let error = connector.connect(&queue_pair, nobody, params).await.expect_err("nobody listens");
            assert_eq!(error.status(), Status::CONNECTION_REFUSED);
            let (trace, multipath) = (network.trace(), class.is_some());
            let last = trace.lines().rfind(|line| line.contains("connects to")).expect("an attempt");
            assert!(last.contains(&format!("tos {class:?}, multipath {multipath}")), "{last}");
        }
    });
}

#[test]
fn a_host_has_an_address_of_each_family() {
    const SERVER6: &str = "fd00::1";
    const CLIENT6: &str = "fd00::2";
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        server.add_address(SERVER6);
        let v6: IpAddr = SERVER6.parse().expect("an address");
        let passive = adapter(&server);
        assert_eq!(passive.info().addresses, [server.address(), v6]);
        let listener = passive.listener();
        listener.bind((v6, PORT).into()).expect("bound");
        listener.listen(0).expect("listening");
        // The client has no address of the family.
        let active = adapter(&client);
        let ours = queue_pair(&active);
        let error = active.connector().connect(&ours, (v6, PORT).into(), ConnectParams::default()).await;
        assert_eq!(error.expect_err("no way").status(), Status::INVALID_ADDRESS);
        // An adapter that is open has it, too.
        client.add_address(CLIENT6);
        let (ours, theirs) = (queue_pair(&active), queue_pair(&passive));
        let (accepted, connected) =
            connect((&listener, &theirs), (&active.connector(), &ours), ConnectParams::default()).await;
        assert_eq!(accepted.peer_addr().ip(), CLIENT6.parse::<IpAddr>().expect("an address"));
        assert_eq!(accepted.peer_addr(), connected.local_addr());
    });
}

#[test]
fn the_runtime_needs_no_io() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let network = Network::new(1);
        let (server, client) = hosts(&network);
        let (theirs, ours) = connected(&server, &client).await;
        exchange(&theirs, &ours).await;
    });
}

#[test]
fn a_rejection_says_why() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (adapter(&server), adapter(&client));
        let (listener, address) = listening(&passive, &server);
        let ours = queue_pair(&active);
        let connector = active.connector();
        let (outcome, ()) =
            tokio::join!(connector.connect(&ours, address, ConnectParams::default()), async {
                listener.request().await.expect("a request").reject(b"not you").await.expect("rejected");
            });
        let error = outcome.expect_err("rejected");
        let ConnectError::Rejected { private_data, .. } = &error else { panic!("{error:?}") };
        assert_eq!(&private_data.as_ref().expect("data")[..], b"not you");
    });
}

#[test]
fn nobody_listens() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let active = adapter(&client);
        let ours = queue_pair(&active);
        let address = SocketAddr::new(server.address(), PORT);
        let outcome = active.connector().connect(&ours, address, ConnectParams::default()).await;
        let error = outcome.expect_err("nobody listens");
        assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
        // The queue pair is as it was.
        let (listener, address) = listening(&adapter(&server), &server);
        let asking = active.connector();
        let asked = asking.connect(&ours, address, ConnectParams::default());
        let (reply, ()) = tokio::join!(asked, async { drop(listener.request().await.expect("a request")) });
        let error = reply.map(drop).expect_err("the request was dropped");
        assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    });
}

#[test]
fn nobody_has_the_address() {
    sim::check(SEEDS, async |network: Network| {
        let client = network.host(CLIENT);
        let active = adapter(&client);
        let ours = queue_pair(&active);
        let address = "10.0.0.9:7471".parse().expect("an address");
        let outcome = active.connector().connect(&ours, address, ConnectParams::default()).await;
        let error = outcome.expect_err("no such host");
        assert_eq!(error.status(), Status::NETWORK_UNREACHABLE, "{error:?}");
        let error = client.provider().local_for(address.ip()).expect_err("no way");
        assert!(matches!(error, OpenError::Unreachable(_)), "{error:?}");
    });
}

// Without a limit of the caller it is TCP that gives up.
#[test]
fn nobody_answers() {
    sim::check(0..4, async |network: Network| {
        let (server, client) = hosts(&network);
        let active = adapter(&client);
        let ours = queue_pair(&active);
        let (_listener, address) = listening(&adapter(&server), &server);
        server.crash();
        for (limit, expected) in [(Some(3 * SECOND), 3 * SECOND), (None, 127 * SECOND)] {
            let begin = network.elapsed();
            let mut params = ConnectParams::default();
            if let Some(limit) = limit {
                params = params.timeout(limit);
            }
            let error = active.connector().connect(&ours, address, params).await.expect_err("no answer");
            assert_eq!(error.status(), Status::IO_TIMEOUT, "{error:?}");
            let time = network.elapsed() - begin;
            assert!(time >= expected && time <= expected + SECOND / 10, "{time:?}");
        }
    });
}

#[test]
fn a_cut_during_the_handshake_is_a_delay() {
    sim::check(0..100, async |network: Network| {
        let (server, client) = hosts(&network);
        network.link(&server, &client).latency(Duration::from_millis(1)..=Duration::from_millis(50));
        let cutting = async {
            sleep(Duration::from_millis(network.random(0..=200))).await;
            // TCP tries again in time for the server, which waits for the request for 5 s.
            network.partition(&server, &client, Duration::from_millis(network.random(1..=1500)));
        };
        let ((theirs, ours), ()) = tokio::join!(connected(&server, &client), cutting);
        exchange(&theirs, &ours).await;
        assert!(network.elapsed() < PATH_TIMEOUT);
    });
}

// The end of a stream is sent again although the peer sends keepalive probes in between.
#[test]
fn a_refusal_during_a_cut_arrives_afterwards() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let config = SoftConfig::default().path_timeout(Some(6 * SECOND));
        let active = client.provider_with(config).open(client.address()).expect("opened");
        let (listener, address) = listening(&adapter(&server), &server);
        let (ours, connector) = (queue_pair(&active), active.connector());
        let asking = connector.connect(&ours, address, ConnectParams::default());
        let dropping = async {
            let request = listener.request().await.expect("a request");
            // It is acknowledged by then.
            sleep(Duration::from_millis(10)).await;
            network.partition(&server, &client, Duration::from_millis(network.random(3200..=3800)));
            drop(request);
        };
        let (asked, ()) = tokio::join!(tokio::time::timeout(60 * SECOND, asking), dropping);
        let error = asked.expect("it is sent again").map(drop).expect_err("refused");
        assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    });
}

// The path timeout counts from the last sign of the peer, and not from the request: half of the request arrives, and was
// acknowledged 4 s before the first look.
#[test]
fn partition_within_path_timeout_delays_a_request() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        // The request takes 5 s.
        network.link(&server, &client).bandwidth(50).segments(1..=10);
        let patient = SoftConfig::default().request_timeout(60 * SECOND);
        let passive = server.provider_with(patient).open(server.address()).expect("opened");
        let config = SoftConfig::default().path_timeout(Some(10 * SECOND));
        let active = client.provider_with(config).open(client.address()).expect("opened");
        let (listener, address) = listening(&passive, &server);
        let (ours, connector) = (queue_pair(&active), active.connector());
        network.at(4 * SECOND, move |network| {
            network.partition(&server, &client, Duration::from_millis(6500));
        });
        let params = ConnectParams::default().private_data(vec![7; 250]);
        let asking = async {
            let error = connector.connect(&ours, address, params).await.map(drop).expect_err("rejected");
            assert!(matches!(error, ConnectError::Rejected { .. }), "{error:?}");
        };
        let refusing = async {
            let request = listener.request().await.expect("a request");
            assert_eq!(&request.private_data()[..], [7; 250]);
            assert!(network.elapsed() > 10 * SECOND, "the cut came too late");
            request.reject(b"no").await.expect("rejected");
        };
        tokio::join!(asking, refusing);
    });
}

#[test]
fn ports_are_of_a_host() {
    sim::check([0], async |network: Network| {
        let (server, client) = hosts(&network);
        let (passive, active) = (adapter(&server), adapter(&client));
        let (_first, _) = listening(&passive, &server);
        let again = passive.listener().bind((server.address(), PORT).into());
        assert!(matches!(again, Err(BindError::SharingViolation(_))), "{again:?}");
        let _second = listening(&active, &client);
        let foreign = active.listener().bind((server.address(), 1).into());
        assert!(matches!(foreign, Err(BindError::InvalidAddress(_))), "{foreign:?}");
        // Another network has hosts of its own.
        let (other, _) = hosts(&Network::new(1));
        let _third = listening(&adapter(&other), &other);
    });
}

#[test]
fn ports_run_out() {
    sim::check(SEEDS, async |network: Network| {
        let (server, client) = hosts(&network);
        let config = tokio_rdma::soft::SoftConfig::default().ephemeral_ports(5000..=5002);
        let active = client.provider_with(config).open(client.address()).expect("opened");
        let bind = || {
            let connector = active.connector();
            connector.bind((client.address(), 0).into()).map(|()| connector)
        };
        let mut held: Vec<_> = (0..3).map(|_| bind().expect("a port")).collect();
        let error = bind().map(drop).expect_err("no port is left");
        assert!(matches!(error, BindError::TooManyAddresses(_)), "{error:?}");
        held.pop();
        bind().expect("one is free again");
        drop(server);
    });
}

// Both ends have the same adapter and the same address (CM-30).
#[test]
fn a_host_connects_to_itself() {
    sim::check(SEEDS, async |network: Network| {
        let (server, _) = hosts(&network);
        let (theirs, ours) = connected(&server, &server).await;
        exchange(&theirs, &ours).await;
    });
}
