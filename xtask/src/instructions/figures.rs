//! The committed figures: the file, and whether measured ones are as good.

use std::fmt::Write as _;

/// The part of a figure by which another one may differ: the spread of runs is far below.
const TOLERANCE: f64 = 0.03;

/// What may be more in any case: threads that begin and end differ by so many instructions of an operation of few.
const FEW: f64 = 5.0;

/// The same for system calls, as a number: one more in each operation fails, and one more in some that took long does not.
const SLACK: f64 = 0.5;

/// The command that makes new figures.
const RENEW: &str = "cargo xtask instructions --renew";

/// The first lines of the file.
const HEAD: &str = "\
# Instructions of an operation in user space, and system calls, by callgrind. README.md describes the lines.
# Written by `cargo xtask instructions --renew`.
";

/// The tools and the machine, on which figures depend: a name and a value for each.
pub(crate) type Conditions = Vec<(String, String)>;

/// A section of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unit {
    /// Instructions of user space.
    Instructions,
    /// System calls.
    Calls,
}

impl Unit {
    /// In the order of the file.
    const ALL: [Self; 2] = [Self::Instructions, Self::Calls];

    /// The name of the section.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Calls => "calls",
        }
    }

    /// A figure as the file has it.
    pub(crate) fn text(self, count: f64) -> String {
        match self {
            Self::Instructions => format!("{count:.0}"),
            Self::Calls => format!("{count:.2}"),
        }
    }

    /// The difference of two figures, as a part of the first one or as a number, and that by which they may differ.
    fn change(self, old: f64, new: f64) -> (f64, f64) {
        match self {
            Self::Instructions => (new / old - 1.0, TOLERANCE.max(FEW / old)),
            Self::Calls => (new - old, SLACK),
        }
    }

    /// The difference of two figures as text.
    pub(crate) fn change_text(self, old: f64, new: f64) -> String {
        let (change, _) = self.change(old, new);
        match self {
            Self::Instructions => format!("{:+.2} %", change * 100.0),
            Self::Calls => format!("{change:+.2}"),
        }
    }
}

/// A figure of an operation of a line, or of one end of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    /// The name of the line; behind a dot that of the end, or what kind of system calls it is.
    pub(crate) name: String,
    /// What is counted.
    pub(crate) unit: Unit,
    /// How many they are.
    pub(crate) count: f64,
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
        let unit = |section: &str| {
            let name = section.strip_prefix('[')?.strip_suffix(']')?;
            Unit::ALL.into_iter().find(|unit| unit.name() == name)
        };
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
            let name = name.to_owned();
            if section == "[conditions]" {
                let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
                figures.conditions.push((name, value.ok_or_else(wrong)?.to_owned()));
                continue;
            }
            let unit = unit(section).ok_or_else(wrong)?;
            figures.figures.push(Figure { name, unit, count: value.parse().map_err(|_| wrong())? });
        }
        Ok(figures)
    }

    /// The figures of a section.
    pub(crate) fn of(&self, unit: Unit) -> impl Iterator<Item = &Figure> {
        self.figures.iter().filter(move |figure| figure.unit == unit)
    }

    /// The text of the file.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{HEAD}\n[conditions]\n");
        for (name, value) in &self.conditions {
            // Nothing that is written to a string fails.
            let _ = writeln!(text, "{name} = \"{value}\"");
        }
        for unit in Unit::ALL {
            let _ = writeln!(text, "\n[{}]", unit.name());
            for Figure { name, count, .. } in self.of(unit) {
                let _ = writeln!(text, "{name} = {}", unit.text(*count));
            }
        }
        text
    }

    /// One JSON object.
    pub(crate) fn json(&self) -> String {
        let object = |entries: Vec<String>| format!("{{{}}}", entries.join(", "));
        let conditions = self.conditions.iter().map(|(name, value)| format!("\"{name}\": \"{value}\""));
        let mut sections = vec![format!("\"conditions\": {}", object(conditions.collect()))];
        for unit in Unit::ALL {
            let figures = self.of(unit).map(|Figure { name, count, .. }| format!("\"{name}\": {count:.2}"));
            sections.push(format!("\"{}\": {}", unit.name(), object(figures.collect())));
        }
        object(sections)
    }

    /// The committed number of a figure.
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.count)
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
    pub(crate) fn judge(&self, Figure { name, unit, count: new }: &Figure) -> Verdict {
        let Some(old) = self.get(name) else {
            return Verdict::Worse(format!("{name}: no figure is committed; `{RENEW}` adds it"));
        };
        let (change, limit) = unit.change(old, *new);
        let sentence = |advice: &str| {
            let (before, now) = (unit.text(old), unit.text(*new));
            let (of, by) = (unit.name(), unit.change_text(old, *new));
            format!("{name}: {before} -> {now} {of} ({by}); {advice}: `{RENEW}`")
        };
        if change > limit {
            Verdict::Worse(sentence("if this is intended, renew the figures"))
        } else if change < -limit {
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
    fn figure(name: &str, count: f64) -> Figure {
        Figure { name: name.into(), unit: Unit::Instructions, count }
    }

    /// A figure of system calls.
    fn calls(name: &str, count: f64) -> Figure {
        Figure { unit: Unit::Calls, ..figure(name, count) }
    }

    /// A file with a figure of each kind.
    fn example() -> Figures {
        Figures {
            conditions: vec![("rustc".into(), "1.95.0 (59807616e)".into())],
            figures: vec![
                figure("send.active", 1000.0),
                figure("connection", 50_000.0),
                calls("connection.calls", 34.0),
            ],
        }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let text = example().text();
        assert_eq!(Figures::parse(&text), Ok(example()));
        assert!(text.contains("\nsend.active = 1000\n"), "{text}");
        assert!(text.ends_with("\n[calls]\nconnection.calls = 34.00\n"), "{text}");
    }

    #[test]
    fn a_line_that_is_not_understood_is_named() {
        let error = Figures::parse("[instructions]\n\nsend = many\n").expect_err("not a number");
        assert_eq!(error, "line 3: `send = many`");
        assert!(
            Figures::parse("send = 1\n").is_err() && Figures::parse("[conditions]\nrustc = 1\n").is_err()
        );
        assert!(Figures::parse("[other]\nsend = 1\n").is_err());
    }

    #[test]
    fn three_percent_more_fail() {
        let verdict = |count| example().judge(&figure("send.active", count));
        assert_eq!(verdict(1029.0), Verdict::Same);
        assert_eq!(verdict(971.0), Verdict::Same);
        let Verdict::Worse(sentence) = verdict(1031.0) else { panic!("3.1 % more") };
        for part in ["send.active", "1000 -> 1031", "+3.10 %", RENEW] {
            assert!(sentence.contains(part), "{sentence}");
        }
        assert!(matches!(verdict(969.0), Verdict::Better(sentence) if sentence.contains("-3.10 %")));
    }

    #[test]
    fn five_instructions_more_do_not_fail() {
        let figures = Figures { figures: vec![figure("lane-receive", 30.0)], ..Figures::default() };
        assert_eq!(figures.judge(&figure("lane-receive", 34.9)), Verdict::Same);
        assert!(matches!(figures.judge(&figure("lane-receive", 35.1)), Verdict::Worse(_)));
    }

    #[test]
    fn another_system_call_fails() {
        let verdict = |count| example().judge(&calls("connection.calls", count));
        assert_eq!((verdict(34.4), verdict(33.6)), (Verdict::Same, Verdict::Same));
        let Verdict::Worse(sentence) = verdict(35.0) else { panic!("one more") };
        assert!(sentence.contains("34.00 -> 35.00 calls (+1.00)"), "{sentence}");
        assert!(matches!(verdict(33.0), Verdict::Better(_)));
    }

    #[test]
    fn lines_and_figures_belong_together() {
        assert!(matches!(example().judge(&figure("new", 1.0)), Verdict::Worse(_)));
        let measured = [figure("send.active", 1.0)];
        assert_eq!(example().unknown(&measured).collect::<Vec<_>>(), ["connection", "connection.calls"]);
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
            json.contains("\"instructions\": {\"send.active\": 1000.00, \"connection\": 50000.00}"),
            "{json}"
        );
        assert!(json.ends_with(", \"calls\": {\"connection.calls\": 34.00}}"), "{json}");
    }
}
