//! Doc tests of the code in tokio-rdma's documentation that needs a framework, because tokio-rdma itself does not
//! depend on the frameworks.

/// The chapters of the guide, each a module with its file's name.
#[cfg(doctest)]
mod guide {
    macro_rules! chapters {
        ($($name:ident = $file:literal),* $(,)?) => {
            $(#[doc = include_str!(concat!("../../../docs/guide/src/", $file, ".md"))]
            mod $name {})*
        };
    }

    chapters! {
        data = "data",
        design = "design",
        devices = "devices",
        errors = "errors",
        faq = "faq",
        first_connection = "first-connection",
        inspect = "inspect",
        memory = "memory",
        migration = "migration",
        negotiation = "negotiation",
        porting = "porting",
        porting_async_rdma = "porting-async-rdma",
        porting_librdmacm = "porting-librdmacm",
        porting_nd = "porting-nd",
        porting_rust = "porting-rust",
        porting_tokio = "porting-tokio",
        porting_udapl = "porting-udapl",
        posting = "posting",
        production = "production",
        rdma_guest = "rdma-guest",
        rpc = "rpc",
        security = "security",
        sessions = "sessions",
        streams = "streams",
        testing = "testing",
        timeouts = "timeouts",
        timeouts_and_memory = "timeouts-and-memory",
        tuning = "tuning",
    }
}

#[doc = include_str!("../../../docs/snippets/axum.md")]
pub mod axum {}

#[doc = include_str!("../../../docs/snippets/hyper.md")]
pub mod hyper {}

#[doc = include_str!("../../../docs/snippets/hyper_server.md")]
pub mod hyper_server {}

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub mod readme {}

#[doc = include_str!("../../../docs/snippets/tarpc.md")]
pub mod tarpc {}

#[doc = include_str!("../../../docs/snippets/tonic_tls.md")]
pub mod tonic_tls {}

#[doc = include_str!("../../../docs/snippets/tower.md")]
pub mod tower {}
