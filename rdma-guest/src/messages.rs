//! The messages of cargo with `--message-format json`: just enough of them to find the programs that cargo has built.

use std::path::{Path, PathBuf};

/// A program that cargo has built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The name of its target.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
    /// The source file that it begins with.
    pub source: PathBuf,
    /// The folder of its package.
    pub package: PathBuf,
    /// The kind of its target, such as `test`.
    pub kind: String,
    /// Whether it is the tests of the target, and not the target.
    pub is_test: bool,
}

impl Program {
    /// The program that a message of cargo tells of, if it does.
    pub fn parse(message: &str) -> Option<Self> {
        if !message.contains("\"reason\":\"compiler-artifact\"") {
            return None;
        }
        let (_, target) = message.split_once("\"target\":{\"kind\":[\"")?;
        let (_, profile) = message.split_once("\"profile\":{")?;
        let (profile, _) = profile.split_once('}')?;
        let manifest = PathBuf::from(text_of(message, "manifest_path").unwrap_or_default());
        Some(Self {
            kind: target.split('"').next()?.to_owned(),
            name: text_of(target, "name")?,
            source: text_of(target, "src_path")?.into(),
            path: text_of(message, "executable")?.into(),
            package: manifest.parent().map(Path::to_path_buf).unwrap_or_default(),
            is_test: profile.contains("\"test\":true"),
        })
    }
}

/// The text with this name in a line of JSON: the first, wherever it is.
fn text_of(message: &str, name: &str) -> Option<String> {
    let (_, rest) = message.split_once(&format!("\"{name}\":\""))?;
    let mut text = String::new();
    let mut characters = rest.chars();
    loop {
        match characters.next()? {
            '"' => return Some(text),
            // Of what can be escaped, a path has these two.
            '\\' => text.push(characters.next()?),
            character => text.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///a#0.1.0","manifest_path":"/a/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"cm","src_path":"/a/tests/cm/main.rs","edition":"2024","doc":false,"doctest":false,"test":true},"profile":{"opt_level":"0","debuginfo":2,"debug_assertions":true,"overflow_checks":true,"test":true},"features":[],"filenames":["/a/deps/cm-1"],"executable":"/a \"b\"/deps/cm-1","fresh":true}"#;

    #[test]
    fn a_message_of_cargo_names_the_program() {
        let program = Program::parse(MESSAGE).expect("a program");
        assert_eq!((program.name.as_str(), program.kind.as_str(), program.is_test), ("cm", "test", true));
        assert_eq!(program.path, PathBuf::from("/a \"b\"/deps/cm-1"));
        assert_eq!(program.source, PathBuf::from("/a/tests/cm/main.rs"));
        assert_eq!(program.package, PathBuf::from("/a"));
    }

    #[test]
    fn a_program_that_tests_use_is_no_test() {
        let message = MESSAGE.replace("\"test\":true},\"features\"", "\"test\":false},\"features\"");
        assert!(!Program::parse(&message).expect("a program").is_test);
    }

    #[test]
    fn other_messages_of_cargo_name_none() {
        let library = MESSAGE.replace(r#""executable":"/a \"b\"/deps/cm-1""#, r#""executable":null"#);
        for message in [r#"{"reason":"build-finished","success":true}"#, library.as_str(), "warning: x"] {
            assert_eq!(Program::parse(message), None);
        }
    }
}
