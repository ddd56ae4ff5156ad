//! Doc tests of the code in tokio-rdma's documentation that needs a framework, because tokio-rdma itself does not
//! depend on the frameworks.

#[doc = include_str!("../../../docs/snippets/axum.md")]
pub mod axum {}

#[doc = include_str!("../../../docs/snippets/hyper.md")]
pub mod hyper {}

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub mod readme {}

#[doc = include_str!("../../../docs/snippets/tarpc.md")]
pub mod tarpc {}

#[doc = include_str!("../../../docs/snippets/tonic_tls.md")]
pub mod tonic_tls {}

#[doc = include_str!("../../../docs/snippets/tower.md")]
pub mod tower {}
