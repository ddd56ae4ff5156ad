//! The list of settings: each of them is tried with extreme values in the modules around this one.

use std::fs;
use std::path::{Path, PathBuf};

/// The files of the settings.
const FILES: [&str; 10] = [
    "src/cm/acceptor.rs",
    "src/io/config.rs",
    "src/provider/params.rs",
    "src/soft/config.rs",
    "src/verbs/config.rs",
    "src/qp/completion_queue.rs",
    "src/qp/lane/config.rs",
    "src/qp/queue_pair.rs",
    "src/qp/requests.rs",
    "src/qp/shared.rs",
];

/// The types of parameters that have no extreme value: flags, names, bytes, handles.
const OTHERS: [&str; 7] =
    ["bool", "&str", "impl AsRef", "&CompletionQueue", "&SharedReceiveQueue", "&Capture", "IpAddr"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// The type and the name of each setting in the text of a file that has extreme values.
fn settings(text: &str) -> Vec<(String, String)> {
    let mut of = "";
    let mut settings = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("impl ") {
            of = rest.split([' ', '<']).next().expect("a type");
        }
        let Some(rest) = line.trim_start().strip_prefix("pub fn ") else { continue };
        let Some((name, rest)) = rest.split_once('(') else { continue };
        let Some((parameters, result)) = rest.split_once(") -> ") else { continue };
        let Some((_, parameter)) = parameters.split_once("self, ") else { continue };
        let (_, kind) = parameter.split_once(": ").expect("a type");
        if result.starts_with("Self") && !OTHERS.iter().any(|other| kind.starts_with(other)) {
            settings.push((of.to_owned(), name.to_owned()));
        }
    }
    settings
}

// SEC-09: a new setting fails here until it is tried.
#[test]
fn every_setting_is_tried() {
    let read = |file: &Path| fs::read_to_string(file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    let tests = ["tests/api/settings.rs", "tests/api/settings/soft.rs"].map(|file| read(&root().join(file)));
    // A test begins below its attribute, and tries the settings of the types that it names.
    let tests: Vec<_> = tests.iter().flat_map(|text| text.split("test]\n")).collect();
    let mut count = 0;
    for file in FILES {
        for (of, name) in settings(&read(&root().join(file))) {
            let (made, call) = (["default", "new"].map(|new| format!("{of}::{new}")), format!(".{name}("));
            let is_made = |test: &str| made.iter().any(|made| test.contains(made));
            let is_tried = tests.iter().any(|test| is_made(test) && test.contains(&call));
            assert!(is_tried, "{file}: no test tries {of}::{name}");
            count += 1;
        }
    }
    assert!(count >= 50, "{count} settings were found");
}
