//! The vocabularies of other interfaces, for programs that are ported from them: rdma_cm, uDAPL, NetworkDirect 1 and NDK.
//!
//! [`Outcome`] enumerates how an attempt to connect can end, and translates it to each interface and to `std::io`. The other
//! types are the numbers of these interfaces. Each can hold numbers without a name, so that unexpected numbers reach the caller.

mod cm;
mod dat;
mod outcome;

pub use cm::{CmEvent, CmPhase, CmSign, CmTransport, IbRejectReason};
pub use dat::{DatEvent, DatReturn};
pub use outcome::Outcome;
