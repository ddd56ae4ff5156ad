//! A network in memory, in virtual time, with random numbers from a seed.
//!
//! A program sees this much of TCP: streams of bytes with buffers that fill up, segments of any size that
//! take their time and are lost with their link, resets, half-closed streams, keepalive. A segment that was
//! lost is sent again, so that loss and reordering show only as delay. There is no congestion control and no
//! TIME_WAIT.
//!
//! The modules, from the bottom up:
//!
//! * [`socket`]: one end of a connection, and the segments that it exchanges with the other;
//! * [`world`]: the state of a network, its links, the random numbers from the seed, its events, the task that carries them out, the faults
//!   that a program causes, and the trace of what has happened;
//! * [`tcp`]: segments on their way, segments that arrive, and the work that is due;
//! * [`host`], [`stream`]: the handles of the soft provider, and the resources of a host that run out.
//!
//! All state is under one lock, [`world::World::with`]. It is not held across an await, and wakers are cloned
//! under it but woken and dropped without it. Whatever is drawn at random is drawn under it, in the order of
//! the events.

mod host;
mod socket;
mod stream;
mod tcp;
mod world;

pub(crate) use host::{Host, Monitor};
pub(crate) use stream::{BoundListener, BoundSocket, Listener, Stream};
pub(crate) use world::{Settings, World};

/// The behaviour of a network's sockets that the public API does not show.
#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Shutdown, SocketAddr};
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::sleep;

    use super::{Host, Listener, Stream, World};
    use crate::net::kernel::options::SocketOptions;
    use crate::net::ports::{PortLease, PortRange};

    const SECOND: Duration = Duration::from_secs(1);

    fn hosts(world: &Arc<World>) -> [Host; 2] {
        ["10.0.0.1", "10.0.0.2"].map(|text| {
            let address: IpAddr = text.parse().expect("an address");
            Host::new(world, address).expect("a new host")
        })
    }

    fn listen(host: &Host) -> (Listener, SocketAddr) {
        let mut bound = host.bind_listener(&[host.address], 7, PortRange::EPHEMERAL).expect("bound");
        (bound.listen().expect("listening"), (host.address, 7).into())
    }

    async fn connect(host: &Host, peer: SocketAddr, limit: Duration) -> std::io::Result<(Stream, PortLease)> {
        let options = SocketOptions::default();
        let bound =
            host.bind_connector((host.address, 0).into(), PortRange::EPHEMERAL, &options).expect("bound");
        match bound.connect(peer, Some(limit)).await {
            Ok(connected) => Ok((connected.stream, connected.lease)),
            Err(failure) => Err(failure.error),
        }
    }

    async fn pair(world: &Arc<World>) -> (Stream, Stream, Listener) {
        let [server, client] = hosts(world);
        let (listener, address) = listen(&server);
        let (accepted, connected) = tokio::join!(listener.accept(), connect(&client, address, SECOND));
        (accepted.expect("accepted").0, connected.expect("connected").0, listener)
    }

    #[tokio::test(start_paused = true)]
    async fn full_buffer_stops_writer_until_peer_reads() {
        let world = World::new(1);
        world.set_buffers(1000, 500);
        let (mut reader, writer, _listener) = pair(&world).await;
        let mut written = 0;
        loop {
            match writer.send([crate::memory::Piece::Bytes(&[7; 64])].into_iter()) {
                Ok(length) => written += length,
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                    let before = (written, writer.unacknowledged());
                    sleep(SECOND).await;
                    if before == (1500, 1000) {
                        break;
                    }
                }
            }
        }
        // Probes do not move it, however long that takes.
        sleep(1000 * SECOND).await;
        assert_eq!(writer.unacknowledged(), 1000);
        let mut bytes = vec![0; written];
        reader.read_exact(&mut bytes).await.expect("all bytes");
        sleep(SECOND).await;
        assert_eq!(writer.unacknowledged(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn close_resets_when_data_is_unread() {
        let world = World::new(1);
        let (here, mut there, _listener) = pair(&world).await;
        there.write_all(b"unread").await.expect("written");
        sleep(SECOND).await;
        drop(here);
        let error = there.read_u8().await.expect_err("a reset");
        assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
        assert_eq!(there.read(&mut [0]).expect("reported once"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn ended_stream_is_read_fully_despite_reset() {
        let world = World::new(1);
        let (mut here, mut there, _listener) = pair(&world).await;
        there.write_all(b"unread").await.expect("written");
        here.write_all(b"last").await.expect("written");
        here.shut_down(Shutdown::Write).expect("open");
        sleep(SECOND).await;
        drop(here);
        sleep(SECOND).await;
        let mut found = Vec::new();
        there.read_to_end(&mut found).await.expect("an end in order");
        assert_eq!(found, b"last");
        let error = there.write(b"x").await.expect_err("a reset");
        assert_eq!(error.raw_os_error(), Some(libc::EPIPE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_has_an_address_of_each_family() {
        let world = World::new(1);
        let [server, client] = hosts(&world);
        let [v6, other]: [IpAddr; 2] = ["fd00::1", "fd00::2"].map(|text| text.parse().expect("an address"));
        assert!(server.add_address(v6));
        assert!(!server.add_address(other), "it has one of this family");
        assert!(!client.add_address(v6), "the address is taken");
        assert!(!client.add_address("10.0.0.3".parse().expect("an address")), "it has one of this family");
        assert_eq!(server.interfaces()[0].addresses, [server.address, v6]);
    }

    #[tokio::test(start_paused = true)]
    async fn connect_is_retried_after_full_backlog() {
        let world = World::new(1);
        let [server, client] = hosts(&world);
        let (listener, address) = listen(&server);
        let mut streams = Vec::new();
        for _ in 0..4096 {
            streams.push(connect(&client, address, SECOND).await.expect("connected"));
        }
        let error = connect(&client, address, SECOND / 2).await.expect_err("no room");
        assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT));
        let late = connect(&client, address, 10 * SECOND);
        let (late, accepted) = tokio::join!(late, async {
            sleep(SECOND / 2).await;
            listener.accept().await
        });
        let _late = late.expect("connected at the second try");
        accepted.expect("accepted");
    }

    // Nothing is left of connections whose handles are dropped, whatever has become of them.
    #[tokio::test(start_paused = true)]
    async fn nothing_is_left() {
        for fault in 0..6 {
            let world = World::new(fault);
            let (mut here, mut there, listener) = pair(&world).await;
            here.write_all(&[1; 100_000]).await.expect("written");
            match fault {
                0 => {}
                1 => world.crash(0),
                2 => world.crash(1),
                3 => world.cut(1, 0, 10_000 * SECOND),
                4 => assert_eq!(world.reset_between(0, 1), 1),
                _ => {
                    here.shut_down(Shutdown::Write).expect("open");
                    let mut found = Vec::new();
                    there.read_to_end(&mut found).await.expect("read");
                }
            }
            sleep(SECOND).await;
            drop((here, there, listener));
            sleep(1000 * SECOND).await;
            world.with(|state| {
                let left = (state.sockets.len(), state.pairs.len(), state.listening.len());
                assert_eq!(left, (0, 0, 0), "fault {fault}: {state:?}");
            });
        }
    }
}
