//! The committed figures: the file, and whether measured ones are as good.

use std::fmt::Write as _;

/// The part of a figure by which another one may differ: the spread of runs is far below.
const TOLERANCE: f64 = 0.03;

/// The command that makes new figures.
const RENEW: &str = "cargo xtask instructions --renew";

/// The first lines of the file.
const HEAD: &str = "\
# Instructions of an operation in user space, by callgrind. README.md describes the lines.
# Written by `cargo xtask instructions --renew`.
";

/// The tools and the machine, on which figures depend: a name and a value for each.
pub(crate) type Conditions = Vec<(String, String)>;

/// The instructions of an operation of a line, or of one end of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    /// The name of the line, and that of the end behind a dot.
    pub(crate) name: String,
    /// How many they are.
    pub(crate) instructions: f64,
}

/// All that a file has.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    /// How they were measured.
    pub(crate) conditions: Conditions,
    /// In the order of the table of lines.
    pub(crate) figures: Vec<Figure>,
}

/// The comparison of a figure with the committed one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// It is within the tolerance.
    Same,
    /// It is smaller; the sentence asks to renew it.
    Better(String),
    /// It is larger, or there is no committed one; the sentence says so.
    Worse(String),
}

impl Figures {
    /// Reads a file.
    ///
    /// # Errors
    /// A sentence that names the line that is not understood.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut figures = Self::default();
        let mut section = "";
        for (place, line) in text.lines().enumerate() {
            let line = line.trim();
            let wrong = || format!("line {}: `{line}`", place + 1);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if line.starts_with('[') {
                section = line;
                continue;
            }
            let (name, value) = line.split_once(" = ").ok_or_else(wrong)?;
            match section {
                "[conditions]" => {
                    let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
                    figures.conditions.push((name.to_owned(), value.ok_or_else(wrong)?.to_owned()));
                }
                "[instructions]" => {
                    let instructions = value.parse().map_err(|_| wrong())?;
                    figures.figures.push(Figure { name: name.to_owned(), instructions });
                }
                _ => return Err(wrong()),
            }
        }
        Ok(figures)
    }

    /// The text of the file.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{HEAD}\n[conditions]\n");
        for (name, value) in &self.conditions {
            // Nothing that is written to a string fails.
            let _ = writeln!(text, "{name} = \"{value}\"");
        }
        text += "\n[instructions]\n";
        for Figure { name, instructions } in &self.figures {
            let _ = writeln!(text, "{name} = {instructions:.0}");
        }
        text
    }

    /// One JSON object.
    pub(crate) fn json(&self) -> String {
        let conditions = self.conditions.iter().map(|(name, value)| format!("\"{name}\": \"{value}\""));
        let figures = self.figures.iter();
        let figures = figures.map(|Figure { name, instructions }| format!("\"{name}\": {instructions:.1}"));
        let list = |all: &mut dyn Iterator<Item = String>| all.collect::<Vec<_>>().join(", ");
        let (conditions, figures) = (list(&mut conditions.into_iter()), list(&mut figures.into_iter()));
        format!("{{\"conditions\": {{{conditions}}}, \"instructions\": {{{figures}}}}}")
    }

    /// The committed number of a figure.
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.instructions)
    }

    /// The conditions that are others now: the name, the committed value and the present one.
    pub(crate) fn differences(&self, now: &Conditions) -> Vec<String> {
        let committed = |name: &String| {
            self.conditions.iter().find(|(other, _)| other == name).map_or("nothing", |(_, value)| value)
        };
        let others = now.iter().filter(|(name, value)| committed(name) != value);
        others.map(|(name, value)| format!("{name} is {value}, not {}", committed(name))).collect()
    }

    /// Compares a measured figure with the committed one.
    pub(crate) fn judge(&self, Figure { name, instructions: new }: &Figure) -> Verdict {
        let Some(old) = self.get(name) else {
            return Verdict::Worse(format!("{name}: no figure is committed; `{RENEW}` adds it"));
        };
        let change = new / old - 1.0;
        let sentence = |advice: &str| {
            format!(
                "{name}: {old:.0} -> {new:.0} instructions ({:+.1} %); {advice}: `{RENEW}`",
                change * 100.0
            )
        };
        if change > TOLERANCE {
            Verdict::Worse(sentence("if this is intended, renew the figures"))
        } else if change < -TOLERANCE {
            Verdict::Better(sentence("renew the figure"))
        } else {
            Verdict::Same
        }
    }

    /// Committed figures that no line measures any more.
    pub(crate) fn unknown<'a>(&'a self, measured: &'a [Figure]) -> impl Iterator<Item = &'a str> {
        let is_measured = |name: &str| measured.iter().any(|figure| figure.name == name);
        self.figures.iter().map(|figure| figure.name.as_str()).filter(move |name| !is_measured(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A figure of this name.
    fn figure(name: &str, instructions: f64) -> Figure {
        Figure { name: name.into(), instructions }
    }

    /// A file with two figures.
    fn example() -> Figures {
        Figures {
            conditions: vec![("rustc".into(), "1.95.0 (59807616e)".into())],
            figures: vec![figure("send.active", 1000.0), figure("connection", 50_000.0)],
        }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let text = example().text();
        assert_eq!(Figures::parse(&text), Ok(example()));
        assert!(text.contains("\nsend.active = 1000\n"), "{text}");
    }

    #[test]
    fn a_line_that_is_not_understood_is_named() {
        let error = Figures::parse("[instructions]\n\nsend = many\n").expect_err("not a number");
        assert_eq!(error, "line 3: `send = many`");
        assert!(
            Figures::parse("send = 1\n").is_err() && Figures::parse("[conditions]\nrustc = 1\n").is_err()
        );
    }

    #[test]
    fn three_percent_more_fail() {
        let verdict = |instructions| example().judge(&figure("send.active", instructions));
        assert_eq!(verdict(1029.0), Verdict::Same);
        assert_eq!(verdict(971.0), Verdict::Same);
        let Verdict::Worse(sentence) = verdict(1031.0) else { panic!("3.1 % more") };
        for part in ["send.active", "1000 -> 1031", "+3.1 %", RENEW] {
            assert!(sentence.contains(part), "{sentence}");
        }
        assert!(matches!(verdict(969.0), Verdict::Better(sentence) if sentence.contains("-3.1 %")));
    }

    #[test]
    fn lines_and_figures_belong_together() {
        assert!(matches!(example().judge(&figure("new", 1.0)), Verdict::Worse(_)));
        let measured = [figure("send.active", 1.0)];
        assert_eq!(example().unknown(&measured).collect::<Vec<_>>(), ["connection"]);
    }

    #[test]
    fn other_tools_are_named() {
        let now = |version: &str| vec![("rustc".to_owned(), version.to_owned())];
        assert!(example().differences(&now("1.95.0 (59807616e)")).is_empty());
        let differences = example().differences(&now("1.96.0"));
        assert_eq!(differences, ["rustc is 1.96.0, not 1.95.0 (59807616e)"]);
    }

    #[test]
    fn the_figures_are_an_object() {
        let json = example().json();
        assert!(
            json.contains("\"instructions\": {\"send.active\": 1000.0, \"connection\": 50000.0}"),
            "{json}"
        );
    }
}
