//! Runs on: guest
//!
//! The example `rping` over the soft provider, against the original over the kernel's siw, which is on another host.

mod common;

use common::guest::{Cable, FAR, NEAR, Siw, is_guest, port, start};
use common::interop::{Outcome, example_program};

const SIZES: [u32; 2] = [4096, 60_000];
const MTUS: [u32; 2] = [1500, 9000];
const COUNT: usize = 3;

/// What is varied for each build of siw.
#[derive(Clone, Copy, Debug)]
struct Case {
    version: usize,
    size: u32,
    crc: bool,
}

fn cases() -> impl Iterator<Item = Case> {
    let versions = [0, 1].into_iter();
    versions.flat_map(|version| {
        SIZES.into_iter().flat_map(move |size| [false, true].map(|crc| Case { version, size, crc }))
    })
}

/// Both ended well, and have shown as many texts as there were, of the right length.
fn check((server, client): (Outcome, Outcome), case: &str, size: u32) {
    assert!(client.status.success() && server.status.success(), "{case}\n{client}\n{server}");
    for (outcome, prefix) in [(&client, "ping data: "), (&server, "server ping data: ")] {
        let lines: Vec<_> = outcome.stdout.lines().collect();
        assert_eq!(lines.len(), COUNT, "{case}\n{outcome}");
        for (number, line) in lines.iter().enumerate() {
            assert!(line.starts_with(&format!("{prefix}rdma-ping-{number}: ")), "{case}\n{outcome}");
            assert_eq!(line.len(), prefix.len() + size as usize - 1, "{case}\n{outcome}");
        }
    }
}

fn original_client_against_our_server(cable: &Cable, case: Case) -> (Outcome, Outcome) {
    let (port, Case { version, size, crc }) = (port(), case);
    let crc = if crc { "--crc" } else { "" };
    let common = format!("-a {} -p {port} -v -S {size}", FAR[version]);
    let ours = format!("-s {common} --provider soft --timeout 60 {crc}");
    let server = cable.start_far(example_program("rping"), &ours, Some(port));
    let client = start("rping", &format!("-c {common} -V -C {COUNT}"), None).finish();
    (server.finish(), client)
}

fn our_client_against_original_server(cable: &Cable, case: Case) -> (Outcome, Outcome) {
    let (port, Case { version, size, crc }) = (port(), case);
    let crc = if crc { "--crc" } else { "" };
    let common = format!("-a {} -p {port} -v -S {size}", NEAR[version]);
    let server = start("rping", &format!("-s {common}"), Some(port));
    let ours = format!("-c {common} -V -C {COUNT} --provider soft --timeout 60 {crc}");
    let client = cable.start_far(example_program("rping"), &ours, None).finish();
    (server.finish(), client)
}

fn every_case(siw: Siw) {
    if !is_guest() {
        return;
    }
    let cable = Cable::new(siw);
    for mtu in MTUS {
        cable.set_mtu(mtu);
        for case in cases() {
            let name = format!("{siw:?}, MTU {mtu}, {case:?}");
            check(
                original_client_against_our_server(&cable, case),
                &format!("our server: {name}"),
                case.size,
            );
            check(
                our_client_against_original_server(&cable, case),
                &format!("our client: {name}"),
                case.size,
            );
        }
    }
}

#[test]
fn siw_as_it_is() {
    every_case(Siw::Stock);
}

#[test]
fn siw_with_peer_to_peer_mode_and_checksums() {
    every_case(Siw::PeerToPeer);
}
