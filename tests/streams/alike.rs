//! The same tests of tokio's `TcpStream`, which is the reference, and of `RdmaStream`.

mod rdma;
mod tcp;
