//! `cargo xtask rows`: compares the feature table, docs/spec/features.md, with the tests that cite its rows.
//!
//! A citation does not prove that a test covers the row. A required row without any citation is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use crate::Usage;
use crate::citations::{self, Scope};
use crate::layers;

mod ids;
mod table;

use table::{PAGE, Row, State, Table};

/// The places that cite each row, as `file::function`.
type Cited = BTreeMap<String, BTreeSet<String>>;

/// The command: exit status 1 if the table has a mistake, a required row is not cited or a citation is wrong.
pub(crate) fn main(arguments: &[String]) -> Result<ExitCode, Usage> {
    let list = match arguments {
        [] => false,
        [flag] if flag == "--list" => true,
        [other, ..] => return Err(Usage(format!("unexpected argument `{other}`"))),
    };
    Ok(match check_tree(list) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            ExitCode::FAILURE
        }
    })
}

/// The rows that are not offered.
///
/// # Errors
/// A sentence, if the table cannot be read or has a mistake.
pub(crate) fn not_offered() -> Result<BTreeSet<String>, String> {
    let page = fs::read_to_string(PAGE).map_err(|error| format!("cannot read {PAGE}: {error}"))?;
    let table = Table::read(&page).map_err(|mistakes| mistakes.join("\n"))?;
    Ok(table.rows.into_iter().filter(|row| row.state == State::Out).map(|row| row.id).collect())
}

/// Reads the feature table, the ids of the other pages and all test code, and prints each mistake as `file:line: sentence`, then the number of
/// rows by state. With `list` it also prints the state and the tests of each row.
///
/// # Errors
/// A sentence, if a file cannot be read, the table has a mistake, an id stands twice, a required row is not cited or a citation is
/// wrong.
pub(crate) fn check_tree(list: bool) -> Result<(), String> {
    let page = fs::read_to_string(PAGE).map_err(|error| format!("cannot read {PAGE}: {error}"))?;
    let table = Table::read(&page).map_err(|mistakes| {
        mistakes.iter().for_each(|sentence| println!("{sentence}"));
        format!("{} mistakes in the feature table", mistakes.len())
    })?;
    let (mut cited, mut wrong) = (Cited::new(), ids::check(&pages()?));
    for (file, scope) in files()? {
        let text = fs::read_to_string(&file).map_err(|error| format!("cannot read {file}: {error}"))?;
        wrong.extend(collect(&table, &file, &text, scope, &mut cited));
    }
    let missing = missing(&table, &cited);
    if list {
        listing(&table, &cited).iter().for_each(|line| println!("{line}"));
    }
    wrong.iter().chain(&missing).for_each(|sentence| println!("{sentence}"));
    if !wrong.is_empty() || !missing.is_empty() {
        return Err(format!("{} rows without a test, {} wrong ids or citations", missing.len(), wrong.len()));
    }
    println!("{}", table.summary());
    println!("{} rows are cited by a test", cited.len());
    Ok(())
}

/// The pages beside that of the feature table, with their text.
fn pages() -> Result<Vec<(String, String)>, String> {
    let folder = Path::new(PAGE).parent().unwrap_or(Path::new(""));
    let entries =
        fs::read_dir(folder).map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
    let mut files: Vec<String> =
        entries.filter_map(|entry| Some(entry.ok()?.path().to_string_lossy().into_owned())).collect();
    files.sort();
    let read = |file: String| {
        let text = fs::read_to_string(&file).map_err(|error| format!("cannot read {file}: {error}"))?;
        Ok((file, text))
    };
    files.into_iter().filter(|file| file.ends_with(".md") && file != PAGE).map(read).collect()
}

/// The files that may cite rows, in order, and the part of each file that counts.
fn files() -> Result<Vec<(String, Scope)>, String> {
    let list = |folder: &str| {
        let mut files = Vec::new();
        layers::list(Path::new(folder), &mut files)
            .map_err(|error| format!("cannot list {folder}: {error}"))?;
        files.sort();
        Ok::<_, String>(files)
    };
    let sources = list("src")?;
    let mut for_tests = Vec::new();
    for file in &sources {
        let text = fs::read_to_string(file).map_err(|error| format!("cannot read {file}: {error}"))?;
        let names =
            citations::test_files(&text).map_err(|(line, sentence)| format!("{file}:{line}: {sentence}"))?;
        for_tests.extend(names.into_iter().map(|name| module_folder(file) + &name));
    }
    let scope = |file: &str| {
        let stem = file.trim_end_matches(".rs");
        let is_in = |module: &String| {
            stem.strip_prefix(module.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if for_tests.iter().any(is_in) { Scope::All } else { Scope::TestModules }
    };
    let mut all: Vec<_> = sources.iter().map(|file| (file.clone(), scope(file))).collect();
    all.extend(list("tests")?.into_iter().map(|file| (file, Scope::All)));
    all.extend(list("examples")?.into_iter().map(|file| {
        let scope = if file.contains("/tests/") { Scope::All } else { Scope::TestModules };
        (file, scope)
    }));
    Ok(all)
}

/// The folder of the modules that a file declares: `src/wire/mpa/` for `src/wire/mpa.rs`.
fn module_folder(file: &str) -> String {
    let stem = file.trim_end_matches(".rs");
    let own =
        ["lib", "mod"].iter().find_map(|name| stem.strip_suffix(name).filter(|rest| rest.ends_with('/')));
    own.map_or_else(|| format!("{stem}/"), str::to_owned)
}

/// Adds the citations of one file; returns the wrong ones as `file:line: sentence`.
fn collect(table: &Table, file: &str, text: &str, scope: Scope, cited: &mut Cited) -> Vec<String> {
    let found = match citations::find(text, scope) {
        Ok(found) => found,
        Err((line, sentence)) => return vec![format!("{file}:{line}: {sentence}")],
    };
    let range = |line| format!("{file}:{line}: a range of rows: name them one by one");
    let mut wrong: Vec<_> = found.ranges.into_iter().map(range).collect();
    for one in found.citations {
        if table.get(&one.row).is_none() {
            wrong.push(format!("{file}:{}: the feature table has no row {}", one.line, one.row));
        } else if one.function.is_empty() {
            wrong.push(format!("{file}:{}: no test follows the citation of {}", one.line, one.row));
        } else {
            cited.entry(one.row).or_default().insert(format!("{file}::{}", one.function));
        }
    }
    wrong
}

/// The required rows that are not cited, as `file:line: sentence` in the order of the page.
fn missing(table: &Table, cited: &Cited) -> Vec<String> {
    let is_missing = |row: &&Row| row.state == State::Required && !cited.contains_key(&row.id);
    let sentence = |row: &Row| format!("{PAGE}:{}: {} is required, and no test cites it", row.line, row.id);
    table.rows.iter().filter(is_missing).map(sentence).collect()
}

/// Every row with its state: why it is out, and a line for each place that cites it.
fn listing(table: &Table, cited: &Cited) -> Vec<String> {
    let mut lines = Vec::new();
    for row in &table.rows {
        let head = format!("{} {}", row.id, row.state.name());
        let places = cited.get(&row.id);
        match row.reason.as_str() {
            "" if places.is_some() => {}
            "" => lines.push(head.clone()),
            reason => lines.push(format!("{head}: {reason}")),
        }
        lines.extend(places.into_iter().flatten().map(|place| format!("{head} -> {place}")));
        if row.state == State::Waiting && places.is_some() {
            lines.push(format!("{head}: a test cites it, so its state can be raised"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table with a row of each state, and one more that is required.
    fn table() -> Table {
        Table::read(
            "| Id | State | Feature |\n|---|---|---|\n| AD-01 | required | a |\n| AD-02 | waiting | b |\n\
             | AD-03 | out | Not offered: nobody asked. |\n| AD-04 | required | d |\n",
        )
        .expect("a sound table")
    }

    #[test]
    fn a_required_row_without_a_citation_is_missing() {
        let mut cited = Cited::new();
        let line = |row| format!("{PAGE}:{}: AD-0{row} is required, and no test cites it", row + 2);
        assert_eq!(missing(&table(), &cited), [line(1), line(4)]);
        let text = "// AD-01\nfn f() {}";
        assert_eq!(collect(&table(), "tests/x.rs", text, Scope::All, &mut cited), [""; 0]);
        assert_eq!(missing(&table(), &cited), [line(4)]);
        assert!(cited["AD-01"].contains("tests/x.rs::f"));
    }

    #[test]
    fn rows_of_every_state_may_be_cited() {
        let mut cited = Cited::new();
        let text = "// AD-01, AD-02, AD-03, AD-04\nfn f() {}";
        assert_eq!(collect(&table(), "tests/x.rs", text, Scope::All, &mut cited), [""; 0]);
        assert_eq!(cited.len(), 4);
        assert_eq!(missing(&table(), &cited), [""; 0]);
    }

    #[test]
    fn wrong_citations_are_reported_with_file_and_line() {
        let mut cited = Cited::new();
        let text = "// AD-99\n// AD-01..03\nfn f() {}\n// AD-01\n";
        let wrong = collect(&table(), "tests/x.rs", text, Scope::All, &mut cited);
        let want = [
            "tests/x.rs:2: a range of rows: name them one by one",
            "tests/x.rs:1: the feature table has no row AD-99",
            "tests/x.rs:4: no test follows the citation of AD-01",
        ];
        assert_eq!(wrong, want);
    }

    #[test]
    fn listing_shows_state_and_tests_per_row() {
        let mut cited = Cited::new();
        let text = "// AD-01\nfn f() {}\n// AD-02, AD-01, AD-03\nfn g() {}";
        collect(&table(), "tests/x.rs", text, Scope::All, &mut cited);
        let want = [
            "AD-01 required -> tests/x.rs::f",
            "AD-01 required -> tests/x.rs::g",
            "AD-02 waiting -> tests/x.rs::g",
            "AD-02 waiting: a test cites it, so its state can be raised",
            "AD-03 out: nobody asked.",
            "AD-03 out -> tests/x.rs::g",
            "AD-04 required",
        ];
        assert_eq!(listing(&table(), &cited), want);
    }

    #[test]
    fn modules_are_looked_for_where_the_compiler_looks() {
        assert_eq!(module_folder("src/lib.rs"), "src/");
        assert_eq!(module_folder("src/proto/mod.rs"), "src/proto/");
        assert_eq!(module_folder("src/wire/mpa.rs"), "src/wire/mpa/");
        assert_eq!(module_folder("src/wire/submod.rs"), "src/wire/submod/");
    }
}
