//! A process that has sockets of IPv4 only, as systemd's `RestrictAddressFamilies` leaves it.

use std::net::IpAddr;

use common::process::alone;
use common::*;
use tokio_rdma::{Provider, RdmaListener, RdmaStream, StreamConfig};

/// Has socket(2) fail for IPv6 on this thread, as a kernel without IPv6 does.
fn forbid_ipv6() {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const DIFFERS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    /// The places of the number of the call, and of the lower half of its first argument, in `struct seccomp_data`.
    const CALL: u32 = 0;
    const FIRST: u32 = if cfg!(target_endian = "big") { 20 } else { 16 };
    let line = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let mut lines = [
        line(LOAD, 0, CALL),
        line(DIFFERS, 3, u32::try_from(libc::SYS_socket).expect("small")),
        line(LOAD, 0, FIRST),
        line(DIFFERS, 1, u32::try_from(libc::AF_INET6).expect("small")),
        line(RETURN, 0, libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EAFNOSUPPORT).expect("small")),
        line(RETURN, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 6, filter: lines.as_mut_ptr() };
    // SAFETY: the call takes numbers.
    let outcome = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the program and its lines live until the call returns, which copies them.
    let outcome = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
}

// IO-11: without IPv6 a listener at every address serves those of IPv4.
#[tokio::test]
async fn listeners_do_without_a_missing_family() {
    if !alone(module_path!(), "listeners_do_without_a_missing_family") {
        return;
    }
    forbid_ipv6();
    let (provider, config) = (Provider::soft().expect("compiled in"), StreamConfig::default());
    let listener = RdmaListener::bind_with_provider(&provider, "[::]:0", &config).await;
    let listener = listener.expect("IPv4 is left");
    let port = listener.local_addr().expect("bound").port();
    let adapter = provider.open(IpAddr::from([127, 0, 0, 1])).expect("opened");
    let connect = RdmaStream::connect_on(&adapter, ([127, 0, 0, 1], port).into(), &config);
    let (connected, accepted) = within(async { tokio::join!(connect, listener.accept()) }).await;
    connected.expect("connected");
    accepted.expect("accepted");
}
