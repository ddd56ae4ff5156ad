//! `cargo xtask rows`: every row of the feature table that this version has is cited by a test.
//!
//! That a test cites a row does not make it prove the row; that none cites it shows that nobody claims to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use crate::Usage;
use crate::citations::{self, Scope};
use crate::layers;

/// One group of rows.
struct Group {
    /// The letters before the dash.
    name: &'static str,
    /// The highest number in the feature table.
    size: u8,
    /// The numbers that a test of this version must cite.
    required: &'static [(u8, u8)],
}

/// The feature table. Rows are never renumbered; a new one raises `size`, a finished one goes into `required`.
#[rustfmt::skip]
const GROUPS: &[Group] = &[
    Group { name: "PRV", size: 8, required: &[(1, 8)] },
    Group { name: "AD", size: 8, required: &[(1, 2), (4, 6), (8, 8)] },
    Group { name: "CM", size: 35, required: &[(1, 34)] },
    Group { name: "LS", size: 24, required: &[(1, 18), (22, 24)] },
    Group { name: "NEG", size: 7, required: &[(1, 7)] },
    Group { name: "PD", size: 9, required: &[(1, 7), (9, 9)] },
    Group { name: "DIS", size: 15, required: &[(1, 15)] },
    Group { name: "CAN", size: 13, required: &[(1, 13)] },
    Group { name: "ERR", size: 6, required: &[(1, 6)] },
    Group { name: "QP", size: 25, required: &[(1, 13), (15, 25)] },
    Group { name: "CQ", size: 11, required: &[(1, 11)] },
    Group { name: "MR", size: 8, required: &[(1, 6)] },
    Group { name: "MW", size: 4, required: &[(1, 4)] },
    Group { name: "SRQ", size: 4, required: &[(1, 4)] },
];

/// Rows that are a choice, not a behaviour: nothing could fail. docs/porting.md tells them to users.
const CHOICES: &[(&str, &str)] = &[
    ("CM-34", "retry counts and timers are options of InfiniBand, and of the verbs provider alone"),
    ("LS-09", "pausing is optional and not offered: who does not call `request` lets the backlog fill"),
];

/// Where rows are cited, as `file::function`.
type Cited = BTreeMap<String, BTreeSet<String>>;

/// The command: exit status 1 if a row is missing or a citation is wrong.
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

/// Reads all test code, prints what is wrong with it, and with `list` the tests of each row.
///
/// # Errors
/// A sentence, if a file cannot be read, a row is missing or a citation is wrong.
pub(crate) fn check_tree(list: bool) -> Result<(), String> {
    let (mut cited, mut wrong) = (Cited::new(), Vec::new());
    for (file, scope) in files()? {
        let text = fs::read_to_string(&file).map_err(|error| format!("cannot read {file}: {error}"))?;
        wrong.extend(collect(&file, &text, scope, &mut cited));
    }
    let missing = missing(&cited);
    if list {
        for (row, places) in &cited {
            places.iter().for_each(|place| println!("{row} -> {place}"));
        }
    }
    CHOICES.iter().for_each(|(row, why)| println!("{row} needs no test: {why}"));
    wrong.iter().for_each(|sentence| println!("{sentence}"));
    missing.iter().for_each(|row| println!("{row} is cited by no test"));
    if !wrong.is_empty() || !missing.is_empty() {
        return Err(format!("{} rows without a test, {} wrong citations", missing.len(), wrong.len()));
    }
    println!("{} rows are cited by a test", required().filter(|row| !is_choice(row)).count());
    Ok(())
}

/// Every file to look at, in order, and which part of it.
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
        for_tests.extend(citations::test_files(&text).into_iter().map(|name| module_folder(file) + &name));
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
    Ok(all)
}

/// Where the modules that a file declares have their files: `src/wire/mpa/` for `src/wire/mpa.rs`.
fn module_folder(file: &str) -> String {
    let stem = file.trim_end_matches(".rs");
    let own =
        ["lib", "mod"].iter().find_map(|name| stem.strip_suffix(name).filter(|rest| rest.ends_with('/')));
    own.map_or_else(|| format!("{stem}/"), str::to_owned)
}

/// Adds the citations of one file; returns what is wrong with them.
fn collect(file: &str, text: &str, scope: Scope, cited: &mut Cited) -> Vec<String> {
    let found = citations::find(text, scope);
    let range = |line| format!("{file}:{line}: a range of rows: name them one by one");
    let mut wrong: Vec<_> = found.ranges.into_iter().map(range).collect();
    for one in found.citations {
        if !exists(&one.row) {
            wrong.push(format!("{file}:{}: the feature table has no row {}", one.line, one.row));
        } else if one.function.is_empty() {
            wrong.push(format!("{file}:{}: no test follows the citation of {}", one.line, one.row));
        } else {
            cited.entry(one.row).or_default().insert(format!("{file}::{}", one.function));
        }
    }
    wrong
}

/// Whether the feature table has this row.
fn exists(row: &str) -> bool {
    row.split_once('-').is_some_and(|(name, number)| {
        let number = number.parse().unwrap_or(0);
        GROUPS.iter().any(|group| group.name == name && (1..=group.size).contains(&number))
    })
}

/// The rows that must be cited, in the order of the table.
fn required() -> impl Iterator<Item = String> {
    GROUPS.iter().flat_map(|group| {
        let numbers = group.required.iter().flat_map(|(first, last)| *first..=*last);
        numbers.map(|number| format!("{}-{number:02}", group.name))
    })
}

/// Whether a row is a choice that no test can show.
fn is_choice(row: &str) -> bool {
    CHOICES.iter().any(|(choice, _)| *choice == row)
}

/// The rows that must be cited and are not.
fn missing(cited: &Cited) -> Vec<String> {
    required().filter(|row| !is_choice(row) && !cited.contains_key(row)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sound() {
        let total: usize = GROUPS.iter().map(|group| usize::from(group.size)).sum();
        assert_eq!(total, 177);
        assert!(required().all(|row| exists(&row)));
        assert!(CHOICES.iter().all(|(row, _)| required().any(|other| other == *row)));
        assert!(["CM-36", "CM-00", "XY-01", "CM"].iter().all(|row| !exists(row)));
    }

    #[test]
    fn what_nobody_cites_is_missing() {
        let mut cited = Cited::new();
        let all: String = required().map(|row| format!("// {row}\n")).collect();
        let text = format!("{}fn f() {{}}", all.replace("// DIS-07\n", ""));
        assert_eq!(collect("tests/x.rs", &text, Scope::All, &mut cited), [""; 0]);
        assert_eq!(missing(&cited), ["DIS-07"]);
        assert!(cited["CM-19"].contains("tests/x.rs::f"));
    }

    #[test]
    fn choices_are_not_missing() {
        let missing = missing(&Cited::new());
        assert_eq!(missing.len(), required().count() - CHOICES.len());
        assert!(missing.iter().all(|row| !is_choice(row)));
    }

    #[test]
    fn wrong_citations_are_told() {
        let mut cited = Cited::new();
        let text = "// CM-99\n// LS-01..03\nfn f() {}\n// CM-01\n";
        let wrong = collect("tests/x.rs", text, Scope::All, &mut cited);
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        assert!(
            wrong.iter().any(|sentence| sentence.starts_with("tests/x.rs:1: ") && sentence.contains("CM-99"))
        );
        assert!(!cited.contains_key("CM-01"));
    }

    #[test]
    fn modules_are_looked_for_where_the_compiler_looks() {
        assert_eq!(module_folder("src/lib.rs"), "src/");
        assert_eq!(module_folder("src/proto/mod.rs"), "src/proto/");
        assert_eq!(module_folder("src/wire/mpa.rs"), "src/wire/mpa/");
        assert_eq!(module_folder("src/wire/submod.rs"), "src/wire/submod/");
    }
}
