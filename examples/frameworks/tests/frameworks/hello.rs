//! The example `hello`.

/// The page that begins with it, and the example, which the step `examples` runs.
const PAGE: &str = include_str!("../../../../docs/guide/src/rpc.md");
const EXAMPLE: &str = include_str!("../../hello.rs");

#[test]
fn guide_has_the_example() {
    // Above it the example has only what the package wants.
    let (header, program) = EXAMPLE.split_once("\n\n").expect("a header");
    assert!(header.lines().all(|line| line.starts_with("//!") || line.starts_with("#!")), "{header}");
    assert!(PAGE.contains(&format!("```rust\n{program}```\n")), "the guide has another program");
    let lines = program.lines().filter(|line| !line.is_empty()).count();
    assert!(lines <= 15, "{lines} lines");
}
