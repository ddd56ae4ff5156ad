//! Protocol machines without I/O: bytes and calls in, bytes and answers out. No clock, no tokio, no unsafe.
// Nothing outside the tests uses this layer yet; remove when the provider does.
#![allow(dead_code)]

pub(crate) mod mpa;
