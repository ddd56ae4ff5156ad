//! A service and its client. The module above decides what they run over.

use std::net::Ipv4Addr;
use std::time::Duration;

use common::device::nobody;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::time::sleep;
use tonic::metadata::MetadataValue;
use tonic::service::interceptor::InterceptedService;
use tonic::service::{Interceptor, Routes};
use tonic::{Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::{Channel, channel, server};
use crate::echo::{EchoClient, EchoServer, Note, Wish};
use crate::service::Plain;

/// The longest message that the server takes.
const LONGEST: usize = 1000;

/// Shows a token.
#[derive(Clone)]
struct Token;

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", MetadataValue::from_static("Bearer of the test"));
        Ok(request)
    }
}

/// Refuses calls without the token.
fn check(request: Request<()>) -> Result<Request<()>, Status> {
    match request.metadata().get("authorization") {
        Some(token) if token == "Bearer of the test" => Ok(request),
        _ => Err(Status::unauthenticated("who are you?")),
    }
}

/// Waits for a server that may not listen yet.
async fn connected(address: &str) -> Channel {
    loop {
        match channel(address).await {
            Ok(channel) => return channel,
            Err(_) => sleep(Duration::from_millis(5)).await,
        }
    }
}

/// Serves, makes calls of all kinds, and returns what the client saw.
pub(crate) async fn run() -> Vec<String> {
    let address = nobody(Ipv4Addr::LOCALHOST.into()).to_string();
    let echo = EchoServer::new(Plain).max_decoding_message_size(LONGEST);
    let routes = Routes::new(InterceptedService::new(echo, check));
    let serving = tokio::spawn({
        let address = address.clone();
        async move { server(&address, routes).await }
    });
    let channel = connected(&address).await;
    let mut client = EchoClient::new(InterceptedService::new(channel.clone(), Token));
    let mut seen = Vec::new();

    let answer = client.say(Note::new("hello")).await.expect("answered").into_inner();
    seen.push(format!("say: {}", text(&answer)));
    let notes = stream::iter(["one", "two", "three"]).map(Note::new);
    let total = client.count(notes).await.expect("answered").into_inner();
    seen.push(format!("count: {} notes, {} bytes", total.notes, total.bytes));
    let wish = Wish { text: "again".into(), times: 3 };
    let notes: Vec<_> =
        client.repeat(wish).await.expect("answered").into_inner().try_collect().await.expect("all");
    seen.push(format!("repeat: {}", notes.iter().map(text).collect::<Vec<_>>().join(" ")));
    let questions = stream::iter(1..=2).map(|number| Note::new(format!("question {number}")));
    let notes: Vec<_> =
        client.chat(questions).await.expect("answered").into_inner().try_collect().await.expect("all");
    seen.push(format!("chat: {}", notes.iter().map(text).collect::<Vec<_>>().join(", ")));
    let status = client.say(Note::new(vec![7; LONGEST + 1])).await.expect_err("too long");
    seen.push(format!("too long: {:?}", status.code()));
    let status = EchoClient::new(channel.clone()).say(Note::default()).await.expect_err("no token");
    seen.push(format!("no token: {:?}: {}", status.code(), status.message()));
    let status =
        HealthClient::new(channel).check(HealthCheckRequest::default()).await.expect_err("no service");
    seen.push(format!("no service: {:?}", status.code()));

    serving.abort();
    seen
}

fn text(note: &Note) -> &str {
    str::from_utf8(&note.text).expect("text")
}
