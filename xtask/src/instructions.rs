//! `cargo xtask instructions`: the instructions and system calls of operations, counted by callgrind, beside committed figures; and
//! the step that fails if there are more of them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::callgrind::{self, Totals};
use crate::tally::Tally;
use crate::test::Settings;
use crate::{Usage, exec, fake, packages};

mod figures;

use figures::{Conditions, Figure, Figures, Unit, Verdict};

/// The program whose instructions are counted; see `benches/instructions/README.md`.
const PROGRAM: &str = "target/whole/instructions";
/// The committed figures.
const FILE: &str = "benches/instructions/figures.toml";
/// The words for the ends of a connection.
const ENDS: [&str; 2] = ["active", "passive"];
/// How many times as many operations the second run has.
const MORE: usize = 4;

/// How long a build may take.
const BUILD_LIMIT: Duration = exec::minutes(30);
/// How long one run may take.
const LIMIT: Duration = exec::minutes(5);

/// The command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    /// Whether one JSON object is printed.
    json: bool,
    /// Whether the file is written.
    renew: bool,
    /// A word in the names of the lines that are wanted.
    only: Option<String>,
}

impl Options {
    /// Reads the command line.
    fn parse(arguments: &[String]) -> Result<Self, Usage> {
        let mut options = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--json" => options.json = true,
                "--renew" => options.renew = true,
                "--only" => {
                    let word = arguments.next().ok_or_else(|| Usage("`--only` needs a word".into()))?;
                    options.only = Some(word.clone());
                }
                _ => return Err(Usage(format!("unexpected argument `{argument}`"))),
            }
        }
        if options.renew && options.only.is_some() {
            return Err(Usage("`--renew` is of all lines".into()));
        }
        Ok(options)
    }
}

/// The command.
pub(crate) fn main(arguments: &[String]) -> Result<ExitCode, Usage> {
    let options = Options::parse(arguments)?;
    Ok(match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            ExitCode::FAILURE
        }
    })
}

/// Measures, and prints or writes the figures. Returns whether none is worse.
///
/// # Errors
/// A sentence that says what could not be built, or did not run.
fn run(options: &Options) -> Result<bool, String> {
    if let Some(sentence) = packages::lacking(packages::VALGRIND) {
        return Err(sentence);
    }
    let measured = measure(options.only.as_deref())?;
    if options.json {
        println!("{}", measured.json());
    }
    if options.renew {
        fs::write(FILE, measured.text()).map_err(|error| format!("{FILE}: {error}"))?;
        return Ok(true);
    }
    if options.json {
        return Ok(true);
    }
    let committed = committed()?;
    let tally = compare(&committed, &measured, options.only.is_none());
    Ok(tally.failed == 0)
}

/// The step.
pub(crate) fn step(settings: &Settings) -> Tally {
    packages::skipped(packages::VALGRIND, settings).unwrap_or_else(|| {
        let compared = committed().and_then(|committed| Ok(compare(&committed, &measure(None)?, true)));
        compared.unwrap_or_else(|sentence| Tally::check(Err(sentence)))
    })
}

/// The step that builds what [`step`] needs while others run. Most of it is one thread of the linker.
pub(crate) fn build_step(settings: &Settings) -> Tally {
    packages::skipped(packages::VALGRIND, settings).unwrap_or_else(|| Tally::check(build()))
}

/// Builds the program and the device.
///
/// # Errors
/// A sentence, if that fails.
fn build() -> Result<(), String> {
    let build = ["build", "--profile", "whole", "-p", "instructions", "-p", "fake"];
    exec::quietly(exec::cargo(&build), BUILD_LIMIT)
}

/// Reads the committed figures.
///
/// # Errors
/// A sentence, if there are none or they are not understood.
fn committed() -> Result<Figures, String> {
    let text = fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?;
    Figures::parse(&text).map_err(|sentence| format!("{FILE}, {sentence}"))
}

/// Prints all figures, and counts each as a check. With another compiler, or on another machine, worse ones do not fail.
fn compare(committed: &Figures, measured: &Figures, whole: bool) -> Tally {
    let differences = committed.differences(&measured.conditions);
    let mut tally = Tally::default();
    let mut sentences = Vec::new();
    let mut last = None;
    for figure in &measured.figures {
        let Figure { name, unit, count } = figure;
        if last.replace(*unit) != Some(*unit) {
            let title = format!("{} of an operation", unit.name());
            println!("{title:<28}{:>12}{:>12}{:>10}", "committed", "now", "change");
        }
        let old = committed.get(name);
        let change = old.map(|old| unit.change_text(old, *count)).unwrap_or_default();
        let old = old.map(|old| unit.text(old)).unwrap_or_default();
        println!("{name:<28}{old:>12}{:>12}{change:>10}", unit.text(*count));
        match committed.judge(figure) {
            Verdict::Same => tally += Tally::PASSED,
            Verdict::Better(sentence) => {
                tally += Tally::PASSED;
                sentences.push(format!("better: {sentence}"));
            }
            Verdict::Worse(sentence) if differences.is_empty() => {
                tally += Tally::FAILED;
                sentences.push(format!("error: {sentence}"));
            }
            Verdict::Worse(sentence) => {
                tally += Tally::SKIPPED;
                sentences.push(format!("worse: {sentence}"));
            }
        }
    }
    if whole {
        for name in committed.unknown(&measured.figures) {
            tally += Tally::FAILED;
            sentences.push(format!(
                "error: {name}: no line has this name; `cargo xtask instructions --renew` removes it"
            ));
        }
    }
    sentences.iter().for_each(|sentence| println!("{sentence}"));
    if !differences.is_empty() {
        println!("skipped: worse figures do not fail, because {}", differences.join("; "));
    }
    tally
}

/// Builds the program and the device, and measures all lines, or those whose name has this word.
///
/// # Errors
/// A sentence that says what could not be built, or did not run.
fn measure(only: Option<&str>) -> Result<Figures, String> {
    build()?;
    fake::link_names(fake::WHOLE_FOLDER, "whole")?;
    let mut lines = lines()?;
    lines.retain(|line| only.is_none_or(|word| line.name.contains(word)));
    if lines.is_empty() {
        return Err("no line has this word in its name".to_owned());
    }
    // A processor each. The order of events is the same, however long one has to wait for a processor.
    let (next, workers) = (AtomicUsize::new(0), thread::available_parallelism().map_or(1, usize::from));
    let work = || {
        let mut done = Vec::new();
        while let Some((place, line)) = {
            let place = next.fetch_add(1, Ordering::Relaxed);
            lines.get(place).map(|line| (place, line))
        } {
            done.push((place, line.measure()));
        }
        done
    };
    let mut measured: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default()).collect()
    });
    measured.sort_unstable_by_key(|(place, _)| *place);
    if measured.len() < lines.len() {
        return Err("a thread that measures has panicked".to_owned());
    }
    let mut figures = Figures { conditions: conditions()?, figures: Vec::new() };
    for (_, line) in measured {
        figures.figures.extend(line?);
    }
    figures.figures.sort_by_key(|figure| figure.unit);
    Ok(figures)
}

/// A line of the program's table.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    /// Its name.
    name: String,
    /// The operations of the first run.
    operations: usize,
    /// What is counted.
    counted: Counted,
}

/// What is counted in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    /// The instructions of each end.
    Apart,
    /// Those of both ends together.
    Whole,
    /// Those, and the system calls of both ends.
    Calls,
}

/// Asks the program for its table.
///
/// # Errors
/// A sentence, if it does not run or a line is not understood.
fn lines() -> Result<Vec<Line>, String> {
    let mut list = Command::new(PROGRAM);
    list.arg("list");
    let mut lines = Vec::new();
    exec::quiet_lines(list, LIMIT, |line| lines.push(Line::parse(line)))?;
    lines.into_iter().collect()
}

impl Line {
    /// Reads one.
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{PROGRAM} list` printed `{text}`");
        let [name, operations, counted] = text.split(' ').collect::<Vec<_>>()[..] else {
            return Err(wrong());
        };
        let operations = operations.parse().map_err(|_| wrong())?;
        let counted = match counted {
            "apart" => Counted::Apart,
            "whole" => Counted::Whole,
            "calls" => Counted::Calls,
            _ => return Err(wrong()),
        };
        Ok(Self { name: name.to_owned(), operations, counted })
    }

    /// Its figures: the difference of two runs.
    fn measure(&self) -> Result<Vec<Figure>, String> {
        let (few, many) = (self.run(self.operations)?, self.run(MORE * self.operations)?);
        let operations = ((MORE - 1) * self.operations) as f64;
        let figure = |name: String, few: u64, many: u64| {
            if few == 0 || many <= few {
                return Err(format!("{name}: {few} instructions in the first run, {many} in the second"));
            }
            Ok(Figure { name, unit: Unit::Instructions, count: (many - few) as f64 / operations })
        };
        // Rare ones may be more in the shorter run.
        let calls = |what: &str, few: u64, many: u64| {
            let count = many.saturating_sub(few) as f64 / operations;
            Figure { name: format!("{}.{what}", self.name), unit: Unit::Calls, count }
        };
        let end = |end: usize| figure(format!("{}.{}", self.name, ENDS[end]), few.ends[end], many.ends[end]);
        let whole = || figure(self.name.clone(), few.own, many.own);
        Ok(match self.counted {
            Counted::Apart => vec![end(0)?, end(1)?],
            Counted::Whole => vec![whole()?],
            Counted::Calls => {
                vec![
                    whole()?,
                    calls("calls", few.calls, many.calls),
                    calls("eventfd-writes", few.eventfd_writes, many.eventfd_writes),
                ]
            }
        })
    }

    /// Counts the instructions of so many operations.
    fn run(&self, operations: usize) -> Result<Totals, String> {
        let file = self.file(operations);
        let mut command = callgrind::command(&file);
        command.arg(Path::new(PROGRAM)).args(["run", &self.name, &operations.to_string()]);
        command.env("LD_LIBRARY_PATH", crate::root().join(fake::WHOLE_FOLDER)).env("FAKE_CONTROL", "instant");
        let ran = exec::quietly(command, LIMIT);
        let text = fs::read_to_string(&file);
        // It may not have been written.
        let _ = fs::remove_file(&file);
        ran.map_err(|sentence| format!("{}: {sentence}", self.name))?;
        Ok(callgrind::totals(&text.map_err(|error| format!("{}: {error}", file.display()))?))
    }

    /// The file that callgrind writes.
    fn file(&self, operations: usize) -> PathBuf {
        env::temp_dir().join(format!("instructions-{}-{}-{operations}.callgrind", process::id(), self.name))
    }
}

/// The tools and the processor that the figures depend on.
///
/// # Errors
/// A sentence, if one of the tools does not run.
fn conditions() -> Result<Conditions, String> {
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = |program: &str, argument: &str| {
        let mut command = Command::new(program);
        command.arg(argument);
        let mut first = None;
        exec::quiet_lines(command, LIMIT, |line| {
            first.get_or_insert_with(|| line.to_owned());
        })?;
        first.ok_or_else(|| format!("`{program} {argument}` prints nothing"))
    };
    Ok(vec![
        ("rustc".to_owned(), version(&rustc, "--version")?),
        ("valgrind".to_owned(), version("valgrind", "--version")?),
        ("libc".to_owned(), version("ldd", "--version")?),
        ("processor".to_owned(), processor().to_owned()),
    ])
}

/// The processor that valgrind has programs see.
#[cfg(target_arch = "x86_64")]
fn processor() -> &'static str {
    // One without these instructions if that of the machine has none.
    if std::arch::is_x86_feature_detected!("avx2") { "x86_64, AVX2" } else { "x86_64" }
}

/// The processor.
#[cfg(not(target_arch = "x86_64"))]
fn processor() -> &'static str {
    env::consts::ARCH
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The options of a command line.
    fn parse(line: &str) -> Result<Options, Usage> {
        Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_command_line_is_read() {
        assert_eq!(parse(""), Ok(Options::default()));
        let options = parse("--json --only write").expect("a good command line");
        assert!(options.json && !options.renew && options.only.as_deref() == Some("write"));
        assert!(parse("--renew").expect("a good command line").renew);
        assert!(
            parse("--only").is_err() && parse("--fast").is_err() && parse("--renew --only write").is_err()
        );
    }

    #[test]
    fn the_table_of_the_program_is_read() {
        let line = Line { name: "send-1k".into(), operations: 512, counted: Counted::Apart };
        assert_eq!(Line::parse("send-1k 512 apart"), Ok(line));
        assert_eq!(Line::parse("verbs-send 32 whole").map(|line| line.counted), Ok(Counted::Whole));
        assert_eq!(Line::parse("connection 32 calls").map(|line| line.counted), Ok(Counted::Calls));
        assert!(Line::parse("connection 32").is_err() && Line::parse("connection many whole").is_err());
    }

    #[test]
    fn worse_figures_fail_only_under_the_same_conditions() {
        let figures = |rustc: &str, count| Figures {
            conditions: vec![("rustc".to_owned(), rustc.to_owned())],
            figures: vec![Figure { name: "send.active".into(), unit: Unit::Instructions, count }],
        };
        let committed = figures("1.95.0", 1000.0);
        assert_eq!(compare(&committed, &figures("1.95.0", 1050.0), true), Tally::FAILED);
        assert_eq!(compare(&committed, &figures("1.96.0", 1050.0), true), Tally::SKIPPED);
        assert_eq!(compare(&committed, &figures("1.95.0", 900.0), true), Tally::PASSED);
        let nothing = Figures { figures: Vec::new(), ..committed.clone() };
        assert_eq!(compare(&committed, &nothing, true), Tally::FAILED);
        assert_eq!(compare(&committed, &nothing, false), Tally::default());
    }
}
