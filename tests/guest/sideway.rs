//! Runs on: guest
//!
//! sideway's `cmtime`, which calls librdmacm by bindings of its own and moves its queue pairs itself, by `rdma_init_qp_attr`.
//! `cargo xtask foreign crates sideway` builds it. Its queues are extended ones, which siw does not have.

use std::net::SocketAddr;
use std::path::Path;

use common::guest::{Stage, is_guest, port, start};
use common::peers::{cmtime_call, cmtime_serve};

/// So many connections at the same time.
const CONNECTIONS: usize = 40;

#[test]
fn cmtime_of_sideway_connects_and_accepts() {
    if !is_guest() {
        return;
    }
    let Some(stage) = Stage::verbs("RXE") else { return };
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/target/foreign/build/debug/examples/cmtime");
    if !Path::new(program).is_file() {
        return eprintln!("skipped: needs sideway's cmtime (cargo xtask foreign crates sideway)");
    }

    let server = SocketAddr::new(stage.ours[0], port());
    let serving = stage.begin_serving(server, async |adapter, listener| {
        cmtime_serve(&adapter, &listener, CONNECTIONS).await;
    });
    let arguments = format!("-s {} -p {} -c {CONNECTIONS}", server.ip(), server.port());
    let outcome = start(program, &arguments, None).finish().expect_success();
    let is_complete = outcome.stdout.contains("Disconnect") && !outcome.stdout.contains("Event:");
    assert!(is_complete, "{outcome}");
    serving.end();

    let server = SocketAddr::new(stage.theirs[0], port());
    let arguments = format!("-p {} -c {CONNECTIONS}", server.port());
    let program = start(program, &arguments, Some(server.port()));
    stage.begin(0, async move |adapter| cmtime_call(&adapter, server, CONNECTIONS).await).end();
    // It ends when all of them are gone.
    program.finish().expect_success();
}
