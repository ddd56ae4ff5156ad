//! Streams under frameworks: tonic, hyper, tarpc, tower, rustls.

mod authority;
#[path = "../../grpc/echo.rs"]
mod echo;
mod grpc;
mod grpc_tls;
mod http;
#[path = "../../grpc/service.rs"]
mod service;
mod tarpc;
mod tls;
mod tls_flood;
mod tls_sim;
mod tower;
