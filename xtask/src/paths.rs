//! Finds the paths in a source file that start at `crate`, `super` or `self`, resolved to full paths.

use proc_macro2::{Delimiter, Spacing, TokenTree};

use crate::source::{self, group, is_punct, is_word};

/// A path that the source names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// Its segments after the crate root. Empty if it is the root itself.
    pub(crate) path: Vec<String>,
    /// The line of its last segment.
    pub(crate) line: usize,
    /// Whether it is `path::*`.
    pub(crate) glob: bool,
    /// Whether it is the call of a macro, `path!`.
    pub(crate) bang: bool,
}

/// Returns every such path in a file whose own module is `module`.
///
/// Groups are taken apart (`use crate::{a::{b, c}, d}` names three), inline modules are followed, and a path
/// ends where generic arguments, a call or anything else begins.
pub(crate) fn named(trees: &[TokenTree], module: &[String]) -> Vec<Named> {
    let mut found = Vec::new();
    look(trees, module, &mut found);
    found
}

/// Adds the paths of code in a module.
fn look(trees: &[TokenTree], module: &[String], found: &mut Vec<Named>) {
    let mut at = 0;
    while let Some(tree) = trees.get(at) {
        if let TokenTree::Group(group) = tree {
            let mut module = module.to_vec();
            if let [.., word, TokenTree::Ident(name)] = &trees[..at]
                && is_word(word, "mod")
            {
                module.push(name.to_string());
            }
            look(&source::inside(group), &module, found);
        } else if starts_path(trees, at) {
            at = path(trees, at, module.to_vec(), found);
            continue;
        }
        at += 1;
    }
}

/// Whether a path that can be resolved starts at this index. `pub(crate)` and `self.x` do not.
fn starts_path(trees: &[TokenTree], at: usize) -> bool {
    let is = |word| is_word(&trees[at], word);
    let renamed = trees.get(at + 1).is_some_and(|next| is_word(next, "as"));
    match is("crate") || is("super") {
        true => goes_on(trees, at) || renamed,
        false => is("self") && goes_on(trees, at),
    }
}

/// Whether `::` follows the tree at this index.
fn goes_on(trees: &[TokenTree], at: usize) -> bool {
    matches!(&trees[at + 1..], [TokenTree::Punct(first), second, ..]
        if first.as_char() == ':' && first.spacing() == Spacing::Joint && is_punct(second, ':'))
}

/// Adds the path or the use-tree that starts at an index, below `base`; returns the index after it.
fn path(trees: &[TokenTree], mut at: usize, mut base: Vec<String>, found: &mut Vec<Named>) -> usize {
    let mut line = trees.get(at).map_or(0, source::line);
    loop {
        match trees.get(at) {
            Some(tree @ TokenTree::Ident(word)) => {
                line = source::line(tree);
                match word.to_string().as_str() {
                    "crate" => base.clear(),
                    "self" => {}
                    "super" => drop(base.pop()),
                    name => base.push(name.trim_start_matches("r#").to_owned()),
                }
            }
            Some(star) if is_punct(star, '*') => {
                found.push(Named { path: base, line: source::line(star), glob: true, bang: false });
                return at + 1;
            }
            other => {
                match other.and_then(|tree| group(tree, Delimiter::Brace)) {
                    Some(braces) => members(&source::inside(braces), &base, found),
                    // `path::<T>`: the angle bracket is the next thing to look at.
                    None => {
                        found.push(Named { path: base, line, glob: false, bang: false });
                        return at;
                    }
                }
                return at + 1;
            }
        }
        if !goes_on(trees, at) {
            // `path != other` compares, `path!` calls.
            let bang =
                matches!(&trees[at + 1..], [mark, next, ..] if is_punct(mark, '!') && !is_punct(next, '='));
            found.push(Named { path: base, line, glob: false, bang });
            return at + 1;
        }
        at += 3;
    }
}

/// Adds the members of a group of a use-tree.
fn members(trees: &[TokenTree], base: &[String], found: &mut Vec<Named>) {
    let mut at = 0;
    while let Some(tree) = trees.get(at) {
        at = match tree {
            TokenTree::Punct(mark) if mark.as_char() != '*' => at + 1,
            word if is_word(word, "as") => at + 2,
            _ => path(trees, at, base.to_vec(), found),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::trees;

    /// The paths in a text, as `line path`, seen from a module such as `wire::mpa`.
    fn read(module: &str, text: &str) -> Vec<String> {
        let module: Vec<String> = module.split("::").map(str::to_owned).collect();
        let show = |named: Named| {
            let glob = if named.glob { "::*" } else { "" };
            let bang = if named.bang { "!" } else { "" };
            format!("{} {}{glob}{bang}", named.line, named.path.join("::"))
        };
        super::named(&trees(text).expect("Rust"), &module).into_iter().map(show).collect()
    }

    #[test]
    fn use_declarations_and_inline_paths() {
        assert_eq!(
            read("qp", "use crate::wire::mpa::Frame;\nlet x = crate::proto::f(crate::types::A);"),
            ["1 wire::mpa::Frame", "2 proto::f", "2 types::A"]
        );
        assert_eq!(read("qp", "crate::wire::Codec::<u8>::new()"), ["1 wire::Codec"]);
        assert_eq!(read("qp", "impl crate::wire::Codec for X { fn f(self) { self.g } }"), ["1 wire::Codec"]);
    }

    #[test]
    fn groups_nest() {
        let text = "use crate::{\n  error::{self, DecodeError as E},\n  wire::{ddp, mpa::{Frame, *}},\n  types,\n};\ncrate::a::b";
        assert_eq!(
            read("qp", text),
            [
                "2 error",
                "2 error::DecodeError",
                "3 wire::ddp",
                "3 wire::mpa::Frame",
                "3 wire::mpa::*",
                "4 types",
                "6 a::b"
            ]
        );
        assert_eq!(read("qp", "use crate::{self as root};"), ["1 "]);
    }

    #[test]
    fn super_climbs_out_of_files_and_inline_modules() {
        assert_eq!(
            read("wire::mpa", "use super::ddp::X; use super::super::proto;"),
            ["1 wire::ddp::X", "1 proto"]
        );
        let text = "use super::types; mod tests { use super::*; fn f() { if x { super::super::qp::g() } } } use super::cm;";
        assert_eq!(read("status", text), ["1 types", "1 status::*", "1 qp::g", "1 cm"]);
        assert_eq!(read("wire::mpa", "self::super::ddp::X"), ["1 wire::ddp::X"]);
        assert_eq!(
            read("wire", "use super as root; use super::*;"),
            ["1 ", "1 *"].map(|s| s.replace("*", "::*"))
        );
    }

    #[test]
    fn visibility_is_not_a_path() {
        assert_eq!(read("wire", "pub(crate) fn f(); pub(super) x: u8, pub(self) y: u8"), [""; 0]);
        assert_eq!(read("wire", "pub(in crate::wire) fn f();"), ["1 wire"]);
    }

    #[test]
    fn macros() {
        assert_eq!(
            read("wire", "crate::check!(x); $crate::types::f!(); crate::a != b"),
            ["1 check!", "1 types::f!", "1 a"]
        );
        assert_eq!(read("wire", "crate::$name::X"), ["1 "]);
    }
}
