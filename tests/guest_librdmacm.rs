//! Runs on: guest
//!
//! ucmatose, cmtime, rdma_client and rdma_server of rdma-core, in both roles: against our soft provider from siw, and
//! against our verbs provider on one device.

mod common;

use std::net::SocketAddr;

use common::guest::{Siw, Stage, is_guest, port, start};
use common::peers::{self, Cmatose};

/// A program of theirs that is a client of ours.
fn client(stage: &Stage, program: &str, server: SocketAddr, flags: &str) -> String {
    let arguments = format!("-s {} -p {} {flags}", server.ip(), server.port());
    let outcome = start(program, &arguments, None).finish();
    assert!(outcome.status.success(), "{}: {outcome}", stage.name);
    outcome.stdout
}

const CMATOSE: Cmatose = Cmatose { connections: 3, messages: 10, size: 5000 };

fn cmatose(stage: &Stage, version: usize, cmatose: Cmatose) {
    let server = SocketAddr::new(stage.ours[version], port());
    let serving = stage.begin_serving(server, async move |adapter, listener| {
        cmatose.serve(&adapter, &listener).await;
    });
    let said = client(stage, "ucmatose", server, &cmatose.flags());
    assert!(said.contains("data transfers complete"), "{}: {said}", stage.name);
    serving.end();

    let server = SocketAddr::new(stage.theirs[version], port());
    let arguments = format!("-b {} -p {} {}", server.ip(), server.port(), cmatose.flags());
    let program = start("ucmatose", &arguments, Some(server.port()));
    stage.begin(version, async move |adapter| cmatose.call(&adapter, server).await).end();
    let outcome = program.finish();
    assert!(outcome.status.success(), "{}: {outcome}", stage.name);
    assert!(outcome.stdout.contains("data transfers complete"), "{}: {outcome}", stage.name);
}

/// Fewer than the queue pairs that siw has for one process.
const CONNECTIONS: usize = 40;

fn cmtime(stage: &Stage) {
    let server = SocketAddr::new(stage.ours[0], port());
    let serving = stage.begin_serving(server, async |adapter, listener| {
        peers::cmtime_serve(&adapter, &listener, CONNECTIONS).await;
    });
    let said = client(stage, "cmtime", server, &format!("-c {CONNECTIONS}"));
    assert!(said.contains("us / conn") && !said.contains("event:"), "{}: {said}", stage.name);
    serving.end();

    let server = SocketAddr::new(stage.theirs[0], port());
    let arguments = format!("-b {} -p {}", server.ip(), server.port());
    let mut program = start("cmtime", &arguments, Some(server.port()));
    stage.begin(0, async move |adapter| peers::cmtime_call(&adapter, server, CONNECTIONS).await).end();
    // It serves for ever.
    assert!(program.is_running(), "{}: {}", stage.name, program.said());
}

fn hello(stage: &Stage) {
    let server = SocketAddr::new(stage.ours[0], port());
    let serving = stage.begin_serving(server, async |adapter, listener| {
        peers::hello_serve(&adapter, &listener).await;
    });
    let said = client(stage, "rdma_client", server, "");
    assert!(said.contains("rdma_client: end 0"), "{}: {said}", stage.name);
    serving.end();

    let server = SocketAddr::new(stage.theirs[0], port());
    let arguments = format!("-s {} -p {}", server.ip(), server.port());
    let program = start("rdma_server", &arguments, Some(server.port()));
    stage.begin(0, async move |adapter| peers::hello_call(&adapter, server).await).end();
    let outcome = program.finish();
    assert!(outcome.status.success(), "{}: {outcome}", stage.name);
}

/// Everything, on each of the stages.
fn all(stage: &Stage) {
    cmatose(stage, 0, CMATOSE);
    cmatose(stage, 1, CMATOSE);
    cmtime(stage);
    hello(stage);
}

#[test]
fn soft_and_siw_as_it_is() {
    if is_guest() {
        all(&Stage::soft(Siw::Stock));
    }
}

#[test]
fn soft_and_siw_with_peer_to_peer_mode_and_checksums() {
    if is_guest() {
        all(&Stage::soft(Siw::PeerToPeer));
    }
}

#[test]
fn soft_and_siw_over_a_bad_cable() {
    if is_guest() {
        let stage = Stage::soft(Siw::Stock);
        stage.cable.as_ref().expect("there is one").impair();
        cmatose(&stage, 0, Cmatose { connections: 3, messages: 100, size: 9000 });
        hello(&stage);
    }
}

#[test]
fn verbs_on_rxe() {
    if is_guest()
        && let Some(stage) = Stage::verbs("RXE")
    {
        all(&stage);
    }
}

#[test]
fn verbs_on_siw() {
    if is_guest()
        && let Some(stage) = Stage::verbs("SIW")
    {
        all(&stage);
    }
}
