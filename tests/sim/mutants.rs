//! The page of mutants is about the code as it is.

use std::fs;
use std::path::Path;

// SIM-08: each survivor is explained, and what is explained is there.
#[test]
fn listed_mutant_survivors_match_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read =
        |file: &str| fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    let page = read("docs/spec/mutants.md").replace(r"\|", "\0");
    let rows: Vec<[String; 4]> = page
        .lines()
        .filter(|line| line.starts_with("| `src/"))
        .map(|line| {
            let cells = line.trim_matches('|').split('|');
            let cells: Vec<_> = cells.map(|cell| cell.trim().trim_matches('`').replace('\0', "|")).collect();
            cells.try_into().expect("file, code, mutant, why")
        })
        .collect();
    assert!(!rows.is_empty(), "no survivors on the page");
    for [file, code, mutant, why] in rows {
        assert_eq!(read(&file).matches(&code).count(), 1, "{file}: `{code}` is there once");
        assert!(!mutant.is_empty() && !why.is_empty(), "{file}: `{code}` is not explained");
    }
}
