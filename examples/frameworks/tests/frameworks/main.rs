//! Streams under frameworks: tonic, hyper, tarpc, tower, rustls.

mod authority;
mod dashboard;
#[path = "../../grpc/echo.rs"]
mod echo;
mod graceful;
mod grpc;
mod grpc_tls;
mod hello;
mod http;
#[path = "../../metrics/service.rs"]
mod metrics_example;
mod migration;
#[path = "../../grpc/service.rs"]
mod service;
mod sessions;
mod tarpc;
mod tls;
mod tls_flood;
mod tls_sim;
mod tower;
#[path = "../../metrics/trace_context.rs"]
mod trace_context;
mod two_lines;
