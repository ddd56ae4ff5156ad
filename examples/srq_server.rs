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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use clap::Parser;
use futures::StreamExt;
use futures::future::try_join_all;
use futures::stream::FuturesUnordered;
use tokio_rdma::types::OpKind;
use tokio_rdma::{
    AcceptParams, AcceptorConfig, Adapter, CompletionQueue, CompletionQueueConfig, ConnectParams, Connection,
    Listener, NotifyKind, Op, QueuePair, QueuePairConfig, Request, SharedReceiveConfig, SharedReceiveQueue,
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

struct Server {
    adapter: Adapter,
    receives: SharedReceiveQueue,
    /// The queue that is polled, if the server is not one of futures.
    completions: Option<CompletionQueue>,
    /// The queue pairs of the clients, by their contexts.
    clients: Mutex<HashMap<u64, QueuePair>>,
    next: AtomicU64,
}

impl Server {
    /// Accepts a client. Its first message may come before the accept resolves, and can be answered then.
    async fn accept(self: Arc<Self>, request: Request) -> io::Result<(u64, Connection)> {
        let context = self.next.fetch_add(1, Ordering::Relaxed);
        let mut config = QueuePairConfig::default().shared_receives(&self.receives).context(context);
        if let Some(queue) = &self.completions {
            config = config.receive_completions(queue);
        }
        let queue_pair = self.adapter.queue_pair(config)?;
        self.clients().insert(context, queue_pair.clone());
        let accepted = request.accept(&queue_pair, AcceptParams::default()).await;
        let connection = accepted.inspect_err(|_| drop(self.clients().remove(&context)))?;
        Ok((context, connection))
    }

    /// Keeps the connections of all clients until they leave: dropping the last `Connection` of one would disconnect it.
    async fn keep(self: Arc<Self>, listener: Listener) -> io::Result<()> {
        let server = self.clone();
        let acceptor =
            listener.acceptor(AcceptorConfig::default(), move |request| server.clone().accept(request))?;
        loop {
            let (context, connection) = acceptor.accept().await?;
            let server = self.clone();
            tokio::spawn(async move {
                connection.disconnected().await;
                server.clients().remove(&context);
            });
        }
    }

    /// Answers all clients: each receive is a future.
    async fn answer_by_futures(&self) -> io::Result<()> {
        let mut receives = FuturesUnordered::new();
        for _ in 0..self.receives.depth() {
            receives.push(self.receives.receive(self.adapter.buffer(LONGEST)?)?);
        }
        while let Some((result, buffer)) = receives.next().await {
            // A receive fails if its client leaves in the middle of a message. The others go on.
            let received = result.ok().map(|received| (received.queue_pair_context, received.bytes));
            let answer = received.map(|(client, length)| (client, buffer[..length].to_ascii_uppercase()));
            // Before the answer, which may bring the next message.
            receives.push(self.receives.receive(buffer)?);
            self.send(answer)?;
        }
        Ok(())
    }

    /// Answers all clients: the receives complete in a queue, and are taken by their contexts.
    async fn answer_by_queue(&self, queue: &CompletionQueue) -> io::Result<()> {
        let mut receives = HashMap::new();
        for number in 0..self.receives.depth() as u64 {
            receives.insert(number, self.receives.receive_with(self.adapter.buffer(LONGEST)?, number)?);
        }
        let mut completions = Vec::new();
        loop {
            // Poll until the queue is empty, and then wait: so no completion is missed.
            if queue.poll(64, &mut completions) == 0 {
                queue.notify(NotifyKind::Any).await?;
            }
            for completion in completions.drain(..).filter(|completion| completion.kind == OpKind::Receive) {
                let polled = receives.remove(&completion.context).map(Op::take);
                let Some(Ok((result, buffer))) = polled else { continue };
                let message = result.ok().map(|received| &buffer[..received.bytes]);
                let answer = message.map(|text| (completion.queue_pair_context, text.to_ascii_uppercase()));
                let receive = self.receives.receive_with(buffer, completion.context)?;
                receives.insert(completion.context, receive);
                self.send(answer)?;
            }
        }
    }

    /// Sends an answer to the client with this context. One that has left gets none.
    fn send(&self, answer: Option<(u64, Vec<u8>)>) -> io::Result<()> {
        if let Some((client, text)) = answer
            && let Some(queue_pair) = self.clients().get(&client)
        {
            // The request goes on without its future, and frees the buffer at its end.
            let _ = queue_pair.send(self.adapter.buffer_from(&text)?).map(drop);
        }
        Ok(())
    }

    fn clients(&self) -> std::sync::MutexGuard<'_, HashMap<u64, QueuePair>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
    let completions = CompletionQueueConfig::default().depth(receives);
    let server = Arc::new(Server {
        receives: adapter.shared_receive_queue(SharedReceiveConfig::default().depth(receives))?,
        completions: if polled { Some(adapter.completion_queue(completions)?) } else { None },
        adapter: adapter.clone(),
        clients: Mutex::default(),
        next: AtomicU64::new(0),
    });
    let answers = async {
        match &server.completions {
            Some(queue) => server.answer_by_queue(queue).await,
            None => server.answer_by_futures().await,
        }
    };
    let clients =
        (0..options.clients).map(|number| client(adapter.clone(), address, number, options.messages));
    tokio::select! {
        ended = answers => ended.and(Err(io::Error::other("the server has ended"))),
        ended = server.clone().keep(listener) => ended.and(Err(io::Error::other("the listener has ended"))),
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
