// SPDX-License-Identifier: GPL-3.0-only
//! Connects two queue pairs of async-rdma, with tokio-rdma as the rendezvous, and sends a message each way.
//!
//! `rendezvous ADDRESS` runs both ends in one process, at an address of a RoCE device (`rdma_rxe` will do). It says
//! what it does, and ends with status 0 if both messages arrived.

mod device;
mod endpoint;
mod rendezvous;

use std::alloc::Layout;
use std::env;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use async_rdma::{LocalMrReadAccess, LocalMrWriteAccess, Rdma};
use tokio_rdma::{Adapter, Listener};

use crate::device::Device;

/// Every message is as long as this.
const LENGTH: usize = 32;
/// What the active end says.
const QUESTION: [u8; LENGTH] = *b"is this a queue pair of yours?  ";
/// What the passive end says then.
const ANSWER: [u8; LENGTH] = *b"it is, and you have found it.   ";
/// Nothing here takes long, not even on an emulated machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Reads the address, runs both ends.
#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let (Some(Ok(address)), None) = (arguments.next().map(|word| word.parse()), arguments.next()) else {
        eprintln!("usage: rendezvous ADDRESS");
        return ExitCode::from(2);
    };
    let outcome = tokio::time::timeout(LIMIT, run(address)).await;
    match outcome.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(()) => {
            println!("done");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Both ends, at this address.
async fn run(address: IpAddr) -> io::Result<()> {
    let device = Device::of(address)?;
    println!("{address} is GID {} of port {} of {}", device.gid_index, device.port, device.name);
    let adapter = Adapter::open(address)?;
    let listener = adapter.listener();
    listener.bind((address, 0).into())?;
    listener.listen(0)?;
    let meeting_point = listener.local_addr()?;
    tokio::try_join!(passive(&adapter, &listener, &device), active(&adapter, meeting_point, &device))?;
    Ok(())
}

/// Waits for the other, and answers it.
async fn passive(adapter: &Adapter, listener: &Listener, device: &Device) -> io::Result<()> {
    let mut rdma = device.queue_pair()?;
    let met = rendezvous::passive(adapter, listener, &mut rdma).await?;
    println!("passive: connected to {}", met.connection.peer_addr());
    receive(&rdma, "passive", QUESTION).await?;
    send(&rdma, ANSWER).await?;
    println!("passive: the other end is gone: {:?}", met.connection.disconnected().await);
    Ok(())
}

/// Asks the other, and waits for its answer.
async fn active(adapter: &Adapter, address: SocketAddr, device: &Device) -> io::Result<()> {
    let mut rdma = device.queue_pair()?;
    let met = rendezvous::active(adapter, address, &mut rdma).await?;
    println!("active:  connected to {}", met.connection.peer_addr());
    tokio::try_join!(receive(&rdma, "active", ANSWER), send(&rdma, QUESTION))?;
    Ok(met.connection.disconnect().await?)
}

/// Sends a message through async-rdma.
async fn send(rdma: &Rdma, message: [u8; LENGTH]) -> io::Result<()> {
    let mut memory = rdma.alloc_local_mr(Layout::new::<[u8; LENGTH]>())?;
    memory.as_mut_slice().copy_from_slice(&message);
    rdma.send_raw(&memory).await
}

/// Receives a message through async-rdma, which has to be this one.
async fn receive(rdma: &Rdma, end: &str, expected: [u8; LENGTH]) -> io::Result<()> {
    let memory = rdma.receive_raw(Layout::new::<[u8; LENGTH]>()).await?;
    let message = *memory.as_slice();
    let text = String::from_utf8_lossy(message);
    println!("{end}: received {:?}", text.trim_end());
    if message != expected {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{end}: another message was sent")));
    }
    Ok(())
}
