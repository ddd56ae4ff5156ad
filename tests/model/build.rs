//! Puts loom's locks in the place of the usual ones.

fn main() {
    println!("cargo::rustc-cfg=tokio_rdma_model");
    println!("cargo::rerun-if-changed=build.rs");
}
