//! Finds where test code cites rows of the feature table: `// CM-19: why`, `// CM-19, CM-20`.

use proc_macro2::{Delimiter, TokenTree};

use crate::source::{self, group, inside, is_punct, is_word};

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

/// Returns the citations in the `//` and `///` comments of a file; `//!` is about a file, not about a test.
///
/// # Errors
/// The line at which the file is not Rust, and a sentence.
pub(crate) fn find(text: &str, scope: Scope) -> Result<Found, (usize, String)> {
    if rows(text).0.is_empty() {
        return Ok(Found::default());
    }
    let trees = source::trees(text)?;
    let mut functions = Vec::new();
    list_functions(&trees, &mut functions);
    let modules = match scope {
        Scope::All => vec![(0, usize::MAX)],
        Scope::TestModules => TestModules::of(&trees).inside,
    };
    let mut found = Found::default();
    for (line, comment) in source::comments(text, &trees) {
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
    Ok(found)
}

/// Returns the names of the modules in files of their own that a file declares for tests only.
///
/// # Errors
/// The line at which the file is not Rust, and a sentence.
pub(crate) fn test_files(text: &str) -> Result<Vec<String>, (usize, String)> {
    Ok(TestModules::of(&source::trees(text)?).files)
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

/// Adds the functions that have a body, in the order in which they begin.
fn list_functions(trees: &[TokenTree], found: &mut Vec<Function>) {
    for (at, tree) in trees.iter().enumerate() {
        if let TokenTree::Group(group) = tree {
            list_functions(&inside(group), found);
        } else if let ([word, TokenTree::Ident(name), rest @ ..], true) = (&trees[at..], is_word(tree, "fn"))
            && let Some((_, body)) = source::body(rest)
        {
            found.push(Function {
                name: name.to_string(),
                first: source::line(word),
                last: body.span_close().end().line,
            });
        }
    }
}

/// The modules behind a `#[cfg(test)]`.
#[derive(Default)]
struct TestModules {
    /// The first and the last line of those in this file.
    inside: Vec<(usize, usize)>,
    /// The names of those in files of their own.
    files: Vec<String>,
}

impl TestModules {
    /// Finds those of a file.
    fn of(trees: &[TokenTree]) -> Self {
        let mut modules = Self::default();
        modules.collect(trees);
        modules
    }

    /// Adds those of some code.
    fn collect(&mut self, trees: &[TokenTree]) {
        let mut for_tests = false;
        for (at, tree) in trees.iter().enumerate() {
            let attribute = at > 0 && is_punct(&trees[at - 1], '#');
            match (&trees[at..], group(tree, Delimiter::Bracket).filter(|_| attribute)) {
                (_, Some(attribute)) => for_tests |= is_for_tests(&inside(attribute)),
                ([word, TokenTree::Ident(name), next, ..], _) if for_tests && is_word(word, "mod") => {
                    match group(next, Delimiter::Brace) {
                        Some(body) => self.inside.push((source::line(word), body.span_close().end().line)),
                        None => self.files.push(name.to_string()),
                    }
                    for_tests = false;
                }
                _ => {
                    for_tests &= is_word(tree, "pub")
                        || is_punct(tree, '#')
                        || group(tree, Delimiter::Parenthesis).is_some();
                }
            }
            if let TokenTree::Group(group) = tree {
                self.collect(&inside(group));
            }
        }
    }
}

/// Whether the words of an attribute are those of a `cfg(test)`.
fn is_for_tests(attribute: &[TokenTree]) -> bool {
    let has = |word| contains(attribute, word);
    has("cfg") && has("test") && !has("not")
}

/// Whether a word is among trees, at any depth.
fn contains(trees: &[TokenTree], word: &str) -> bool {
    trees.iter().any(|tree| match tree {
        TokenTree::Group(group) => contains(&inside(group), word),
        tree => is_word(tree, word),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The citations in a text as `line row function`.
    fn read(text: &str, scope: Scope) -> Vec<String> {
        let show = |one: Citation| format!("{} {} {}", one.line, one.row, one.function);
        find(text, scope).expect("Rust").citations.into_iter().map(show).collect()
    }

    #[test]
    fn rows_are_found_in_lists_and_sentences() {
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
        assert_eq!(find("// LS-01\n// LS-01..03\nfn f() {}", Scope::All).expect("Rust").ranges, [2]);
    }

    #[test]
    fn comment_belongs_to_enclosing_or_next_function() {
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
    fn out_of_line_test_modules_are_listed() {
        let text = "mod a;\n#[cfg(test)]\nmod b;\n#[cfg(all(test, feature = \"x\"))]\n#[doc(hidden)]\npub(crate) mod c;\n\
            #[cfg(not(test))]\nmod d;\n#[cfg(test)]\nuse e;\nmod f;";
        assert_eq!(test_files(text).expect("Rust"), ["b", "c"]);
    }
}
