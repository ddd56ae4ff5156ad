//! Finds where test code cites rows of the feature table: `// CM-19: why`, `// CM-19, CM-20`.

use crate::source::{self, Kind, Token};

/// A row that a comment names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Citation {
    /// The row, such as `CM-19`.
    pub(crate) row: String,
    /// The line of the comment.
    pub(crate) line: usize,
    /// The function around the comment, else the next one; empty after the last.
    pub(crate) function: String,
}

/// The content of the comments of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// The rows that are named one by one.
    pub(crate) citations: Vec<Citation>,
    /// Lines with a range, which does not tell what is tested.
    pub(crate) ranges: Vec<usize>,
}

/// Which code of a file counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All of it: a file of tests.
    All,
    /// Only modules that are compiled for tests.
    TestModules,
}

/// The citations in the `//` and `///` comments of a file; `//!` tells of a file, not of a test.
pub(crate) fn find(text: &str, scope: Scope) -> Found {
    let tokens = source::tokens(text);
    let functions = functions(&tokens);
    let modules = match scope {
        Scope::All => vec![(0, usize::MAX)],
        Scope::TestModules => test_modules(&tokens).0,
    };
    let mut found = Found::default();
    for (line, comment) in source::comments(text) {
        if comment.starts_with('!') || !modules.iter().any(|(first, last)| (*first..=*last).contains(&line)) {
            continue;
        }
        let (rows, range) = rows(comment);
        if range {
            found.ranges.push(line);
        }
        let function = function_of(&functions, line);
        found.citations.extend(rows.into_iter().map(|row| Citation {
            row: row.to_owned(),
            line,
            function: function.to_owned(),
        }));
    }
    found
}

/// The names of the modules in files of their own that a file declares for tests only.
pub(crate) fn test_files(text: &str) -> Vec<String> {
    test_modules(&source::tokens(text)).1
}

/// The rows in a comment, and whether it names a range of them.
fn rows(comment: &str) -> (Vec<&str>, bool) {
    let mut rows = Vec::new();
    let mut range = false;
    let mut at = 0;
    while let Some(dash) = comment[at..].find('-').map(|place| at + place) {
        let head = comment[..dash].trim_end_matches(|c: char| c.is_ascii_uppercase()).len();
        let after = &comment[dash + 1..];
        let digits = after.bytes().take_while(u8::is_ascii_digit).count();
        let starts = !comment[..head].ends_with(|c: char| c.is_alphanumeric() || "-_".contains(c));
        let ends = !after[digits..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
        at = dash + 1;
        if (2..=3).contains(&(dash - head)) && digits == 2 && starts && ends {
            at = dash + 3;
            rows.push(&comment[head..at]);
            range |= is_range(&comment[at..]);
        }
    }
    (rows, range)
}

/// Whether what follows a row makes it the first of a range.
fn is_range(after: &str) -> bool {
    let after = after.trim_start();
    ["..", "…", "–", "-", "to "].iter().any(|sign| {
        let rest = after.strip_prefix(sign).map(|rest| rest.trim_start_matches(['.', '=', ' ']));
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c.is_ascii_uppercase()))
    })
}

/// A function with the lines on which it begins and ends.
struct Function {
    /// Its name.
    name: String,
    /// The line of `fn`.
    first: usize,
    /// The line of its closing brace.
    last: usize,
}

/// The function around a line, the outermost if there are several; else the one that comes next.
fn function_of(functions: &[Function], line: usize) -> &str {
    let around = functions.iter().find(|one| (one.first..=one.last).contains(&line));
    around.or_else(|| functions.iter().find(|one| one.first > line)).map_or("", |one| &one.name)
}

/// The functions that have a body, in the order in which they begin.
fn functions(tokens: &[Token]) -> Vec<Function> {
    let mut found = Vec::new();
    for (at, pair) in tokens.windows(2).enumerate() {
        let ([word, Token { kind: Kind::Word(name), .. }], true) = (pair, pair[0].is_word("fn")) else {
            continue;
        };
        // A semicolon before the brace: a declaration. Not so inside of brackets, `[u8; 4]`.
        let mut depth = 0_i32;
        let open = tokens[at..].iter().position(|token| match token.kind {
            Kind::Punct('[' | '(') => {
                depth += 1;
                false
            }
            Kind::Punct(']' | ')') => {
                depth -= 1;
                false
            }
            Kind::Punct('{' | ';') => depth == 0,
            _ => false,
        });
        if let Some(open) = open.map(|open| at + open).filter(|open| tokens[*open].kind == Kind::Punct('{')) {
            found.push(Function { name: name.clone(), first: word.line, last: closing(tokens, open) });
        }
    }
    found
}

/// The line of the brace that closes the one at an index.
fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for token in &tokens[open..] {
        match token.kind {
            Kind::Punct('{') => depth += 1,
            Kind::Punct('}') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return token.line;
        }
    }
    usize::MAX
}

/// The modules behind a `#[cfg(test)]`: the lines of those in this file, the names of those in files of their own.
fn test_modules(tokens: &[Token]) -> (Vec<(usize, usize)>, Vec<String>) {
    let (mut inside, mut files) = (Vec::new(), Vec::new());
    let mut for_tests = false;
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let kind = |ahead: usize| tokens.get(at + ahead).map(|token| &token.kind);
        if token.kind == Kind::Punct('#') && kind(1) == Some(&Kind::Punct('[')) {
            let end = tokens[at..].iter().position(|token| token.kind == Kind::Punct(']'));
            let end = end.map_or(tokens.len(), |end| at + end);
            let names = |word: &str| tokens[at..end].iter().any(|token| token.is_word(word));
            for_tests |= names("cfg") && names("test") && !names("not");
            at = end;
        } else if let (true, true, Some(Kind::Word(name)), Some(Kind::Punct(mark))) =
            (for_tests, token.is_word("mod"), kind(1), kind(2))
        {
            match mark {
                '{' => inside.push((token.line, closing(tokens, at + 2))),
                _ => files.push(name.clone()),
            }
            for_tests = false;
        } else if !["pub", "crate", "in", "super"].iter().any(|word| token.is_word(word))
            && !matches!(token.kind, Kind::Punct('(' | ')'))
        {
            for_tests = false;
        }
        at += 1;
    }
    (inside, files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The citations in a text as `line row function`.
    fn read(text: &str, scope: Scope) -> Vec<String> {
        let show = |one: Citation| format!("{} {} {}", one.line, one.row, one.function);
        find(text, scope).citations.into_iter().map(show).collect()
    }

    #[test]
    fn rows_are_found_alone_in_lists_and_in_sentences() {
        assert_eq!(rows(" CM-19").0, ["CM-19"]);
        assert_eq!(rows(" CM-19, CM-20: why. X1, and (`PRV-03`)").0, ["CM-19", "CM-20", "PRV-03"]);
        assert_eq!(rows(" Race 7; CM-29: each side").0, ["CM-29"]);
    }

    #[test]
    fn text_like_a_row_is_no_row() {
        for text in [
            "RFC-5044", "CRC-32C", "CM-1", "CM-190", "cm-19", "X-01", "ABCD-01", "UTF-8", "a-b", "-19", "CM-",
        ] {
            assert_eq!(rows(text), (vec![], false), "{text}");
        }
        assert_eq!(rows("é-01 – CM-19é").0, [""; 0]);
    }

    #[test]
    fn a_range_is_found() {
        for text in ["CM-15..18", "CM-15..=CM-18", "CM-15…18", "CM-15 – CM-18", "CM-15-18", "CM-15 to CM-18"]
        {
            assert!(rows(text).1, "{text}");
        }
        for text in ["CM-15, CM-18", "CM-15. 18 of them", "CM-15 - why", "CM-15 to see"] {
            assert!(!rows(text).1, "{text}");
        }
        assert_eq!(find("// LS-01\n// LS-01..03\nfn f() {}", Scope::All).ranges, [2]);
    }

    #[test]
    fn a_comment_belongs_to_the_function_around_it_or_the_next() {
        let text = "//! CM-01\n/// CM-02\n#[test]\nfn a() {\n  // CM-03\n  fn inner() { // CM-04\n  }\n}\n\
            // CM-05\nfn declared(x: [u8; 2]);\nfn b(x: [u8; 2]) -> u8 { 1 } // CM-06\n// CM-07\n";
        let want = ["2 CM-02 a", "5 CM-03 a", "6 CM-04 a", "9 CM-05 b", "11 CM-06 b", "12 CM-07 "];
        assert_eq!(read(text, Scope::All), want);
        assert_eq!(read("fn a() { \"// CM-01\" } /* CM-02 */", Scope::All), [""; 0]);
    }

    #[test]
    fn outside_of_test_modules_nothing_counts() {
        let text = "// CM-01\nfn a() {}\n#[cfg(test)]\nmod tests {\n  // CM-02\n  fn b() {}\n}\n// CM-03\n\
            #[cfg(not(test))]\nmod other { /* */ // CM-04\n}\n#[cfg(test)]\nfn c() {}\nmod d { // CM-05\n}";
        assert_eq!(read(text, Scope::TestModules), ["5 CM-02 b"]);
    }

    #[test]
    fn test_modules_in_files_of_their_own_are_named() {
        let text = "mod a;\n#[cfg(test)]\nmod b;\n#[cfg(all(test, feature = \"x\"))]\n#[doc(hidden)]\npub(crate) mod c;\n\
            #[cfg(not(test))]\nmod d;\n#[cfg(test)]\nuse e;\nmod f;";
        assert_eq!(test_files(text), ["b", "c"]);
    }
}
