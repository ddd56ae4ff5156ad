//! Rust source as tokens, strings, characters and lifetimes left out, and its comments by themselves.
//!
//! Just enough of Rust's lexical rules to find paths and keywords; it never fails, because what it reads
//! has been through the compiler, or soon will be.

/// The kind of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An identifier, a keyword or a number.
    Word(String),
    /// `::`
    PathSep,
    /// Any other character.
    Punct(char),
}

/// A token and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// Its kind.
    pub(crate) kind: Kind,
    /// The line it is on; the first is 1.
    pub(crate) line: usize,
}

impl Token {
    /// Whether it is this word.
    pub(crate) fn is_word(&self, word: &str) -> bool {
        matches!(&self.kind, Kind::Word(own) if own == word)
    }
}

/// The tokens of a source text.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    read(text).tokens
}

/// The comments of a source text that begin with `//`: the line of each, and the rest of it without the slashes.
/// Those of a file or module (`//!`) begin with `!`, those of an item (`///`) with `/`.
pub(crate) fn comments(text: &str) -> Vec<(usize, &str)> {
    read(text).comments
}

/// Reads a text to its end.
fn read(text: &str) -> Lexer<'_> {
    let mut lexer = Lexer { rest: text, line: 1, tokens: Vec::new(), comments: Vec::new() };
    while lexer.step() {}
    lexer
}

/// Whether an identifier can begin with, or a word go on with, this character.
fn is_word_char(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The state of reading.
struct Lexer<'a> {
    /// The text that has not been read.
    rest: &'a str,
    /// The line that `rest` begins on.
    line: usize,
    /// The tokens that have been found.
    tokens: Vec<Token>,
    /// The line comments that have been found.
    comments: Vec<(usize, &'a str)>,
}

impl Lexer<'_> {
    /// Reads one thing; false at the end.
    fn step(&mut self) -> bool {
        let Some(first) = self.rest.chars().next() else { return false };
        if self.rest.starts_with("//") {
            let end = self.rest.find('\n').unwrap_or(self.rest.len());
            self.comments.push((self.line, &self.rest[2..end]));
            self.skip(end);
        } else if self.rest.starts_with("/*") {
            self.block_comment();
        } else if self.rest.starts_with("::") {
            self.push(Kind::PathSep);
            self.skip(2);
        } else if is_word_char(first) {
            self.word();
        } else if first == '"' {
            self.skip(1);
            self.quoted('"');
        } else if first == '\'' {
            self.character_or_lifetime();
        } else {
            if !first.is_whitespace() {
                self.push(Kind::Punct(first));
            }
            self.skip(first.len_utf8());
        }
        true
    }

    /// Passes over so many bytes, counting lines.
    fn skip(&mut self, bytes: usize) {
        let (passed, rest) = self.rest.split_at(bytes);
        self.line += passed.matches('\n').count();
        self.rest = rest;
    }

    /// Records a token that begins here.
    fn push(&mut self, kind: Kind) {
        self.tokens.push(Token { kind, line: self.line });
    }

    /// A block comment; they nest.
    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        while !self.rest.is_empty() {
            if self.rest.starts_with("/*") {
                depth += 1;
                self.skip(2);
            } else if self.rest.starts_with("*/") {
                depth -= 1;
                self.skip(2);
            } else {
                self.skip(self.rest.chars().next().map_or(0, char::len_utf8));
            }
            if depth == 0 {
                return;
            }
        }
    }

    /// A word, or the prefix of a string (`b"`, `r#"`), of a byte (`b'`) or of a raw identifier (`r#type`).
    fn word(&mut self) {
        let end = self.rest.find(|character| !is_word_char(character)).unwrap_or(self.rest.len());
        let (word, after) = self.rest.split_at(end);
        let hashes = after.len() - after.trim_start_matches('#').len();
        let is_raw = matches!(word, "r" | "br" | "cr");
        if is_raw && after[hashes..].starts_with('"') {
            self.skip(end + hashes + 1);
            let close = format!("\"{}", "#".repeat(hashes));
            self.skip(self.rest.find(&close).map_or(self.rest.len(), |at| at + close.len()));
        } else if word == "r" && hashes == 1 {
            self.skip(end + 1);
            self.word();
        } else if matches!(word, "b" | "c") && after.starts_with('"') {
            self.skip(end + 1);
            self.quoted('"');
        } else if word == "b" && after.starts_with('\'') {
            self.skip(end + 1);
            self.quoted('\'');
        } else {
            self.push(Kind::Word(word.to_owned()));
            self.skip(end);
        }
    }

    /// The rest of a literal up to this quote; a backslash hides the character after it.
    fn quoted(&mut self, quote: char) {
        let mut hidden = false;
        for (at, character) in self.rest.char_indices() {
            if character == quote && !hidden {
                self.skip(at + 1);
                return;
            }
            hidden = character == '\\' && !hidden;
        }
        self.skip(self.rest.len());
    }

    /// `'x'`, `'\n'` or `'lifetime`.
    fn character_or_lifetime(&mut self) {
        let mut characters = self.rest.chars().skip(1);
        let (first, second) = (characters.next(), characters.next());
        self.skip(1);
        if first == Some('\\') || second == Some('\'') {
            self.quoted('\'');
        } else {
            self.skip(self.rest.find(|character| !is_word_char(character)).unwrap_or(self.rest.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens of a text, joined by spaces.
    fn read(text: &str) -> String {
        let words = tokens(text).into_iter().map(|token| match token.kind {
            Kind::Word(word) => word,
            Kind::PathSep => "::".to_owned(),
            Kind::Punct(character) => character.to_string(),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_are_left_out() {
        assert_eq!(read("a // crate::b\nc /* d /* e */ f */ g /// h\n//! i\nj"), "a c g j");
        assert_eq!(read("/* never closed"), "");
    }

    #[test]
    fn line_comments_can_be_had_by_themselves() {
        let text = "//! a\nf(); // b\n/* // c */ let d = \"// e\"; /// g";
        assert_eq!(comments(text), [(1, "! a"), (2, " b"), (3, "/ g")]);
    }

    #[test]
    fn literals_are_left_out() {
        assert_eq!(read(r##"a "b \" c" d r"e\" f r#"g " h"# i b"j" k c"l" m"##), "a d f i k m");
        assert_eq!(read(r"a 'b' c '\'' d '\u{1F600}' e b'\\' f b'g' h '\\' i"), "a c d e f h i");
        assert_eq!(read("let é = 'é'; \"never closed"), "let é = ;");
    }

    #[test]
    fn lifetimes_are_left_out_and_do_not_open_a_character() {
        assert_eq!(read("f<'a, 'static>(x: &'a str) -> &'a T"), "f < , > ( x : & str ) - > & T");
        assert_eq!(read("'outer: loop { break 'outer }"), ": loop { break }");
    }

    #[test]
    fn words_and_separators_are_kept() {
        assert_eq!(read("use crate::{a::B, r#type}; x: u8"), "use crate :: { a :: B , type } ; x : u8");
        assert_eq!(read("r b br bread"), "r b br bread");
    }

    #[test]
    fn lines_are_counted_through_everything() {
        let found = tokens("a\n/* \n */ b \"\n\n\" c r#\"\n\"# d\n// x\ne");
        let lines: Vec<usize> = found.iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 3, 5, 6, 8]);
    }
}
