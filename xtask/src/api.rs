//! The public names of the library: `xtask/api.txt` lists them, so that none comes or goes unseen. An item of a private module that is
//! moved to a public one is public, without a word of anybody's.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::{Usage, steps};

/// The list, of the features that docs.rs has.
const LIST: &str = "xtask/api.txt";
/// The folder of the pages of rustdoc: one for each item, and one for each module.
const PAGES: &str = "target/doc/tokio_rdma";

/// The command: exit status 1 if the list differs, or cannot be written.
pub(crate) fn main(arguments: &[String]) -> Result<ExitCode, Usage> {
    let renew = match arguments {
        [] => false,
        [argument] if argument == "--renew" => true,
        [argument, ..] => return Err(Usage(format!("unexpected argument `{argument}`"))),
    };
    let outcome = steps::doc_of_all_features().and_then(|()| if renew { write() } else { check() });
    Ok(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            ExitCode::FAILURE
        }
    })
}

/// Compares the names in the documentation, which has just been built, with the list.
///
/// # Errors
/// A sentence with the names that differ.
pub(crate) fn check() -> Result<(), String> {
    let (names, list) = (names()?, read(Path::new(LIST))?);
    let listed: BTreeSet<&str> = list.lines().collect();
    let new: Vec<_> = names.iter().filter(|name| !listed.contains(name.as_str())).collect();
    let gone: Vec<_> = listed.into_iter().filter(|name| !names.contains(*name)).collect();
    if new.is_empty() && gone.is_empty() {
        return Ok(());
    }
    Err(format!(
        "public names are new: {new:?}, or gone: {gone:?}; if that is meant, `cargo xtask api --renew` lists them"
    ))
}

/// Writes the list anew.
fn write() -> Result<(), String> {
    let names: Vec<_> = names()?.into_iter().collect();
    fs::write(LIST, names.join("\n") + "\n").map_err(|error| format!("{LIST}: {error}"))
}

/// Returns the names of all pages.
fn names() -> Result<BTreeSet<String>, String> {
    let (mut names, mut folders) = (BTreeSet::new(), vec![PathBuf::from(PAGES)]);
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(page) = path.strip_prefix(PAGES)
                && let Some(page) = page.to_str().and_then(|page| page.strip_suffix(".html"))
            {
                names.extend(names_of(page, &read(&path)?));
            }
        }
    }
    Ok(names)
}

/// Reads a file.
fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))
}

/// Returns the names on a page: that of the item, such as `qp/struct.Lane`, and those of its parts or methods, such as
/// `qp/struct.Lane#method.send`, or of what a module takes over from others. What an item has by its traits is not among them.
fn names_of(page: &str, text: &str) -> Vec<String> {
    // Pages of private modules lead to the public place of an item.
    if text.contains("<title>Redirection</title>") || !(page.ends_with("index") || page.contains('.')) {
        return Vec::new();
    }
    let own = text.split("id=\"trait-implementations\"").next().unwrap_or_default();
    let own = own.split("id=\"synthetic-implementations\"").next().unwrap_or_default();
    let ids = own.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let kinds = [
        "reexport.",
        "variant.",
        "structfield.",
        "method.",
        "tymethod.",
        "associatedconstant.",
        "associatedtype.",
    ];
    let parts = ids.filter(|id| kinds.iter().any(|kind| id.starts_with(kind)) && !id.contains(".field"));
    std::iter::once(page.to_owned()).chain(parts.map(|id| format!("{page}#{id}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_an_item_and_of_its_own_parts() {
        let page = "<title>Lane</title><span id=\"structfield.slots\"></span><section id=\"method.send\" class=\"method\">\
                    <h2 id=\"trait-implementations\"><section id=\"method.fmt\">";
        let found = names_of("qp/struct.Lane", page);
        assert_eq!(
            found,
            ["qp/struct.Lane", "qp/struct.Lane#structfield.slots", "qp/struct.Lane#method.send"]
        );
        let module = "<title>io</title><div id=\"reexport.Adapter\">";
        assert_eq!(names_of("io/index", module), ["io/index", "io/index#reexport.Adapter"]);
        assert!(names_of("mr/entry/enum.Entry", "<title>Redirection</title>").is_empty());
        assert!(names_of("all", "<section id=\"method.send\">").is_empty());
    }
}
