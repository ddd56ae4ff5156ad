//! The `pages` step: the links of the documentation, the names in the porting tables, the prose of the sources, and the book.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::exec::{self, minutes};
use crate::layers;
use crate::prose;
use crate::rows;
use crate::tally::Tally;
use crate::test::Settings;

mod links;
mod names;

/// The folder of the book's chapters.
const CHAPTERS: &str = "docs/guide/src";

/// The module that compiles the code of the chapters.
const DOCTESTS: &str = "examples/frameworks/src/lib.rs";

/// Pages by their path from the root of the repository.
pub(crate) type Pages = BTreeMap<String, String>;

/// Checks the links, the names, the code and the prose of the documentation, and has mdBook build the guide.
pub(crate) fn step(_settings: &Settings) -> Tally {
    let mut tally = Tally::check(check_tree());
    tally += Tally::check(prose::check_tree(false));
    tally += book();
    tally
}

/// Checks every page and prints each mistake as `file:line: sentence`.
///
/// # Errors
/// A sentence, if a file cannot be read or a page has a mistake.
fn check_tree() -> Result<(), String> {
    let pages = read()?;
    let mut mistakes = links::check(&pages, |path| Path::new(path).exists());
    mistakes.extend(chapters(&pages, &fs::read_to_string(DOCTESTS).map_err(|error| error.to_string())?));
    mistakes.extend(oldest_rust(
        &text("Cargo.toml")?,
        [("README.md", &text("README.md")?), ("src/lib.rs", &text("src/lib.rs")?)],
    ));
    mistakes.extend(too_long(&pages));
    let names = names::Names::read(&sources()?)?;
    mistakes.extend(names::check(&pages, &names, &rows::not_offered()?));
    mistakes.iter().for_each(|sentence| println!("{sentence}"));
    if mistakes.is_empty() {
        println!("{} pages, {} names of the API", pages.len(), names.len());
        return Ok(());
    }
    Err(format!("{} mistakes in the documentation", mistakes.len()))
}

/// Reads the pages in the root, in `docs` and in `examples`.
fn read() -> Result<Pages, String> {
    let root = fs::read_dir(".").map_err(|error| format!("cannot list the root: {error}"))?;
    let root = root.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut files: Vec<String> = root.collect();
    for folder in ["docs", "examples"] {
        with_ending(Path::new(folder), "md", &mut files)?;
    }
    let pages = files.into_iter().filter(|file| file.ends_with(".md"));
    pages.map(|file| Ok((file.clone(), text(&file)?))).collect()
}

/// The source of the library.
fn sources() -> Result<Vec<String>, String> {
    let mut files = Vec::new();
    layers::list(Path::new("src"), &mut files).map_err(|error| format!("cannot list src: {error}"))?;
    files.iter().map(|file| text(file)).collect()
}

/// Reads a file.
fn text(file: &str) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| format!("cannot read {file}: {error}"))
}

/// Lists the files below a folder whose names end so.
fn with_ending(folder: &Path, ending: &str, files: &mut Vec<String>) -> Result<(), String> {
    let wrong = |error| format!("cannot list {}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if path.is_dir() {
            with_ending(&path, ending, files)?;
        } else if path.extension().is_some_and(|own| own == ending) {
            files.push(path.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// The chapters that the summary lacks, or whose code is not compiled.
fn chapters(pages: &Pages, doctests: &str) -> Vec<String> {
    let summary = pages.get(&format!("{CHAPTERS}/SUMMARY.md")).map_or("", String::as_str);
    let mut mistakes = Vec::new();
    for (file, text) in pages {
        let Some(chapter) = file.strip_prefix(CHAPTERS).and_then(|rest| rest.strip_prefix('/')) else {
            continue;
        };
        if chapter == "SUMMARY.md" {
            continue;
        }
        if !summary.contains(&format!("({chapter})")) {
            mistakes.push(format!("{file}:1: SUMMARY.md does not have this chapter"));
        }
        let name = format!("\"{}\"", chapter.trim_end_matches(".md"));
        if text.contains("\n```rust") && !doctests.contains(&name) {
            mistakes.push(format!("{file}:1: {DOCTESTS} does not compile the code of this chapter"));
        }
    }
    mistakes
}

/// The longest README, in lines, and the longest CONTRIBUTING.md, in bytes: pages for the first minutes.
const LONGEST: (usize, usize) = (130, 8192);

/// The pages for the first minutes that take more of them.
fn too_long(pages: &Pages) -> Vec<String> {
    let text = |file: &str| pages.get(file).map_or("", String::as_str);
    let (lines, bytes) = (text("README.md").lines().count(), text("CONTRIBUTING.md").len());
    let readme = (lines > LONGEST.0)
        .then(|| format!("README.md:{lines}: it has {lines} lines, and {} at most", LONGEST.0));
    let contributing = (bytes > LONGEST.1)
        .then(|| format!("CONTRIBUTING.md:1: it has {bytes} bytes, and {} at most", LONGEST.1));
    readme.into_iter().chain(contributing).collect()
}

/// The files that do not name the minimum Rust version of the manifest.
fn oldest_rust<'a>(manifest: &str, files: [(&'a str, &'a str); 2]) -> Vec<String> {
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    let version = version.unwrap_or("(none)");
    let named = |text: &str| {
        text.contains(&format!("Rust {version} ")) || text.contains(&format!("Rust version is {version}."))
    };
    let without = files.into_iter().filter(|(_, text)| !named(text));
    without.map(|(file, _)| format!("{file}:1: the minimum Rust version is {version}")).collect()
}

/// Builds the book, if mdBook is installed.
fn book() -> Tally {
    let mut command = Command::new("mdbook");
    if command.arg("--version").output().is_err() {
        println!("skipped: mdbook is not installed: cargo install mdbook");
        return Tally::SKIPPED;
    }
    let mut command = Command::new("mdbook");
    command.args(["build", "docs/guide"]);
    Tally::check(exec::show(command, minutes(5)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimum_rust_version_matches_manifest() {
        let files =
            [("README.md", "The minimum Rust version is 1.88."), ("src/lib.rs", "with Rust 1.88 or later")];
        assert_eq!(oldest_rust("rust-version = \"1.88\"", files), [""; 0]);
        assert_eq!(oldest_rust("rust-version = \"1.89\"", files).len(), 2);
    }

    #[test]
    fn pages_for_the_first_minutes_are_short() {
        let pages = |lines: usize, bytes: usize| {
            let contributing = ("CONTRIBUTING.md".to_owned(), "x".repeat(bytes));
            Pages::from([("README.md".to_owned(), "x\n".repeat(lines)), contributing])
        };
        assert_eq!(too_long(&pages(130, 8192)), [""; 0]);
        assert_eq!(too_long(&pages(131, 8193)).len(), 2);
    }

    #[test]
    fn chapters_are_listed_and_their_code_compiled() {
        let page = |name: &str, text: &str| (format!("{CHAPTERS}/{name}.md"), text.to_owned());
        let pages = Pages::from([
            page("SUMMARY", "- [Data](data.md)\n- [Prose](prose.md)"),
            page("data", "# Data\n\n```rust\nfn f() {}\n```"),
            page("prose", "# Prose"),
            page("lost", "# Lost"),
        ]);
        assert_eq!(chapters(&pages, "data = \"data\",").len(), 1, "lost");
        assert_eq!(chapters(&pages, "").len(), 2, "lost, and the code of data");
    }
}
