//! The commands in a README, and the output that it documents for them.
//!
//! A block ` ```sh ` is a script. The following block ` ```text ` is its output, up to the first line that begins with `$ `: such
//! a line is a script of its own, with its output below. The words after the language say what differs:
//!
//! * ` ```sh no-run ` and ` ```text no-run `: the commands need another host, or a device;
//! * ` ```sh root `: the commands create network namespaces;
//! * ` ```text unordered `: several sides print at the same time.
//!
//! In an output, a line `...` stands for any number of lines. A script that fails ends with a line `(exit status: N)`. Lines of
//! attempts that are repeated are not compared: a client that starts before its server prints some.

use std::fmt;
use std::net::IpAddr;

/// A part of the lines that a client prints if its server is not there yet.
const RACY: &str = "; the next attempt follows in ";

/// A script of a README with the output that is documented.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Transcript {
    /// The heading above it.
    pub(crate) section: String,
    /// Commands for a shell.
    pub(crate) script: String,
    /// Whether it creates network namespaces.
    pub(crate) root: bool,
    /// The documented lines.
    output: Vec<String>,
    /// Whether the lines may come in any order.
    unordered: bool,
}

/// The scripts of a README.
#[derive(Debug, Default)]
pub(crate) struct Readme {
    /// In the order of the text.
    pub(crate) transcripts: Vec<Transcript>,
    /// All headings of the second level.
    pub(crate) sections: Vec<String>,
}

impl Readme {
    /// Finds the scripts of a text.
    ///
    /// # Errors
    /// A sentence, if a script has no output, or an output no script.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut readme = Self::default();
        let mut script = None;
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(heading) = line.strip_prefix("## ") {
                readme.sections.push(heading.to_owned());
            }
            let Some(fence) = line.strip_prefix("```") else { continue };
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            let section = readme.sections.last().cloned().unwrap_or_default();
            match fence {
                "sh" | "sh root" => {
                    let next = (block.join("\n"), fence == "sh root");
                    if let Some((script, _)) = script.replace(next) {
                        return Err(format!("{section}: no output is documented for:\n{script}"));
                    }
                }
                "text" | "text unordered" => {
                    let mut of = Transcript { section, unordered: fence != "text", ..Transcript::default() };
                    (of.script, of.root) = script.take().unwrap_or_default();
                    readme.add(of, &block)?;
                }
                _ => {}
            }
        }
        script.map_or(Ok(readme), |(script, _)| Err(format!("no output is documented for:\n{script}")))
    }

    /// Adds the scripts of an output: `first` if there is one, and the lines that begin with `$ `.
    fn add(&mut self, first: Transcript, block: &[&str]) -> Result<(), String> {
        let (section, unordered) = (first.section.clone(), first.unordered);
        let mut all = vec![first];
        for line in block {
            match line.strip_prefix("$ ") {
                Some(script) => {
                    let (section, script) = (section.clone(), script.to_owned());
                    all.push(Transcript { section, script, unordered, ..Transcript::default() });
                }
                None => all.last_mut().expect("it has the first").output.push((*line).to_owned()),
            }
        }
        if all[0].script.is_empty() && all[0].output.is_empty() {
            all.remove(0);
        }
        if all.iter().any(|transcript| transcript.script.is_empty()) {
            return Err(format!("{section}: no script is documented for:\n{}", block.join("\n")));
        }
        self.transcripts.extend(all);
        Ok(())
    }
}

impl Transcript {
    /// Compares the documented output with that of a run.
    ///
    /// # Errors
    /// Both of them, if they differ in more than numbers, addresses and spaces.
    pub(crate) fn compare(&self, printed: &[String]) -> Result<(), String> {
        let masked = |lines: &[String]| {
            lines.iter().filter(|line| !line.contains(RACY)).map(|line| mask(line)).collect::<Vec<_>>()
        };
        let (mut expected, mut actual) = (masked(&self.output), masked(printed));
        let equal = if self.unordered {
            expected.sort_unstable();
            actual.sort_unstable();
            is_same(&expected, &actual)
        } else {
            is_match(&expected, &actual)
        };
        if equal { Ok(()) } else { Err(Difference { expected, actual }.to_string()) }
    }
}

/// Whether the lines are those that are expected, with any number of lines for each `...`.
fn is_match(expected: &[String], actual: &[String]) -> bool {
    match expected.split_first() {
        None => actual.is_empty(),
        Some((first, rest)) if first == "..." => {
            (0..=actual.len()).any(|skipped| is_match(rest, &actual[skipped..]))
        }
        Some((first, rest)) => {
            actual.split_first().is_some_and(|(line, more)| line == first && is_match(rest, more))
        }
    }
}

/// The same for sorted lines.
fn is_same(expected: &[String], actual: &[String]) -> bool {
    let mut missing: Vec<_> = expected.iter().filter(|line| *line != "...").collect();
    let more = missing.len() < expected.len();
    let mut others = 0;
    for line in actual {
        match missing.iter().position(|expected| *expected == line) {
            Some(found) => drop(missing.remove(found)),
            None => others += 1,
        }
    }
    missing.is_empty() && (more || others == 0)
}

/// An output that differs from the documented one; both are masked.
struct Difference {
    /// The documented lines.
    expected: Vec<String>,
    /// The printed lines.
    actual: Vec<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the output is not the documented one")?;
        for line in self.expected.iter().filter(|line| !self.actual.contains(line) && *line != "...") {
            writeln!(f, "  only documented: {line}")?;
        }
        for line in self.actual.iter().filter(|line| !self.expected.contains(line)) {
            writeln!(f, "  only printed:    {line}")?;
        }
        let (expected, actual) = (self.expected.len(), self.actual.len());
        write!(
            f,
            "  ({expected} lines are documented, {actual} were printed; their order counts unless it is `unordered`)"
        )
    }
}

/// A line without that in which two runs differ: numbers, lists of addresses, the width of columns.
fn mask(line: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let word = if word.parse::<IpAddr>().is_ok() { "ADDR".to_owned() } else { mask_numbers(word) };
        // Machines have different numbers of addresses.
        if word != "ADDR" || words.last().is_none_or(|last| *last != word) {
            words.push(word);
        }
    }
    words.join(" ")
}

/// A word with `#` for each number: decimal with its sign and its fraction, or hexadecimal after `0x`.
fn mask_numbers(word: &str) -> String {
    let mut masked = String::new();
    let mut rest = word;
    while let Some(first) = rest.chars().next() {
        let signed =
            rest.strip_prefix('-').filter(|_| !masked.ends_with(char::is_alphanumeric)).unwrap_or(rest);
        let length = match signed.strip_prefix("0x") {
            Some(digits) => 2 + digits.chars().take_while(char::is_ascii_hexdigit).count(),
            None => signed.chars().take_while(|next| next.is_ascii_digit() || *next == '.').count(),
        };
        if signed.starts_with(|next: char| next.is_ascii_digit()) {
            masked.push('#');
            let number = &signed[..length];
            // A full stop behind a number is no fraction.
            rest = &signed[number.trim_end_matches('.').len()..];
        } else {
            masked.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    masked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn numbers_and_addresses_are_masked() {
        for (line, masked) in [
            ("read  1048576 bytes.", "read # bytes."),
            ("127.0.0.1:7471 -> [::1]:80", "#:# -> [::#]:#"),
            ("{\"growth\":-12,\"rate\":1.5}", "{\"growth\":#,\"rate\":#}"),
            ("RemoteRegion(0x7f0a+10)", "RemoteRegion(#+#)"),
            ("addresses: 127.0.0.1 ::1 fd00::2", "addresses: ADDR"),
            ("rtt_64b p99.9 read-only", "rtt_#b p# read-only"),
        ] {
            assert_eq!(mask(line), masked);
        }
    }

    #[test]
    fn scripts_have_the_output_below_them() {
        let text = "## one\n```sh\ncargo run\n```\nText.\n```text\nhello\n$ ls\na\n```\n## two\n```sh no-run\nx\n```\n";
        let readme = Readme::parse(text).expect("it is complete");
        assert_eq!(readme.sections, ["one", "two"]);
        let scripts: Vec<_> = readme.transcripts.iter().map(|of| (&of.script[..], &of.output[..])).collect();
        assert_eq!(scripts, [("cargo run", &lines("hello")[..]), ("ls", &lines("a")[..])]);
        Readme::parse("```sh\nls\n```\n").expect_err("a script without an output");
        Readme::parse("```text\nhello\n```\n").expect_err("an output without a script");
    }

    #[test]
    fn a_line_that_differs_is_reported() {
        let transcript = Transcript { output: lines("port 1\n...\nend"), ..Transcript::default() };
        assert_eq!(transcript.compare(&lines("port 2\nany\nmore\nend")), Ok(()));
        assert_eq!(transcript.compare(&lines("port 2\nend")), Ok(()));
        let error = transcript.compare(&lines("port 2\nthe end")).expect_err("another last line");
        assert!(
            error.contains("only documented: end") && error.contains("only printed:    the end"),
            "{error}"
        );
        transcript.compare(&lines("port 2\nend\nend of all")).expect_err("a line too many");
    }

    #[test]
    fn the_order_matters_unless_the_readme_says_otherwise() {
        let mut transcript = Transcript { output: lines("a\nb"), ..Transcript::default() };
        transcript.compare(&lines("b\na")).expect_err("another order");
        transcript.unordered = true;
        assert_eq!(transcript.compare(&lines("b\na")), Ok(()));
        transcript.compare(&lines("b\nb")).expect_err("another line");
        transcript.compare(&lines("b\na\nc")).expect_err("a line too many");
        transcript.output.push("...".to_owned());
        assert_eq!(transcript.compare(&lines("c\nb\na")), Ok(()));
        transcript.compare(&lines("c\nb")).expect_err("a line too few");
    }
}
