//! Finds the paths in a source file that start at `crate`, `super` or `self`, resolved to full paths.

use crate::source::{Kind, Token};

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

/// Every such path in a file whose own module is `module`.
///
/// Groups are taken apart (`use crate::{a::{b, c}, d}` names three), inline modules are followed, and a path
/// ends where generic arguments, a call or anything else begins.
pub(crate) fn named(tokens: &[Token], module: &[String]) -> Vec<Named> {
    let mut finder = Finder { tokens, found: Vec::new() };
    let mut module = module.to_vec();
    let mut depth = 0_usize;
    let mut inline = Vec::new(); // the depth outside each inline module that we are in
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match &token.kind {
            Kind::Word(word) if word == "mod" => {
                if let (Some(Kind::Word(name)), Some(Kind::Punct('{'))) =
                    (finder.kind(at + 1), finder.kind(at + 2))
                {
                    module.push(name.clone());
                    inline.push(depth);
                    depth += 1;
                    at += 2;
                }
            }
            Kind::Punct('{') => depth += 1,
            Kind::Punct('}') => {
                depth = depth.saturating_sub(1);
                if inline.last() == Some(&depth) {
                    inline.pop();
                    module.pop();
                }
            }
            Kind::Word(word) if finder.starts_path(at, word) => {
                at = finder.tree(at, module.clone());
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    finder.found
}

/// The state of looking.
struct Finder<'a> {
    /// The whole file.
    tokens: &'a [Token],
    /// The paths that have been found.
    found: Vec<Named>,
}

impl Finder<'_> {
    /// The kind of the token at an index.
    fn kind(&self, at: usize) -> Option<&Kind> {
        self.tokens.get(at).map(|token| &token.kind)
    }

    /// Whether the word at this index starts a path that can be resolved. `pub(crate)` and `self.x` do not.
    fn starts_path(&self, at: usize, word: &str) -> bool {
        let renamed = self.tokens.get(at + 1).is_some_and(|next| next.is_word("as"));
        let goes_on = self.kind(at + 1) == Some(&Kind::PathSep);
        match word {
            "crate" | "super" => goes_on || renamed,
            "self" => goes_on,
            _ => false,
        }
    }

    /// Reads a path or use-tree that starts at an index, below `base`; returns the index after it.
    fn tree(&mut self, mut at: usize, mut base: Vec<String>) -> usize {
        loop {
            match self.kind(at) {
                Some(Kind::Word(word)) => match word.as_str() {
                    "crate" => base.clear(),
                    "self" => {}
                    "super" => drop(base.pop()),
                    name => base.push(name.to_owned()),
                },
                Some(Kind::Punct('*')) => {
                    self.push(at, base, true);
                    return at + 1;
                }
                Some(Kind::Punct('{')) => return self.group(at + 1, &base),
                _ => {
                    self.push(at.saturating_sub(1), base, false);
                    return at;
                }
            }
            if self.kind(at + 1) != Some(&Kind::PathSep) {
                self.push(at, base, false);
                return at + 1;
            }
            at += 2;
        }
    }

    /// Reads the inside of a group; returns the index after its closing brace.
    fn group(&mut self, mut at: usize, base: &[String]) -> usize {
        while let Some(kind) = self.kind(at) {
            match kind {
                Kind::Punct('}') => return at + 1,
                Kind::Word(word) if word == "as" => at += 2,
                Kind::Word(_) | Kind::Punct('*' | '{') => at = self.tree(at, base.to_vec()),
                Kind::PathSep | Kind::Punct(_) => at += 1,
            }
        }
        at
    }

    /// Records a path whose last token is at an index.
    fn push(&mut self, at: usize, path: Vec<String>, glob: bool) {
        let line = self.tokens.get(at).map_or(0, |token| token.line);
        // `path != other` compares, `path!` calls.
        let bang =
            self.kind(at + 1) == Some(&Kind::Punct('!')) && self.kind(at + 2) != Some(&Kind::Punct('='));
        self.found.push(Named { path, line, glob, bang });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tokens;

    /// The paths in a text, as `line path`, seen from a module such as `wire::mpa`.
    fn read(module: &str, text: &str) -> Vec<String> {
        let module: Vec<String> = module.split("::").map(str::to_owned).collect();
        let show = |named: Named| {
            let glob = if named.glob { "::*" } else { "" };
            let bang = if named.bang { "!" } else { "" };
            format!("{} {}{glob}{bang}", named.line, named.path.join("::"))
        };
        super::named(&tokens(text), &module).into_iter().map(show).collect()
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
