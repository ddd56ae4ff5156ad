//! The porting tables: each name of this crate in them exists, and nothing is both mapped and not offered.

use std::collections::{BTreeMap, BTreeSet};

use super::Pages;
use super::links::prose;
use crate::source::{self, Kind, Token};

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
    pub(super) fn read(sources: &[String]) -> Self {
        let mut names = Self::default();
        for text in sources {
            names.collect(&source::tokens(text));
        }
        names
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

    /// Adds the names of one file.
    fn collect(&mut self, tokens: &[Token]) {
        let mut at = 0;
        while at < tokens.len() {
            let public = at > 0 && tokens[at - 1].is_word("pub");
            let item = ["struct", "enum", "trait"].into_iter().find(|word| tokens[at].is_word(word));
            if tokens[at].is_word("impl") {
                at = self.implementation(tokens, at);
            } else if let (Some(item), true) = (item, public) {
                at = self.definition(tokens, at + 1, item);
            }
            at += 1;
        }
    }

    /// Reads a type; returns where its body ends.
    fn definition(&mut self, tokens: &[Token], at: usize, item: &str) -> usize {
        let Some(Kind::Word(name)) = tokens.get(at).map(|token| &token.kind) else { return at };
        let members = self.types.entry(name.clone()).or_default();
        let body = body(tokens, at);
        for (before, token, after) in body.clone().filter_map(|at| top(tokens, body.start, at)) {
            let Kind::Word(word) = &token.kind else { continue };
            let named = match item {
                // A variant follows the brace, a comma, or an attribute.
                "enum" => matches!(before, Kind::Punct('{' | ',' | ']')),
                "trait" => matches!(before, Kind::Word(word) if word == "fn"),
                _ => {
                    matches!(before, Kind::Word(word) if word == "const")
                        || (matches!(before, Kind::Word(word) if word == "pub") && *after == Kind::Punct(':'))
                }
            };
            if named {
                members.insert(word.clone());
            }
        }
        body.end
    }

    /// Reads the public methods and constants of an inherent implementation; returns where it ends.
    fn implementation(&mut self, tokens: &[Token], at: usize) -> usize {
        let body = body(tokens, at);
        let head = &tokens[at + 1..body.start.max(at + 1)];
        if head.iter().any(|token| token.is_word("for")) || body.is_empty() {
            return body.start;
        }
        // The type is the first word outside of angle brackets: `impl<T: Send> Acceptor<T> where T: ..`.
        let mut depth = 0;
        let name = head.iter().find_map(|token| {
            match &token.kind {
                Kind::Punct('<') => depth += 1,
                Kind::Punct('>') => depth -= 1,
                Kind::Word(word) if depth == 0 => return Some(word),
                _ => {}
            }
            None
        });
        let Some(name) = name else { return body.end };
        let members = self.types.entry(name.clone()).or_default();
        for at in body.clone() {
            let Kind::Word(word) = &tokens[at].kind else { continue };
            let before = &tokens[body.start..at];
            let kept = before.iter().rev().take_while(|token| {
                ["fn", "const", "async", "unsafe", "pub"].iter().any(|word| token.is_word(word))
            });
            let kept: Vec<_> = kept.collect();
            if kept.len() > 1 && kept.last().is_some_and(|token| token.is_word("pub")) {
                members.insert(word.clone());
            }
        }
        body.end
    }
}

/// The tokens from the next brace to the one that closes it. Empty before a semicolon.
fn body(tokens: &[Token], from: usize) -> std::ops::Range<usize> {
    let mut depth = 0_usize;
    let mut start = from;
    for (at, token) in tokens.iter().enumerate().skip(from) {
        match token.kind {
            Kind::Punct('{') => {
                if depth == 0 {
                    start = at;
                }
                depth += 1;
            }
            Kind::Punct('}') if depth <= 1 => return start..at,
            Kind::Punct('}') => depth -= 1,
            Kind::Punct(';') if depth == 0 => return at..at,
            _ => {}
        }
    }
    from..from
}

/// A token of a body that is in no inner bracket, with those before and after it.
fn top(tokens: &[Token], start: usize, at: usize) -> Option<(&Kind, &Token, &Kind)> {
    let depth = tokens[start..at].iter().fold(0_isize, |depth, token| match token.kind {
        Kind::Punct('{' | '(' | '[') => depth + 1,
        Kind::Punct('}' | ')' | ']') => depth - 1,
        _ => depth,
    });
    (depth == 1 && at > start)
        .then(|| Some((&tokens[at - 1].kind, &tokens[at], &tokens.get(at + 1)?.kind)))?
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
        check(&pages, &Names::read(&[SOURCE.to_owned()]), &BTreeSet::from(["AD-03".to_owned()]))
    }

    #[test]
    fn public_names_are_found_and_others_are_not() {
        let names = Names::read(&[SOURCE.to_owned()]);
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
