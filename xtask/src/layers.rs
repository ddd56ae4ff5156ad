//! `cargo xtask layers`: a module uses only modules of its own layer and of those below.
//!
//! Cargo cannot check this inside one crate, so this reads every path in `src/` that starts at `crate`,
//! `super` or `self`. Comments, docs and strings do not count; test modules do.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use proc_macro2::TokenTree;

use crate::Usage;
use crate::paths::{self, Named};
use crate::source::{self, is_word};

/// The modules of each layer, lowest first: the table of CONTRIBUTING.md.
const LAYERS: &[&[&str]] = &[
    &["status", "error", "types", "sync", "events", "metrics", "inspect"],
    &["wire"],
    &["proto"],
    &["memory", "inflight", "sys"],
    &["net"],
    &["provider"],
    &["soft", "verbs"],
    &["backend"],
    &["mr"],
    &["qp"],
    &["cm"],
    &["io"],
    &["sim"],
];

/// Modules that must not name each other. What their `mod.rs` re-exports for users may come from any layer.
const STRANGERS: [&str; 2] = ["soft", "verbs"];

/// Words that may stand only in some modules.
const CONFINED: &[(&str, &[&[&str]])] =
    &[("unsafe", &[&["memory"], &["sys"], &["verbs"]]), ("rdma_sys", &[&["sys"]])];

/// The command: exit status 1 if a rule is broken.
pub(crate) fn main(arguments: &[String]) -> Result<ExitCode, Usage> {
    Usage::none(arguments)?;
    Ok(match check_tree() {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            ExitCode::FAILURE
        }
    })
}

/// Checks every file of `src/` and prints what is wrong as `file:line: sentence`.
///
/// # Errors
/// A sentence, if a file cannot be read or a rule is broken.
pub(crate) fn check_tree() -> Result<(), String> {
    let mut files = Vec::new();
    list(Path::new("src"), &mut files).map_err(|error| format!("cannot list src: {error}"))?;
    files.sort();
    let mut count = 0;
    for file in &files {
        let text = fs::read_to_string(file).map_err(|error| format!("cannot read {file}: {error}"))?;
        for (line, sentence) in check(file, &text) {
            println!("{file}:{line}: {sentence}");
            count += 1;
        }
    }
    if count > 0 {
        return Err(format!("the layers are broken in {count} places"));
    }
    println!("{} files follow the layers", files.len());
    Ok(())
}

/// Adds every `.rs` file under a folder.
pub(crate) fn list(folder: &Path, files: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// The module that a file is: `src/wire/mpa.rs` is `[wire, mpa]`, `src/lib.rs` is `[]`.
fn module_of(file: &str) -> Vec<String> {
    let inside = file.strip_prefix("src/").unwrap_or(file);
    let mut module: Vec<String> = inside.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if module == ["lib"] || module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    module
}

/// The layer of a top-level module.
fn layer_of(name: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&name))
}

/// Whether a module is this place or inside it.
fn is_in(module: &[String], place: &[&str]) -> bool {
    module.len() >= place.len() && module.iter().zip(place).all(|(own, other)| own == other)
}

/// Every broken rule in a file, with its line.
fn check(file: &str, text: &str) -> Vec<(usize, String)> {
    let module = module_of(file);
    let trees = match source::trees(text) {
        Ok(trees) => trees,
        Err(wrong) => return vec![wrong],
    };
    let mut wrong = Vec::new();
    check_words(&module, &trees, &mut wrong);
    if let Some(own) = module.first() {
        match layer_of(own) {
            Some(layer) => {
                let named = paths::named(&trees, &module);
                let named = named.iter().filter(|named| !is_reexport(&module, text, named.line));
                wrong.extend(named.filter_map(|named| {
                    Some((
                        named.line,
                        check_layer(own, layer, named).or_else(|| check_strangers(&module, named))?,
                    ))
                }));
            }
            None => wrong.push((1, format!("`{own}` has no layer: add it to LAYERS in xtask/src/layers.rs"))),
        }
    }
    wrong.sort();
    wrong
}

/// Adds each word that must not stand in this module.
fn check_words(module: &[String], trees: &[TokenTree], wrong: &mut Vec<(usize, String)>) {
    for tree in trees {
        if let TokenTree::Group(group) = tree {
            check_words(module, &source::inside(group), wrong);
        }
        let Some((word, places)) = CONFINED.iter().find(|(word, _)| is_word(tree, word)) else { continue };
        if !places.iter().any(|place| is_in(module, place)) {
            let allowed: Vec<String> =
                places.iter().map(|place| format!("src/{}", place.join("/"))).collect();
            wrong.push((source::line(tree), format!("`{word}` may only stand in {}", allowed.join(", "))));
        }
    }
}

/// Does this path reach above the layer of the module that names it?
fn check_layer(own: &str, layer: usize, named: &Named) -> Option<String> {
    let Some(other) = named.path.first() else {
        return Some("this names the crate root, so its layer cannot be checked: name the module".into());
    };
    match layer_of(other) {
        Some(higher) if higher > layer => {
            Some(format!("`{own}` (layer {layer}) uses `{}` (layer {higher})", named.path.join("::")))
        }
        Some(_) => None,
        None if named.bang && named.path.len() == 1 => None, // a macro lives at the crate root
        None => {
            Some(format!("`crate::{other}` is not a module of the layer table: name the module it is from"))
        }
    }
}

/// Does this path lead from one provider to the other?
fn check_strangers(module: &[String], named: &Named) -> Option<String> {
    let [a, b] = STRANGERS;
    let other = [(a, b), (b, a)].into_iter().find(|(own, _)| is_in(module, &[*own]))?.1;
    let wrong = || format!("`{}` must not use `{}`", module.join("::"), named.path.join("::"));
    is_in(&named.path, &[other]).then(wrong)
}

/// Returns whether a line is a re-export in the file that is the public module of a provider.
fn is_reexport(module: &[String], text: &str, line: usize) -> bool {
    let is_public = matches!(module, [own] if STRANGERS.contains(&own.as_str()));
    is_public && text.lines().nth(line - 1).is_some_and(|line| line.starts_with("pub use "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mistakes in a file, as `line: sentence` joined by line breaks.
    fn wrong(file: &str, text: &str) -> String {
        check(file, text)
            .iter()
            .map(|(line, sentence)| format!("{line}: {sentence}"))
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[test]
    fn files_have_modules() {
        assert_eq!(module_of("src/lib.rs"), [""; 0]);
        assert_eq!(module_of("src/status.rs"), ["status"]);
        assert_eq!(module_of("src/wire/mod.rs"), ["wire"]);
        assert_eq!(module_of("src/soft/conn.rs"), ["soft", "conn"]);
    }

    #[test]
    fn a_lower_layer_may_be_used() {
        let text = "use crate::{error::{DecodeError, Reason}, types, wire::mpa::{self, *}};\n\
                    use super::super::status::Status;\npub(crate) fn f() { crate::proto::x::<u8>() }";
        assert_eq!(wrong("src/proto/mpa.rs", text), "");
        assert_eq!(wrong("src/inflight/mod.rs", "use crate::memory::Memory; use crate::sys;"), "");
    }

    #[test]
    fn a_higher_layer_may_not() {
        assert_eq!(
            wrong("src/wire/mpa.rs", "use crate::{\n    error,\n    proto::{qp::State},\n};"),
            "3: `wire` (layer 1) uses `proto::qp::State` (layer 2)"
        );
        assert_eq!(
            wrong("src/proto/qp.rs", "\nlet x = crate::qp::post();"),
            "2: `proto` (layer 2) uses `qp::post` (layer 9)"
        );
        assert_eq!(
            wrong("src/status.rs", "mod tests { use super::super::io::Stream; }").matches("layer 11").count(),
            1
        );
        assert_eq!(
            wrong("src/wire/ddp.rs", "use super::super::cm;"),
            "1: `wire` (layer 1) uses `cm` (layer 10)"
        );
    }

    #[test]
    fn comments_docs_and_strings_do_not_count() {
        let text = "//! See [`crate::cm`].\n/// [x](crate::qp::X) unsafe\nfn f() { /* crate::io */ g(\"crate::io unsafe\") }";
        assert_eq!(wrong("src/wire/mod.rs", text), "");
    }

    #[test]
    fn the_crate_root_hides_layers() {
        assert!(wrong("src/wire/mod.rs", "use crate::*;").contains("crate root"));
        assert!(wrong("src/wire.rs", "use super::*;").contains("crate root"));
        assert!(
            wrong("src/wire.rs", "use crate::Connection;").contains("`crate::Connection` is not a module")
        );
        assert_eq!(wrong("src/wire.rs", "crate::check!(1); mod tests { use super::*; }"), "");
    }

    #[test]
    fn only_the_root_needs_no_layer() {
        assert_eq!(wrong("src/lib.rs", "pub use crate::cm::Connector; pub mod io;"), "");
        assert!(wrong("src/novel.rs", "").contains("`novel` has no layer"));
    }

    #[test]
    fn the_providers_are_strangers() {
        let text = "use crate::{provider::Contract, verbs::Device};";
        assert_eq!(wrong("src/soft/conn.rs", text), "1: `soft::conn` must not use `verbs::Device`");
        assert_eq!(wrong("src/verbs/mod.rs", "super::soft::x()"), "1: `verbs` must not use `soft::x`");
        assert_eq!(wrong("src/backend.rs", "use crate::{soft::Soft, verbs::Verbs};"), "");
        assert_eq!(wrong("src/soft/conn.rs", "use super::super::provider::Contract; use super::*;"), "");
    }

    #[test]
    fn the_public_module_of_a_provider_reexports() {
        assert_eq!(wrong("src/verbs/mod.rs", "pub use crate::cm::check_up;"), "");
        assert!(wrong("src/verbs/mod.rs", "use crate::cm::check_up;").contains("uses `cm::check_up`"));
        assert!(wrong("src/verbs/limits.rs", "pub use crate::cm::check_up;").contains("uses `cm::check_up`"));
    }

    #[test]
    fn unsafe_and_the_bindings_are_confined() {
        assert_eq!(
            wrong("src/qp/mod.rs", "#![deny(unsafe_code)]\nunsafe { f() }"),
            "2: `unsafe` may only stand in src/memory, src/sys, src/verbs"
        );
        assert!(wrong("src/lib.rs", "unsafe impl Send for X {}").contains("unsafe"));
        for file in ["src/memory.rs", "src/memory/page.rs", "src/sys/cm.rs", "src/verbs/qp.rs"] {
            assert_eq!(wrong(file, "unsafe fn f() {}"), "");
        }
        assert_eq!(wrong("src/sys/ffi.rs", "pub use rdma_sys::*;"), "");
        assert!(wrong("src/verbs/cm.rs", "rdma_sys::ibv_poll_cq").contains("src/sys"));
    }
}
