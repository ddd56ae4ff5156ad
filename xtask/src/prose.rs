//! `cargo xtask prose`: counts prose that is still to be rewritten, and fails if there is more of it than `xtask/prose.txt` permits.
//!
//! The rules are those of "Style" in CONTRIBUTING.md. A commit may lower a number of the file, and never raise one.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use proc_macro2::{Delimiter, TokenTree};

use crate::source::{self, group, inside, is_punct, is_word};
use crate::tally::Tally;
use crate::{Usage, layers};

/// The permitted numbers.
const FILE: &str = "xtask/prose.txt";

/// What is counted: the folder, the name in the file, and the function that finds the places in a source text.
const COUNTED: [(&str, &str, Find); 4] = [
    ("src", "function docs without a verb", docs_without_verb),
    ("src", "comments with words of people", words_of_people),
    ("src", "comments that are ids alone", ids_alone),
    ("tests", "comments that are ids alone", ids_alone),
];

/// Finds places, which are lines with their text, in the token trees and the comments of a source text.
type Find = fn(&[TokenTree], &[(usize, &str)]) -> Vec<(usize, String)>;

/// Words that end like a verb in the third person, and that documentation begins with.
const NO_VERBS: [&str; 6] = ["As", "Its", "Less", "Thus", "This", "Whereas"];

/// Words and phrases about people, for objects.
const PEOPLE: [&str; 11] = [
    "any more",
    "goodbye",
    "heard",
    "hears",
    "is over",
    "meanwhile",
    "nobody",
    "somebody",
    "tells",
    "told",
    "whoever",
];

/// The command: `--list` prints each place.
pub(crate) fn main(arguments: &[String]) -> Result<ExitCode, Usage> {
    let list = match arguments {
        [] => false,
        [flag] if flag == "--list" => true,
        [other, ..] => return Err(Usage(format!("unexpected argument `{other}`"))),
    };
    let checked = Tally::check(check_tree(list));
    Ok(if checked.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Counts the places in the sources and compares the numbers with the permitted ones.
///
/// # Errors
/// A sentence, if a file cannot be read or a number is above the permitted one.
pub(crate) fn check_tree(list: bool) -> Result<(), String> {
    let permitted = fs::read_to_string(FILE).map_err(|error| format!("cannot read {FILE}: {error}"))?;
    let mut numbers = Vec::new();
    for group in COUNTED.chunk_by(|one, next| one.0 == next.0) {
        let folder = group[0].0;
        let mut counts = vec![0; group.len()];
        let mut files = Vec::new();
        layers::list(Path::new(folder), &mut files)
            .map_err(|error| format!("cannot list {folder}: {error}"))?;
        files.sort();
        for file in files {
            let text = fs::read_to_string(&file).map_err(|error| format!("cannot read {file}: {error}"))?;
            let trees =
                source::trees(&text).map_err(|(line, sentence)| format!("{file}:{line}: {sentence}"))?;
            let comments = source::comments(&text, &trees);
            for ((_, name, find), count) in group.iter().zip(&mut counts) {
                let places = find(&trees, &comments);
                *count += places.len();
                places
                    .iter()
                    .filter(|_| list)
                    .for_each(|(line, text)| println!("{file}:{line}: {name}: {text}"));
            }
        }
        numbers.extend(
            group.iter().zip(counts).map(|((_, name, _), count)| (format!("{folder}, {name}"), count)),
        );
    }
    let (lines, wrong): (Vec<_>, Vec<_>) =
        numbers.iter().map(|(name, count)| compare(&permitted, name, *count)).unzip();
    lines.iter().for_each(|line| println!("{line}"));
    if wrong.contains(&true) {
        Err(format!("{FILE} does not permit this; `cargo xtask prose --list` has the places"))
    } else {
        Ok(())
    }
}

/// Compares a number with the permitted one. Returns a line about it, and whether it is too large.
fn compare(permitted: &str, name: &str, count: usize) -> (String, bool) {
    let read = |line: &str| line.strip_prefix(name)?.strip_prefix(": ")?.trim().parse::<usize>().ok();
    match permitted.lines().find_map(read) {
        None => (format!("{name}: {count}, and {FILE} has no number"), true),
        Some(most) if count > most => (format!("{name}: {count}, permitted {most}"), true),
        Some(most) if count < most => {
            (format!("{name}: {count}, permitted {most}: lower the number in {FILE}"), false)
        }
        Some(_) => (format!("{name}: {count}"), false),
    }
}

/// Finds the functions whose documentation does not begin with a verb in the third person.
fn docs_without_verb(trees: &[TokenTree], _comments: &[(usize, &str)]) -> Vec<(usize, String)> {
    let (mut found, mut doc) = (Vec::new(), None);
    for (at, tree) in trees.iter().enumerate() {
        let attribute = group(tree, Delimiter::Bracket).filter(|_| at > 0 && is_punct(&trees[at - 1], '#'));
        if let Some(attribute) = attribute {
            if let ([word, _, TokenTree::Literal(text)], None) = (inside(attribute).as_slice(), &doc)
                && is_word(word, "doc")
            {
                doc = Some((source::line(tree), text.to_string().trim_matches(['"', ' ']).to_owned()));
            }
        } else if let ([_, TokenTree::Ident(_), ..], true) = (&trees[at..], is_word(tree, "fn")) {
            found.extend(doc.take().filter(|(_, text)| !begins_with_verb(text)));
        } else if !is_before_fn(tree) {
            doc = None;
            if let TokenTree::Group(group) = tree {
                found.extend(docs_without_verb(&inside(group), &[]));
            }
        }
    }
    found
}

/// Whether a tree may stand between the documentation of a function and its `fn`: `pub(crate) unsafe extern "C"`.
fn is_before_fn(tree: &TokenTree) -> bool {
    ["pub", "const", "async", "unsafe", "extern"].iter().any(|word| is_word(tree, word))
        || is_punct(tree, '#')
        || group(tree, Delimiter::Parenthesis).is_some()
        || matches!(tree, TokenTree::Literal(_))
}

/// Whether the first word of a text looks like a verb in the third person: `Returns`.
fn begins_with_verb(text: &str) -> bool {
    let word = text.split([' ', ',', ':', '.']).next().unwrap_or_default();
    let letters = word.strip_prefix(|first: char| first.is_ascii_uppercase()).unwrap_or_default();
    letters.ends_with('s')
        && letters.bytes().all(|byte| byte.is_ascii_lowercase())
        && !NO_VERBS.contains(&word)
}

/// Finds the comments with words of people.
fn words_of_people(_trees: &[TokenTree], comments: &[(usize, &str)]) -> Vec<(usize, String)> {
    those(comments, |comment| {
        let words = comment.to_ascii_lowercase().replace(|one: char| !one.is_alphanumeric(), " ");
        let words = format!(" {} ", words.split_whitespace().collect::<Vec<_>>().join(" "));
        PEOPLE.iter().any(|phrase| words.contains(&format!(" {phrase} ")))
    })
}

/// Finds the comments that have nothing but ids, such as `CM-19` and `X4`.
fn ids_alone(_trees: &[TokenTree], comments: &[(usize, &str)]) -> Vec<(usize, String)> {
    let is_id = |word: &str| {
        let digits = word.trim_start_matches(|one: char| one.is_ascii_uppercase());
        let number = digits.strip_prefix('-').unwrap_or(digits);
        digits.len() < word.len() && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    those(comments, |comment| {
        let mut words = comment
            .trim_start_matches('/')
            .split([' ', ',', ';', '.', ':'])
            .filter(|word| !word.is_empty())
            .peekable();
        words.peek().is_some() && words.all(is_id)
    })
}

/// The comments for which this holds.
fn those(comments: &[(usize, &str)], holds: impl Fn(&str) -> bool) -> Vec<(usize, String)> {
    let chosen = comments.iter().filter(|(_, comment)| holds(comment));
    chosen.map(|(line, comment)| (*line, comment.trim().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of the places in a text.
    fn lines(find: Find, text: &str) -> Vec<usize> {
        let trees = source::trees(text).expect("Rust");
        find(&trees, &source::comments(text, &trees)).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn documentation_of_functions_begins_with_a_verb() {
        let text = "/// The length.\n/// Returns it.\nfn a() {}\n/// Returns the length.\n#[inline]\npub(crate) unsafe extern \"C\" fn b() {}\n\
                    impl X {\n/// Its key.\n#[must_use]\npub const fn c() {}\n/// A field.\nx: u8, }\nm! {\n/// `x` is\nasync fn d() {} }\n\
                    /// The type.\nstruct X;\nfn e() {}\n/// Posts, then waits.\nfn f() {}";
        assert_eq!(lines(docs_without_verb, text), [1, 8, 14]);
    }

    #[test]
    fn objects_are_not_people() {
        let text = "// The peer is told.\n/// Nobody\n// retold, anymore\nfn a() { \"told\" } // Waits no longer, or any\n//! more; this\n// is over.";
        assert_eq!(lines(words_of_people, text), [1, 2, 6]);
    }

    #[test]
    fn an_id_alone_is_no_comment() {
        let text =
            "// CM-19\n// CM-19, CM-20; X4.\n/// SEC-12\n// CM-19: why\n// RFC 5044\n// -1\n//\nfn a() {}";
        assert_eq!(lines(ids_alone, text), [1, 2, 3]);
    }

    #[test]
    fn a_number_may_only_fall() {
        let permitted = "# words: 9\nsrc, words: 5\n";
        assert_eq!(compare(permitted, "src, words", 5), ("src, words: 5".to_owned(), false));
        assert!(compare(permitted, "src, words", 6).1 && compare(permitted, "tests, words", 0).1);
        let (line, wrong) = compare(permitted, "src, words", 4);
        assert!(line.contains("lower the number in xtask/prose.txt") && !wrong);
    }
}
