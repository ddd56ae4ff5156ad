//! What tokio's own tests of TCP find instead of `tokio::net` and `std::net`.
//!
//! The tests are not in this repository. `cargo xtask foreign tokio` copies them from the package of tokio that the crate is
//! built with, next to a copy of this library, and replaces what `tests.txt` lists.

pub mod blocking;

/// In place of `tokio::net`: the streams and listeners of TCP are those of tokio-rdma, and there is no `TcpSocket`.
pub mod net {
    pub use tokio::net::{UdpSocket, UnixDatagram, UnixListener, UnixStream, lookup_host, unix};
    pub use tokio_rdma::{RdmaListener as TcpListener, RdmaStream as TcpStream};

    /// In place of `tokio::net::tcp`.
    pub mod tcp {
        pub use tokio_rdma::io::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
    }
}
