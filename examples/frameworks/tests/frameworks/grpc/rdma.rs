//! The cases over a stream.
//!
//! Runs on: rxe

super::cases!(Rdma);
