//! The handles of the contract: closed enums with a variant for each provider that is compiled in, so that a call is a
//! jump and posting can be inlined.
//!
//! `provider_handle!` writes the enum and the methods that only forward. Methods that make an object of the
//! same provider, take two handles or return a future are written out below it.

/// Writes a handle: an enum with a variant per provider, and the methods that each provider has under the same name.
macro_rules! provider_handle {
    (
        $(#[$doc:meta])*
        enum $name:ident {
            Soft($($soft:ident)::+),
            Verbs($($verbs:ident)::+),
        }
        $(
            $(#[$method_doc:meta])*
            fn $method:ident(&self $(, $argument:ident: $type:ty)*) $(-> $answer:ty)?;
        )*
    ) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub(crate) enum $name {
            #[cfg(feature = "soft")]
            Soft(Arc<crate::provider::soft::$($soft)::+>),
            #[cfg(feature = "verbs")]
            Verbs(Arc<crate::provider::verbs::$($verbs)::+>),
        }

        impl $name {
            $(
                $(#[$method_doc])*
                #[inline]
                pub(crate) fn $method(&self $(, $argument: $type)*) $(-> $answer)? {
                    match self {
                        #[cfg(feature = "soft")]
                        Self::Soft(object) => object.$method($($argument),*),
                        #[cfg(feature = "verbs")]
                        Self::Verbs(object) => object.$method($($argument),*),
                    }
                }
            )*
        }
    };
}

mod adapter;
mod completion_queue;
mod connection;
mod memory;
mod provider;
mod queue_pair;

pub(crate) use adapter::{Adapter, WeakAdapter};
pub(crate) use completion_queue::CompletionQueue;
pub(crate) use connection::{Connector, Listener};
pub(crate) use memory::{Registration, Window};
pub(crate) use provider::Provider;
pub(crate) use queue_pair::{QueuePair, QueuePairParts, SharedReceives};
