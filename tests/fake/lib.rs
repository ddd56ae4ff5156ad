//! An RDMA device in the memory of the process: the functions of libibverbs and librdmacm that tokio-rdma calls.
//!
//! The library takes the place of both under their names, in a folder that `LD_LIBRARY_PATH` lists. Both ends of every
//! connection are in one process. See README.md.
//!
//! Every function is called by C's rules with pointers of C's structures, so the whole crate is `unsafe` code; nothing of
//! it is part of the published package.
#![allow(unsafe_code, reason = "it implements an interface of C")]

mod sys;
