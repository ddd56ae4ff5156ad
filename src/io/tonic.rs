//! The implementation of tonic's `Connected` for streams.

use tonic::transport::server::{Connected, TcpConnectInfo};

use super::stream::RdmaStream;

/// tonic's `Request::remote_addr` and `Request::local_addr` return the addresses of the connection. tonic reads them
/// from the type that it uses for TCP, so this is that type.
impl Connected for RdmaStream {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        TcpConnectInfo { local_addr: Some(self.local_addr()), remote_addr: Some(self.peer_addr()) }
    }
}
