//! The example `rping` with itself: both ends over the soft provider, in separate processes.

use std::net::{Ipv6Addr, TcpListener};

use common::device::nobody;
use common::interop::{Outcome, Program, example_program, until_listening};

/// A port that nobody uses, nor is given to anybody else.
fn free_port(address: &str) -> u16 {
    nobody(address.parse().expect("an address")).port()
}

/// Runs both ends to their end; `server` and `client` are further arguments.
fn ping(address: &str, server: &str, client: &str) -> (Outcome, Outcome) {
    let program = || example_program("rping");
    let port = free_port(address);
    let common = format!("-a {address} -p {port} -v --timeout 60");
    let mut server = Program::start(program(), &format!("-s {common} {server}"));
    until_listening(&mut server, port);
    let client = Program::start(program(), &format!("-c {common} {client}")).finish();
    (server.finish(), client)
}

#[test]
fn the_lines_are_those_of_the_original() {
    let (server, client) = ping("127.0.0.1", "", "-V -C 3");
    let (server, client) = (server.expect_success(), client.expect_success());
    let lines = [
        r"rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\]^_`abcdefghijklmnopqr",
        r"rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[\]^_`abcdefghijklmnopqrs",
        r"rdma-ping-2: CDEFGHIJKLMNOPQRSTUVWXYZ[\]^_`abcdefghijklmnopqrst",
    ];
    for (outcome, prefix) in [(&client, "ping data: "), (&server, "server ping data: ")] {
        let expected: String = lines.iter().map(|line| format!("{prefix}{line}\n")).collect();
        assert_eq!(outcome.stdout, expected, "{outcome}");
    }
    assert!(client.stderr.contains("client DISCONNECT EVENT..."), "{client}");
    assert!(server.stderr.contains("server DISCONNECT EVENT..."), "{server}");
}

#[test]
fn pings_of_all_sizes_pass_with_optional_crc() {
    for (size, flags) in [(26, ""), (27, "--crc"), (4096, ""), (60_000, "--crc"), (65_535, "--provider soft")]
    {
        // The letters begin anew after 58 texts.
        let (server, client) = ping("127.0.0.1", flags, &format!("{flags} -V -C 60 -S {size}"));
        let (server, client) = (server.expect_success(), client.expect_success());
        for (outcome, prefix) in [(client, "ping data: "), (server, "server ping data: ")] {
            let lines: Vec<_> = outcome.stdout.lines().collect();
            assert_eq!(lines.len(), 60, "{outcome}");
            assert!(lines.iter().all(|line| line.len() == prefix.len() + size - 1), "{outcome}");
        }
    }
}

#[test]
fn it_speaks_version_6() {
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        return;
    }
    let (server, client) = ping("::1", "", "-V -C 2");
    assert_eq!(client.expect_success().stdout.lines().count(), 2);
    assert_eq!(server.expect_success().stdout.lines().count(), 2);
}

#[test]
fn mistakes_are_told() {
    let port = free_port("127.0.0.1");
    let nobody = format!("-c -a 127.0.0.1 -p {port} -C 1");
    for arguments in
        ["", "-s", "-s -c -a 127.0.0.1", "-c -a 127.0.0.1 -S 25", "-c -a 127.0.0.1 -S 65536", &nobody]
    {
        let outcome = Program::start(example_program("rping"), arguments).finish();
        assert!(!outcome.status.success() && !outcome.stderr.is_empty(), "{outcome}");
    }
}
