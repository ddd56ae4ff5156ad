//! What `send-task` is measured against, over a `TcpStream` of tokio: messages whose frames the task itself makes and takes apart, and
//! plain bytes.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::Sender;

use bytes::{Buf, BufMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::ends::tasks;

const MESSAGE: usize = 64;
/// The headers of DDP and RDMAP in a Send.
const HEADER: usize = 18;
/// The length that MPA puts before the headers, these, the message, and the checksum of MPA, which is not in use.
const FRAME: usize = 2 + HEADER + MESSAGE + 4;
/// DDP: untagged, the last segment, version 1. RDMAP: version 1, a Send.
const CONTROL: u16 = 0x4143;

/// Round trips of Sends as the soft provider frames them.
pub(crate) fn frames(count: usize) -> io::Result<()> {
    round_trips::<true>(count)
}

/// Round trips of bytes.
pub(crate) fn bytes(count: usize) -> io::Result<()> {
    round_trips::<false>(count)
}

/// One end of a connection, which has its messages in frames or not.
struct End<const FRAMED: bool> {
    stream: TcpStream,
    /// More than a frame: once a read leaves some of it, tokio knows that the socket is empty, and does not try again.
    room: [u8; 2 * FRAME],
    /// The number of the last message each way.
    sent: u32,
    received: u32,
}

impl<const FRAMED: bool> End<FRAMED> {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, room: [0; 2 * FRAME], sent: 0, received: 0 })
    }

    async fn send(&mut self, message: &[u8; MESSAGE]) -> io::Result<()> {
        if !FRAMED {
            return self.stream.write_all(message).await;
        }
        self.sent += 1;
        let mut frame = [0; FRAME];
        let mut rest = &mut frame[..];
        rest.put_u16((HEADER + MESSAGE) as u16);
        rest.put_u16(CONTROL);
        // No key to invalidate, and the queue of Sends.
        rest.put_u64(0);
        rest.put_u32(self.sent);
        // The offset in the message.
        rest.put_u32(0);
        rest.put_slice(message);
        self.stream.write_all(&frame).await
    }

    async fn receive(&mut self, message: &mut [u8; MESSAGE]) -> io::Result<()> {
        let expected = if FRAMED { FRAME } else { MESSAGE };
        let mut length = 0;
        while length < expected {
            match self.stream.read(&mut self.room[length..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => length += more,
            }
        }
        let mut bytes = &self.room[..length];
        if FRAMED {
            self.received += 1;
            let (length, control, queue) = (bytes.get_u16(), bytes.get_u16(), bytes.get_u64());
            let (number, offset) = (bytes.get_u32(), bytes.get_u32());
            if (usize::from(length), control, queue, number, offset)
                != (HEADER + MESSAGE, CONTROL, 0, self.received, 0)
            {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        // Nothing is behind it, as the peer waits for an answer.
        if length > expected {
            return Err(io::ErrorKind::InvalidData.into());
        }
        bytes.copy_to_slice(message);
        Ok(())
    }
}

fn round_trips<const FRAMED: bool>(count: usize) -> io::Result<()> {
    let passive = move |sender: Sender<SocketAddr>| async move {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        sender.send(listener.local_addr()?).map_err(io::Error::other)?;
        let mut end = End::<FRAMED>::new(listener.accept().await?.0)?;
        let mut message = [0; MESSAGE];
        for _ in 0..count {
            end.receive(&mut message).await?;
            end.send(&message).await?;
        }
        Ok(())
    };
    tasks(passive, move |address| async move {
        let mut end = End::<FRAMED>::new(TcpStream::connect(address).await?)?;
        let mut message = [7; MESSAGE];
        for _ in 0..count {
            end.send(&message).await?;
            end.receive(&mut message).await?;
        }
        Ok(())
    })
}
