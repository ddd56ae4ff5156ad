//! Five specifications of connection set-up. The tests of NetworkDirect v2 follow their pages from top to bottom: every method,
//! parameter, return code and remark has a test that is named after it. Those of the other interfaces have what differs there:
//! the header of a module lists it, and `failures` is the table of the names of each failure.
//!
//! | module | interface | page |
//! |---|---|---|
//! | [`nd2_connector`] | `IND2Connector`, NetworkDirect v2 | Windows HPC Pack, NetworkDirect SPI: IND2Connector Interface |
//! | [`nd2_provider`] | `IND2Provider`, NetworkDirect v2 | the same: IND2Provider Interface |
//! | [`failures`] | `INDConnector::Connect`, NetworkDirect v1 | Windows HPC Pack SDK: INDConnector::Connect |
//! | [`failures`], [`ndk_connect`] | `NdkConnect`, the kernel's NetworkDirect | Windows Driver Kit, ndkpi.h: NDK_FN_CONNECT |
//! | [`failures`], [`udapl_ep_connect`] | `dat_ep_connect`, uDAPL | DAT Collaborative, uDAPL: dat_ep_connect(3DAT) |
//!
//! A sentence of a page that does not hold here is a row of docs/spec/decisions.md, X21 to X36 and others; the test shows what
//! happens instead.
//!
//! The modules `soft` contain what needs a separate network, a port range or a limit.

mod failures;
mod nd2_connector;
mod nd2_provider;
mod ndk_connect;
mod udapl_ep_connect;
