//! Replaces the crate's locks by loom's.

fn main() {
    println!("cargo::rustc-cfg=tokio_rdma_model");
    println!("cargo::rerun-if-changed=build.rs");
}
