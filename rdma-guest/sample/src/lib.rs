//! A service that is tested on RDMA devices.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rdma::RdmaStream;

/// Answers the one question of a peer in capitals.
///
/// # Errors
/// Those of the stream.
pub async fn serve(mut stream: RdmaStream) -> std::io::Result<()> {
    let mut question = String::new();
    stream.read_to_string(&mut question).await?;
    stream.write_all(question.to_uppercase().as_bytes()).await?;
    stream.shutdown().await
}
