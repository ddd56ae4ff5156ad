//! Rust source as token trees, which proc-macro2 reads for syn, and the comments between them.
//!
//! Why not syn's syntax tree: it ends at the arguments of a macro, and a path in `select!`, a test in `proptest!` and a type in
//! `bitflags!` count as well.

use std::ops::Range;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// Reads a source text.
///
/// # Errors
/// The line at which it is not Rust, and a sentence.
pub(crate) fn trees(text: &str) -> Result<Vec<TokenTree>, (usize, String)> {
    let stream: TokenStream = text
        .parse()
        .map_err(|error: proc_macro2::LexError| (error.span().start().line, error.to_string()))?;
    Ok(stream.into_iter().collect())
}

/// The trees inside of a group.
pub(crate) fn inside(group: &Group) -> Vec<TokenTree> {
    group.stream().into_iter().collect()
}

/// Whether a tree is this word. A raw identifier, `r#type`, is none of the words of Rust.
pub(crate) fn is_word(tree: &TokenTree, word: &str) -> bool {
    matches!(tree, TokenTree::Ident(own) if own == word)
}

/// Whether a tree is this character of punctuation.
pub(crate) fn is_punct(tree: &TokenTree, character: char) -> bool {
    matches!(tree, TokenTree::Punct(own) if own.as_char() == character)
}

/// Returns the group if a tree is one with these brackets.
pub(crate) fn group(tree: &TokenTree, delimiter: Delimiter) -> Option<&Group> {
    match tree {
        TokenTree::Group(group) if group.delimiter() == delimiter => Some(group),
        _ => None,
    }
}

/// Returns the body of an item that begins here, and its index: the first group in braces. None if a semicolon comes first.
pub(crate) fn body(trees: &[TokenTree]) -> Option<(usize, &Group)> {
    let ends = |tree: &TokenTree| is_punct(tree, ';') || group(tree, Delimiter::Brace).is_some();
    let at = trees.iter().position(ends)?;
    Some((at, group(&trees[at], Delimiter::Brace)?))
}

/// The line on which a tree begins; the first is 1.
pub(crate) fn line(tree: &TokenTree) -> usize {
    tree.span().start().line
}

/// The comments of a source text that begin with `//`: the line of each, and the rest of it without the slashes.
/// Those of a file or module (`//!`) begin with `!`, those of an item (`///`) with `/`.
pub(crate) fn comments<'a>(text: &'a str, trees: &[TokenTree]) -> Vec<(usize, &'a str)> {
    let mut code = Vec::new();
    cover(text, trees, &mut code);
    code.push(text.len()..text.len());
    let (mut found, mut from, mut line) = (Vec::new(), 0, 1);
    for Range { start, end } in code {
        between(&text[from..start], line, &mut found);
        line += text[from..end].matches('\n').count();
        from = end;
    }
    found
}

/// Adds the place of each token and each bracket, in order.
fn cover(text: &str, trees: &[TokenTree], code: &mut Vec<Range<usize>>) {
    for tree in trees {
        let range = tree.span().byte_range();
        // A comment that documents an item is an attribute, each token of which has the place of the whole comment.
        if ["//", "/*"].iter().any(|mark| text[range.clone()].starts_with(mark)) {
            continue;
        }
        if let TokenTree::Group(group) = tree {
            code.push(group.span_open().byte_range());
            cover(text, &inside(group), code);
            code.push(group.span_close().byte_range());
        } else {
            code.push(range);
        }
    }
}

/// Adds the line comments of a text without tokens, which begins on this line.
fn between<'a>(mut text: &'a str, mut line: usize, found: &mut Vec<(usize, &'a str)>) {
    while let Some(start) = text.find('/') {
        line += text[..start].matches('\n').count();
        let comment = &text[start..];
        let end = if comment.starts_with("//") {
            let end = comment.find('\n').unwrap_or(comment.len());
            found.push((line, &comment[2..end]));
            end
        } else {
            block(comment)
        };
        line += comment[..end].matches('\n').count();
        text = &comment[end..];
    }
}

/// The length of the block comment that a text begins with; block comments nest.
fn block(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while let Some(mark) = text.get(at..).and_then(|rest| rest.find(['*', '/'])) {
        at += mark;
        let step = match text.get(at..at + 2) {
            Some("/*") => 1,
            Some("*/") => -1,
            _ => 0,
        };
        depth += step;
        at += if step == 0 { 1 } else { 2 };
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The comments of a text.
    fn read(text: &str) -> Vec<(usize, &str)> {
        comments(text, &trees(text).expect("Rust"))
    }

    #[test]
    fn line_comments_are_found_between_tokens() {
        let text = "//! a\nf(); // b\n/* // c */ let d = \"// e\"; /// g\nfn h() { 1 // é\n}\n// i";
        assert_eq!(read(text), [(1, "! a"), (2, " b"), (3, "/ g"), (4, " é"), (6, " i")]);
        assert_eq!(read("//// a\n/** // b */ c // d"), [(1, "// a"), (2, " d")]);
    }

    #[test]
    fn block_comments_nest() {
        assert_eq!(read("/* a /* // b */ // c */\n// d\n/*/ e */ f / g // h"), [(2, " d"), (3, " h")]);
    }

    #[test]
    fn a_body_ends_the_head_of_an_item() {
        let body_of =
            |text: &str| body(&trees(text).expect("Rust")).map(|(at, group)| (at, inside(group).len()));
        assert_eq!(body_of("fn f(x: [u8; { 2 }]) { a b }"), Some((3, 2)));
        assert_eq!(body_of("fn f(); fn g() {}"), None);
    }

    #[test]
    fn invalid_rust_is_named_by_line() {
        assert_eq!(trees("a\n{ b").map_err(|(line, _)| line).err(), Some(2));
    }
}
