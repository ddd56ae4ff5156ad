//! The tests of `tests.rs`, with tokio's types.

use tokio::net::tcp::ReuniteError;
use tokio::net::{TcpListener as Listener, TcpStream as Stream};

async fn listening() -> Listener {
    Listener::bind("127.0.0.1:0").await.expect("bound")
}

async fn connect(listener: &Listener) -> Stream {
    Stream::connect(listener.local_addr().expect("bound")).await.expect("connected")
}

#[path = "tests.rs"]
mod tests;
