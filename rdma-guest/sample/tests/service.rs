//! The service, over the device under test, or over the soft provider where there is none.

use std::env;
use std::net::IpAddr;

use sample::serve;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::{Adapter, ProviderKind, RdmaListener, RdmaStream};

/// The addresses of the device, or those of the loopback interface.
fn addresses() -> [IpAddr; 2] {
    [("TOKIO_RDMA_TEST_ADDR", "127.0.0.1"), ("TOKIO_RDMA_TEST_ADDR6", "::1")]
        .map(|(name, own)| env::var(name).unwrap_or_else(|_| own.to_owned()).parse().expect("an address"))
}

/// The kind of provider that has to serve the addresses.
fn kind() -> ProviderKind {
    if env::var_os("TOKIO_RDMA_TEST_DEVICE").is_some() { ProviderKind::Verbs } else { ProviderKind::Soft }
}

#[tokio::test]
async fn a_peer_is_answered() -> std::io::Result<()> {
    for address in addresses() {
        let listener = RdmaListener::bind((address, 0)).await?;
        let peer = listener.local_addr()?;
        let server = tokio::spawn(async move { serve(listener.accept().await?.0).await });

        let mut stream = RdmaStream::connect(peer).await?;
        assert_eq!(stream.connection().provider(), kind());
        stream.write_all(b"hello").await?;
        stream.shutdown().await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        assert_eq!(answer, "HELLO");
        server.await??;
    }
    Ok(())
}

/// The devices that a program finds which takes the first one, or each.
fn devices() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[tokio::test]
async fn the_addresses_are_those_of_the_device() {
    if let Ok(device) = env::var("TOKIO_RDMA_TEST_DEVICE") {
        assert_eq!(devices(), [format!("{device}0")], "the machine has no other");
    }
    for address in addresses() {
        let adapter = Adapter::open(address).expect("an adapter");
        assert_eq!(adapter.info().provider, kind());
        if let Ok(device) = env::var("TOKIO_RDMA_TEST_DEVICE") {
            assert!(adapter.info().name.starts_with(&device), "{}", adapter.info().name);
        }
    }
}
