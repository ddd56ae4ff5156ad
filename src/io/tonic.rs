//! What tonic's server asks of a connection.

use tonic::transport::server::{Connected, TcpConnectInfo};

use super::stream::RdmaStream;

/// `Request::remote_addr` and `Request::local_addr` of tonic tell the addresses of the connection. They look for the
/// type that TCP has, so it is that type.
impl Connected for RdmaStream {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        TcpConnectInfo { local_addr: Some(self.local_addr()), remote_addr: Some(self.peer_addr()) }
    }
}
