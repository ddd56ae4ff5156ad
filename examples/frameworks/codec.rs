//! Messages over a stream, by the codecs of tokio-util: lines of text, and frames of bytes.
//!
//! ```sh
//! cargo run --release -p frameworks --example codec
//! ```
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

#[path = "../report/mod.rs"]
mod report;

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use tokio_rdma::{RdmaListener, RdmaStream};
use tokio_util::codec::{Framed, FramedRead, FramedWrite, LengthDelimitedCodec, LinesCodec};
use tracing_subscriber::EnvFilter;

/// The longest line, and the longest frame: a peer that sends more is an error, and not memory.
const LONGEST: usize = 1 << 20;

#[tokio::main]
async fn main() -> Result<(), report::Report> {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    let listener = RdmaListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (served, asked) = tokio::join!(lines(&listener), ask_lines(address));
    served?;
    asked?;
    let (served, asked) = tokio::join!(frames(&listener), ask_frames(address));
    served?;
    asked?;
    Ok(())
}

/// Answers each line of a peer by its length.
async fn lines(listener: &RdmaListener) -> Result<(), report::Report> {
    let (stream, _peer) = listener.accept().await?;
    let mut lines = Framed::new(stream, LinesCodec::new_with_max_length(LONGEST));
    while let Some(line) = lines.next().await {
        let line = line?;
        lines.send(format!("{} has {} letters", line, line.len())).await?;
    }
    Ok(SinkExt::<String>::close(&mut lines).await?)
}

async fn ask_lines(address: SocketAddr) -> Result<(), report::Report> {
    let stream = RdmaStream::connect(address).await?;
    let mut lines = Framed::new(stream, LinesCodec::new_with_max_length(LONGEST));
    for word in ["remote", "direct", "memory", "access"] {
        lines.send(word).await?;
        println!("{}", lines.next().await.transpose()?.unwrap_or_default());
    }
    Ok(SinkExt::<String>::close(&mut lines).await?)
}

/// Sends each frame back, while it reads the next: each half of the stream has a codec of its own.
async fn frames(listener: &RdmaListener) -> Result<(), report::Report> {
    let (stream, _peer) = listener.accept().await?;
    let (reader, writer) = stream.into_split();
    let codec = LengthDelimitedCodec::builder().max_frame_length(LONGEST).new_codec();
    let answers = FramedWrite::new(writer, codec.clone());
    let frames = FramedRead::new(reader, codec);
    // It ends at the end of file, and closes the other direction.
    Ok(frames.map(|frame| Ok(frame?.freeze())).forward(answers).await?)
}

async fn ask_frames(address: SocketAddr) -> Result<(), report::Report> {
    let stream = RdmaStream::connect(address).await?;
    let codec = LengthDelimitedCodec::builder().max_frame_length(LONGEST).new_codec();
    let (mut sink, mut frames) = Framed::new(stream, codec).split();
    let send = async {
        for length in [0, 1, 1000, 1_000_000] {
            // A `feed` does not wait for the frame to be sent.
            sink.feed(Bytes::from(vec![7; length])).await?;
        }
        sink.close().await
    };
    let receive = async {
        while let Some(frame) = frames.next().await {
            println!("a frame of {} bytes came back", frame?.len());
        }
        io::Result::Ok(())
    };
    let (sent, received) = tokio::join!(send, receive);
    sent?;
    Ok(received?)
}
