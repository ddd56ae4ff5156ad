//! QUIC by quinn: one stream that stays open, and a connection of its own for each cycle.

#[cfg(feature = "quinn")]
pub(super) use built::run;

/// Built without quinn.
#[cfg(not(feature = "quinn"))]
pub(super) async fn run(_end: super::End, _orders: super::Orders) -> std::io::Result<()> {
    Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "built without the feature quinn"))
}

#[cfg(feature = "quinn")]
mod built {
    use std::io;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use quinn::rustls::RootCertStore;
    use quinn::rustls::pki_types::PrivatePkcs8KeyDer;
    use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, ServerConfig};

    use crate::ends::{End, Laps, Orders, answer, median, say, several, unsupported};
    use crate::order::Order;

    /// The name that the certificate is for.
    const NAME: &str = "localhost";

    /// The place where the passive end leaves its certificate for the active one: the file of that name in the temporary folder.
    fn certificate_path(address: SocketAddr) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("tokio-rdma-suite-{}.der", address.port()))
    }

    /// Either end, until the orders end.
    pub(in crate::ends) async fn run(end: End, mut orders: Orders) -> io::Result<()> {
        match end.peer {
            None => {
                let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).map_err(io::Error::other)?;
                let key = PrivatePkcs8KeyDer::from(made.key_pair.serialize_der());
                let chain = vec![made.cert.der().clone()];
                let config = ServerConfig::with_single_cert(chain, key.into()).map_err(io::Error::other)?;
                let endpoint = Endpoint::server(config, end.listen)?;
                let address = endpoint.local_addr()?;
                let path = certificate_path(address);
                std::fs::write(&path, made.cert.der())?;
                say(&address.to_string())?;
                let connection = accept(&endpoint).await?;
                let _ = std::fs::remove_file(path);
                let (out, back) = connection.accept_bi().await?;
                tokio::spawn(greet(endpoint));
                let mut passive = Stream { out, back, block: Vec::new() };
                passive.echo(1).await?;
                while let Some(order) = orders.next().await {
                    passive.answer(order).await?;
                    answer(Duration::ZERO)?;
                }
            }
            Some(address) => {
                let mut roots = RootCertStore::empty();
                let der = std::fs::read(certificate_path(address))?;
                roots.add(der.into()).map_err(io::Error::other)?;
                let config =
                    ClientConfig::with_root_certificates(Arc::new(roots)).map_err(io::Error::other)?;
                let mut endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into())?;
                endpoint.set_default_client_config(config);
                let connection = connect(&endpoint, address).await?;
                let (out, back) = connection.open_bi().await?;
                let mut active = Stream { out, back, block: Vec::new() };
                active.ping(1).await?;
                while let Some(order) = orders.next().await {
                    let took = match order {
                        Order::Cycle { at_once, count } => cycle(&endpoint, address, at_once, count).await?,
                        order => active.ask(order).await?,
                    };
                    answer(took)?;
                }
            }
        }
        Ok(())
    }

    async fn accept(endpoint: &Endpoint) -> io::Result<Connection> {
        let incoming = endpoint.accept().await.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(incoming.await?)
    }

    async fn connect(endpoint: &Endpoint, address: SocketAddr) -> io::Result<Connection> {
        let connecting = endpoint.connect(address, NAME).map_err(io::Error::other)?;
        Ok(connecting.await?)
    }

    /// Answers the byte of every further connection.
    async fn greet(endpoint: Endpoint) -> io::Result<()> {
        loop {
            let connection = accept(&endpoint).await?;
            tokio::spawn(async move {
                let (out, back) = connection.accept_bi().await?;
                Stream { out, back, block: Vec::new() }.echo(1).await?;
                connection.closed().await;
                io::Result::Ok(())
            });
        }
    }

    /// Connections made and ended.
    async fn cycle(
        endpoint: &Endpoint,
        address: SocketAddr,
        at_once: usize,
        count: usize,
    ) -> io::Result<Duration> {
        let start = Instant::now();
        several(at_once, count, || {
            let endpoint = endpoint.clone();
            async move {
                let connection = connect(&endpoint, address).await?;
                let (out, back) = connection.open_bi().await?;
                Stream { out, back, block: Vec::new() }.ping(1).await?;
                connection.close(0_u8.into(), b"");
                Ok(())
            }
        })
        .await?;
        Ok(start.elapsed())
    }

    /// A stream in both directions.
    struct Stream {
        out: SendStream,
        back: RecvStream,
        block: Vec<u8>,
    }

    impl Stream {
        /// One message there and back.
        async fn ping(&mut self, size: usize) -> io::Result<()> {
            self.block.resize(self.block.len().max(size), 0);
            self.out.write_all(&self.block[..size]).await?;
            self.back.read_exact(&mut self.block[..size]).await.map_err(io::Error::other)
        }

        /// Sends the next message back.
        async fn echo(&mut self, size: usize) -> io::Result<()> {
            self.receive(size).await?;
            Ok(self.out.write_all(&self.block[..size]).await?)
        }

        /// The next message.
        async fn receive(&mut self, size: usize) -> io::Result<()> {
            self.block.resize(self.block.len().max(size), 0);
            self.back.read_exact(&mut self.block[..size]).await.map_err(io::Error::other)
        }

        /// The active end.
        async fn ask(&mut self, order: Order) -> io::Result<Duration> {
            let start = Instant::now();
            match order {
                Order::Ping { size, count } => {
                    let mut laps = Laps::default();
                    for _ in 0..count {
                        laps.lap(self.ping(size)).await?;
                    }
                    return Ok(median(laps.0));
                }
                Order::Write { size, count, .. } => {
                    let block = vec![0; size];
                    for _ in 0..count {
                        self.out.write_all(&block).await?;
                    }
                    self.receive(1).await?;
                }
                Order::Read { size, count } => {
                    self.out.write_all(&[0]).await?;
                    for _ in 0..count {
                        self.receive(size).await?;
                    }
                }
                _ => return Err(unsupported(order)),
            }
            Ok(start.elapsed())
        }

        /// The passive end.
        async fn answer(&mut self, order: Order) -> io::Result<()> {
            match order {
                Order::Ping { size, count } => {
                    for _ in 0..count {
                        self.echo(size).await?;
                    }
                }
                Order::Write { size, count, .. } => {
                    for _ in 0..count {
                        self.receive(size).await?;
                    }
                    self.out.write_all(&[0]).await?;
                }
                Order::Read { size, count } => {
                    self.receive(1).await?;
                    let block = vec![0; size];
                    for _ in 0..count {
                        self.out.write_all(&block).await?;
                    }
                }
                // These are for `greet`.
                Order::Cycle { .. } | Order::Grow { .. } => {}
                _ => return Err(unsupported(order)),
            }
            Ok(())
        }
    }
}
