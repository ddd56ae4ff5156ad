//! The porting tables: each name of this crate in them exists, and nothing is both mapped and not offered.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, Group, TokenTree};

use super::Pages;
use crate::source::{self, group, inside, is_punct, is_word};

/// The pages with porting tables begin so.
const PAGES: &str = "docs/guide/src/porting";

/// The head of the column with the names of this crate.
const OURS: &str = "tokio-rdma";

/// The head of the column with the rows that are not offered: the second of its table.
const MISSING: &str = "not offered";

/// Names of tokio that stand between those of this crate.
const TOKIO: &[&str] = &["AsyncRead", "AsyncWrite", "AsyncWriteExt", "shutdown"];

/// The public types, and the public methods, fields, variants and constants of each.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// By the name of the type. Methods of a trait count as those of the trait.
    types: BTreeMap<String, BTreeSet<String>>,
}

impl Names {
    /// Reads the names of sources.
    ///
    /// # Errors
    /// A sentence, if one is not Rust.
    pub(super) fn read(sources: &[String]) -> Result<Self, String> {
        let mut names = Self::default();
        for text in sources {
            names.collect(
                &source::trees(text).map_err(|(line, sentence)| format!("line {line}: {sentence}"))?,
            );
        }
        Ok(names)
    }

    /// The number of names.
    pub(super) fn len(&self) -> usize {
        self.types.values().map(BTreeSet::len).sum()
    }

    /// Whether a name exists: a type, a member of any type, or a member of the type that is named.
    fn have(&self, name: &str) -> bool {
        let name = name.split('(').next().unwrap_or_default();
        match name.rsplit_once("::") {
            Some((owner, member)) => {
                let owner = owner.rsplit("::").next().unwrap_or_default();
                self.types.get(owner).is_some_and(|members| members.contains(member))
            }
            None => {
                self.types.contains_key(name) || self.types.values().any(|members| members.contains(name))
            }
        }
    }

    /// Adds the names of some code.
    fn collect(&mut self, trees: &[TokenTree]) {
        let mut at = 0;
        while let Some(tree) = trees.get(at) {
            let public = at > 0 && is_word(&trees[at - 1], "pub");
            let item = ["struct", "enum", "trait"].into_iter().find(|word| public && is_word(tree, word));
            let read = match (item, source::body(&trees[at..])) {
                (Some(item), Some((end, body))) => {
                    self.definition(&trees[at + 1..at + end], body, item).then_some(end)
                }
                (Some(_), None) => trees.get(at + 1).and_then(|name| self.members(name)).and(None),
                (None, Some((end, body))) if is_word(tree, "impl") => {
                    self.implementation(&trees[at + 1..at + end], body).then_some(end)
                }
                _ => None,
            };
            if let (None, TokenTree::Group(group)) = (read, tree) {
                self.collect(&inside(group));
            }
            at += read.unwrap_or(0) + 1;
        }
    }

    /// The members of a type.
    fn members(&mut self, name: &TokenTree) -> Option<&mut BTreeSet<String>> {
        let TokenTree::Ident(name) = name else { return None };
        Some(self.types.entry(name.to_string()).or_default())
    }

    /// Reads a type. Returns whether it has a name, which the parameter of a macro is not.
    fn definition(&mut self, head: &[TokenTree], body: &Group, item: &str) -> bool {
        let Some(members) = head.first().and_then(|name| self.members(name)) else { return false };
        let body = inside(body);
        for (at, tree) in body.iter().enumerate() {
            let TokenTree::Ident(word) = tree else { continue };
            let before = at.checked_sub(1).map(|at| &body[at]);
            let follows = |word| before.is_some_and(|before| is_word(before, word));
            let named = match item {
                // A variant is the first, or follows a comma or an attribute.
                "enum" => before.is_none_or(|before| {
                    is_punct(before, ',') || group(before, Delimiter::Bracket).is_some()
                }),
                "trait" => follows("fn"),
                _ => {
                    let is_field = body.get(at + 1).is_some_and(|after| is_punct(after, ':'));
                    follows("const") || (follows("pub") && is_field)
                }
            };
            if named {
                members.insert(word.to_string());
            }
        }
        true
    }

    /// Reads the public methods and constants of an implementation. Returns whether it is an inherent one.
    fn implementation(&mut self, head: &[TokenTree], body: &Group) -> bool {
        if head.iter().any(|tree| is_word(tree, "for")) {
            return false;
        }
        // The type is the first word outside of angle brackets: `impl<T: Send> Acceptor<T> where T: ..`.
        let mut depth = 0;
        let name = head.iter().find(|tree| {
            depth += i32::from(is_punct(tree, '<')) - i32::from(is_punct(tree, '>'));
            depth == 0 && matches!(tree, TokenTree::Ident(_))
        });
        let Some(members) = name.and_then(|name| self.members(name)) else { return false };
        let body = inside(body);
        for (at, tree) in body.iter().enumerate() {
            let TokenTree::Ident(word) = tree else { continue };
            let is_head = |tree: &&TokenTree| {
                ["fn", "const", "async", "unsafe", "pub"].iter().any(|word| is_word(tree, word))
            };
            let head: Vec<_> = body[..at].iter().rev().take_while(is_head).collect();
            if head.len() > 1 && head.last().is_some_and(|first| is_word(first, "pub")) {
                members.insert(word.to_string());
            }
        }
        true
    }
}

/// Returns each mistake of the porting tables, as `file:line: sentence`. `out` are the rows of the feature table that are not
/// offered.
pub(super) fn check(pages: &Pages, names: &Names, out: &BTreeSet<String>) -> Vec<String> {
    let (mut mistakes, mut listed) = (Vec::new(), BTreeSet::new());
    for (file, text) in pages.iter().filter(|(file, _)| file.starts_with(PAGES)) {
        let (mut head, mut mapped) = ("", BTreeMap::new());
        for (line, text) in prose(text) {
            let cells = cells(text);
            let [first, second, rest @ ..] = cells.as_slice() else {
                (head, mapped) = ("", BTreeMap::new());
                continue;
            };
            let mut wrong = |sentence: String| mistakes.push(format!("{file}:{line}: {sentence}"));
            if head.is_empty() {
                head = second;
            } else if first.starts_with("---") {
            } else if head == MISSING {
                listed.insert((*first).to_owned());
                if !out.contains(*first) {
                    wrong(format!("{first} is not `out` in the feature table"));
                }
            } else if head == OURS {
                let unknown = code(second).filter(|name| !names.have(name) && !TOKIO.contains(name));
                unknown.for_each(|name| wrong(format!("`{name}` is no public name of the crate")));
                let offered = !second.starts_with('–');
                for theirs in code(first) {
                    // Several arguments of one call stand in several rows.
                    let known = mapped.insert(theirs.to_owned(), offered);
                    if known.is_some_and(|known| known != offered) && code(first).count() == 1 {
                        wrong(format!("`{theirs}` is both mapped and not"));
                    }
                }
                let cited = rest.iter().flat_map(|cell| out.iter().filter(|id| cell.contains(id.as_str())));
                cited
                    .filter(|_| offered)
                    .for_each(|id| wrong(format!("{id} is mapped here, and not offered")));
            }
        }
    }
    mistakes.extend(
        out.difference(&listed).map(|id| format!("{PAGES}.md:1: {id} is not offered, and not listed")),
    );
    mistakes
}

/// The lines outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// The cells of a line of a table.
fn cells(line: &str) -> Vec<&str> {
    let line = line.trim();
    let inner = line.strip_prefix('|').and_then(|line| line.strip_suffix('|'));
    inner.map_or_else(Vec::new, |inner| inner.split('|').map(str::trim).collect())
}

/// The names in backticks.
fn code(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bit of a library.
    const SOURCE: &str = r"
        pub struct Pair { pub depth: u32, hidden: u32 }
        impl<T: Into<u32>> Pair { pub fn post(&self) { other(1, 2) } pub(crate) fn inner() {} pub const fn size() {} }
        impl Clone for Pair { fn clone(&self) {} }
        pub enum Error { /// Full.
            Full { depth: u32 }, Lost(Reason), #[error] Other }
        pub struct Access: u32 { const READ = 1; }
        pub trait Memory { fn len(&self); }
        pub async fn free() {}
        struct Private { pub field: u32 }
    ";

    fn mistakes(table: &str) -> Vec<String> {
        let pages = Pages::from([(format!("{PAGES}.md"), table.to_owned())]);
        check(
            &pages,
            &Names::read(&[SOURCE.to_owned()]).expect("Rust"),
            &BTreeSet::from(["AD-03".to_owned()]),
        )
    }

    #[test]
    fn public_names_are_found_and_others_are_not() {
        let names = Names::read(&[SOURCE.to_owned()]).expect("Rust");
        for name in [
            "Pair",
            "Pair::post",
            "post()",
            "Pair::depth",
            "Pair::size",
            "Error::Full",
            "Error::Lost",
            "Error::Other",
        ] {
            assert!(names.have(name), "{name}");
        }
        for name in ["Access::READ", "Memory::len", "crate::qp::Pair::post"] {
            assert!(names.have(name), "{name}");
        }
        for name in
            ["Pair::hidden", "Pair::inner", "Pair::clone", "Private", "Error::depth", "other", "Full::post"]
        {
            assert!(!names.have(name), "{name}");
        }
    }

    #[test]
    fn a_table_has_names_that_exist() {
        let list = "\n| row | not offered |\n|---|---|\n| AD-03 | x |\n";
        let table = |row: &str| format!("| ND | tokio-rdma | remarks |\n|---|---|---|\n{row}\n{list}");
        assert_eq!(mistakes(&table("| `Post` | `Pair::post`, or drop | |")), [""; 0]);
        assert_eq!(mistakes(&table("| `Post` | `Pair::pots` | |")).len(), 1);
        assert_eq!(mistakes(&table("| `Post` | `Pair::post` | |\n| `Post` | – | |")).len(), 1);
        assert_eq!(mistakes(&table("| `Post` | `Pair::post` | (AD-03) |")).len(), 1);
        assert_eq!(mistakes(&table("| `Post` | – | (AD-03) |")), [""; 0]);
    }

    #[test]
    fn the_list_is_that_of_the_feature_table() {
        assert_eq!(mistakes("").len(), 1);
        assert_eq!(mistakes("| row | not offered |\n|---|---|\n| AD-03 | x |\n| AD-04 | y |").len(), 1);
    }
}
