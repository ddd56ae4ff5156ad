//! A server of many clients on one shared receive queue, driven by events.
//!
//! The receives of all clients are one pool, so that a thousand clients need no more memory than the messages that are
//! under way. A completion names its client by the context of the queue pair. The same server is written twice: with futures,
//! and with a completion queue that it polls. Server and clients run in one process over loopback.
//!
//! ```sh
//! cargo run --release --example srq_server
//! cargo run --release --example srq_server --features verbs -- --address 192.0.2.1    # over the device with this address
//! ```
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

#[path = "report/mod.rs"]
mod report;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::Parser;
use futures::StreamExt;
use futures::future::{BoxFuture, try_join_all};
use futures::stream::FuturesUnordered;
use tokio::time::timeout;
use tokio_rdma::{
    AcceptParams, Adapter, Buffer, CompletionQueue, CompletionQueueConfig, ConnectParams, Listener,
    NotifyKind, Op, QueuePair, QueuePairConfig, Request, SharedReceiveConfig, SharedReceiveQueue,
};

/// A server of many clients on one shared receive queue.
#[derive(Parser)]
struct Options {
    /// The address of the server, which an adapter has.
    #[arg(long, default_value_t = Ipv4Addr::LOCALHOST.into())]
    address: IpAddr,
    /// The number of clients at the same time.
    #[arg(long, default_value_t = 100)]
    clients: usize,
    /// The number of messages of each.
    #[arg(long, default_value_t = 10)]
    messages: usize,
}

/// The number of receives for all clients together, if a message waits when there is none.
const RECEIVES: usize = 64;
/// The length of the longest message.
const LONGEST: usize = 256;
/// The longest time that a client may take to complete its connection.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The clients of a server, by the contexts of their queue pairs.
struct Clients {
    adapter: Adapter,
    config: QueuePairConfig,
    queue_pairs: HashMap<u64, QueuePair>,
    /// The context of the next client.
    next: u64,
    /// Each resolves to its client when that has left.
    stays: FuturesUnordered<BoxFuture<'static, u64>>,
}

impl Clients {
    /// Accepts those who come, and forgets those who have left. Resolves when there is one more or less.
    async fn change(&mut self, listener: &Listener) -> io::Result<()> {
        tokio::select! {
            request = listener.request() => self.accept(request?),
            Some(client) = self.stays.next() => {
                self.queue_pairs.remove(&client);
                Ok(())
            }
        }
    }

    /// Accepts a client. Its first message may come before the accept resolves, and can be answered then.
    fn accept(&mut self, request: Request) -> io::Result<()> {
        let client = self.next;
        self.next += 1;
        let queue_pair = self.adapter.queue_pair(self.config.clone().context(client))?;
        self.queue_pairs.insert(client, queue_pair.clone());
        self.stays.push(Box::pin(async move {
            let accepted = timeout(HANDSHAKE, request.accept(&queue_pair, AcceptParams::default())).await;
            // Dropping the last `Connection` of a client would disconnect it.
            if let Ok(Ok(connection)) = accepted {
                connection.disconnected().await;
            }
            client
        }));
        Ok(())
    }

    /// Sends a client its answer. One that has left gets none.
    fn answer(&self, client: u64, text: &[u8]) -> io::Result<()> {
        if let Some(queue_pair) = self.queue_pairs.get(&client) {
            // The request goes on without its future, and frees the buffer at its end.
            let _ = queue_pair.send(self.adapter.buffer_from(text)?).map(drop);
        }
        Ok(())
    }
}

/// Answers all clients: each receive is a future.
async fn serve_by_futures(
    mut clients: Clients,
    listener: &Listener,
    receives: &SharedReceiveQueue,
) -> io::Result<()> {
    let mut messages = FuturesUnordered::new();
    for _ in 0..receives.depth() {
        messages.push(receives.receive(clients.adapter.buffer(LONGEST)?)?);
    }
    loop {
        tokio::select! {
            changed = clients.change(listener) => changed?,
            Some((result, buffer)) = messages.next() => {
                // A receive fails if its client leaves in the middle of a message. The others go on.
                let answer =
                    result.ok().map(|received| (received.queue_pair_context, capitals(&buffer, received.bytes)));
                // Before the answer, which may bring the next message.
                messages.push(receives.receive(buffer)?);
                answer.map_or(Ok(()), |(client, text)| clients.answer(client, &text))?;
            }
        }
    }
}

/// Answers all clients: the receives complete in a queue, and are taken by their contexts.
async fn serve_by_queue(
    mut clients: Clients,
    listener: &Listener,
    receives: &SharedReceiveQueue,
    queue: &CompletionQueue,
) -> io::Result<()> {
    let mut posted = HashMap::new();
    for number in 0..receives.depth() as u64 {
        posted.insert(number, receives.receive_with(clients.adapter.buffer(LONGEST)?, number)?);
    }
    let mut completions = Vec::new();
    loop {
        // Poll until the queue is empty, and then wait: so no completion is missed.
        if queue.poll(64, &mut completions) == 0 {
            tokio::select! {
                changed = clients.change(listener) => changed?,
                notified = queue.notify(NotifyKind::Any) => notified?,
            }
        }
        for completion in completions.drain(..) {
            let receive = posted.remove(&completion.context).map(Op::take);
            let Some(Ok((result, buffer))) = receive else { continue };
            let text = result.ok().map(|received| capitals(&buffer, received.bytes));
            posted.insert(completion.context, receives.receive_with(buffer, completion.context)?);
            text.map_or(Ok(()), |text| clients.answer(completion.queue_pair_context, &text))?;
        }
    }
}

/// Returns the answer to a message.
fn capitals(buffer: &Buffer, length: usize) -> Vec<u8> {
    buffer[..length].to_ascii_uppercase()
}

/// Sends messages one after the other, and checks the answers. Returns their number.
async fn client(adapter: Adapter, server: SocketAddr, number: usize, messages: usize) -> io::Result<usize> {
    let queue_pair = adapter.queue_pair(QueuePairConfig::default())?;
    let connector = adapter.connector();
    let connection = connector.connect_and_complete(&queue_pair, server, ConnectParams::default()).await?;
    let mut buffer = adapter.buffer(LONGEST)?;
    for message in 0..messages {
        let receive = queue_pair.receive(buffer)?;
        let text = format!("message {message} of client {number}");
        queue_pair.send(adapter.buffer_from(text.as_bytes())?)?.await.0?;
        let (result, answer) = receive.await;
        if answer[..result?.bytes] != *text.to_ascii_uppercase().as_bytes() {
            return Err(io::Error::other("the answer is that of another client"));
        }
        buffer = answer;
    }
    connection.disconnect().await?;
    Ok(messages)
}

/// Runs a server, polled or of futures, and its clients. Returns the number of answers, and of receives.
async fn serve(options: &Options, polled: bool) -> io::Result<(usize, usize)> {
    let adapter = Adapter::open(options.address)?;
    let listener = adapter.listener();
    listener.bind((options.address, 0).into())?;
    listener.listen(0)?;
    let address = listener.local_addr()?;
    // On iWARP devices a message that finds no receive ends its connection: each client has at most one under way.
    let waits = adapter.info().waits_for_shared_receives;
    let receives = if waits { RECEIVES } else { options.clients };
    let pool = adapter.shared_receive_queue(SharedReceiveConfig::default().depth(receives))?;
    let queue = adapter.completion_queue(CompletionQueueConfig::default().depth(receives))?;
    let config = QueuePairConfig::default().shared_receives(&pool);
    let config = if polled { config.receive_completions(&queue) } else { config };
    let (queue_pairs, stays) = (HashMap::new(), FuturesUnordered::new());
    let served = Clients { adapter: adapter.clone(), config, queue_pairs, next: 0, stays };
    let server = async {
        if polled {
            serve_by_queue(served, &listener, &pool, &queue).await
        } else {
            serve_by_futures(served, &listener, &pool).await
        }
    };
    let clients =
        (0..options.clients).map(|number| client(adapter.clone(), address, number, options.messages));
    tokio::select! {
        ended = server => ended.and(Err(io::Error::other("the server has ended"))),
        answered = try_join_all(clients) => Ok((answered?.into_iter().sum(), receives)),
    }
}

#[tokio::main]
async fn main() -> Result<(), report::Report> {
    let options = Options::parse();
    for (polled, name) in [(false, "futures"), (true, "a polled queue")] {
        let (answers, receives) = serve(&options, polled).await?;
        println!("{name}: {} clients, {answers} answers, {receives} receives", options.clients);
    }
    Ok(())
}
