//! The list of what is done with the tests of another project: `interop/tokio/tests.txt`, whose head describes it.

/// The name of the section whose replacements are for each file.
const EACH: &str = "*";

/// The name of a test that stands for the whole file.
pub(super) const WHOLE: &str = "*";

/// One file of tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct File {
    /// Its name, without the ending.
    pub(super) name: String,
    /// What is replaced, and by what.
    pub(super) replacements: Vec<(String, String)>,
    /// The tests that are wanted; all, if there is none here.
    only: Vec<String>,
    /// The tests that cannot be built.
    pub(super) unbuilt: Vec<String>,
    /// The tests that fail.
    pub(super) fails: Vec<String>,
}

impl File {
    /// Whether nothing of it can be built.
    pub(super) fn is_unbuilt(&self) -> bool {
        self.unbuilt.iter().any(|name| name == WHOLE)
    }

    /// Whether a test is run.
    pub(super) fn wants(&self, test: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| is_named(test, name))
    }

    /// Whether a test is listed as one that fails.
    pub(super) fn expects_failure(&self, test: &str) -> bool {
        self.fails.iter().any(|name| is_named(test, name))
    }

    /// Returns the names of the list that none of these tests has.
    pub(super) fn unknown<'a>(&'a self, tests: &[String]) -> Vec<&'a str> {
        let listed = self.only.iter().chain(&self.fails);
        let unknown = listed.filter(|name| !tests.iter().any(|test| is_named(test, name)));
        unknown.map(String::as_str).collect()
    }
}

/// Whether this is the name of a test, or its last part.
fn is_named(test: &str, name: &str) -> bool {
    test.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with("::"))
}

/// Reads a list.
///
/// # Errors
/// A sentence with the line that is not understood.
pub(super) fn parse(list: &str) -> Result<Vec<File>, String> {
    let mut files: Vec<File> = Vec::new();
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let wrong = || format!("not understood: {line}");
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            files.push(File { name: name.to_owned(), ..File::default() });
            continue;
        }
        let file = files.last_mut().ok_or_else(wrong)?;
        let (word, rest) = line.split_once(' ').ok_or_else(wrong)?;
        match word {
            "replace" => {
                let (one, other) = rest.split_once(" =>").ok_or_else(wrong)?;
                file.replacements.push((lines(one), lines(other.trim_start_matches(' '))));
            }
            "only" => file.only.extend(rest.split(", ").map(str::to_owned)),
            "unbuilt" | "fails" => {
                let (name, _reason) = rest.split_once(": ").ok_or_else(wrong)?;
                let names = if word == "fails" { &mut file.fails } else { &mut file.unbuilt };
                names.push(name.to_owned());
            }
            _ => return Err(wrong()),
        }
    }
    let (each, mut files): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| file.name == EACH);
    let common: Vec<_> = each.into_iter().flat_map(|file| file.replacements).collect();
    for file in &mut files {
        file.replacements.splice(0..0, common.iter().cloned());
    }
    Ok(files)
}

/// The text with its ends of lines.
fn lines(text: &str) -> String {
    text.replace("\\n", "\n")
}

/// Returns the source without a test: its attributes, and its lines up to the brace below its first letter. `None` if there is no such test.
pub(super) fn without(source: &str, test: &str) -> Option<String> {
    let lines: Vec<_> = source.lines().collect();
    let head = format!("fn {test}(");
    let place = lines.iter().position(|line| line.contains(&head))?;
    let indent = lines[place].len() - lines[place].trim_start().len();
    let end = format!("{}}}", &lines[place][..indent]);
    let first = lines[..place].iter().rposition(|line| line.trim().is_empty()).map_or(0, |blank| blank + 1);
    let last = place + lines[place..].iter().position(|line| *line == end)?;
    Some([&lines[..first], &lines[last + 1..]].concat().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# A list.
[*]
replace a::b => c

[one]
only first, second
fails second: it has a reason: this

[two]
# A reason.
replace x\\n y =>
unbuilt *: no socket
";

    #[test]
    fn a_list_is_read() {
        let files = parse(LIST).expect("a good list");
        let text = str::to_owned;
        let one = File {
            name: text("one"),
            replacements: vec![(text("a::b"), text("c"))],
            only: vec![text("first"), text("second")],
            unbuilt: vec![],
            fails: vec![text("second")],
        };
        let two = File {
            name: text("two"),
            replacements: vec![(text("a::b"), text("c")), (text("x\n y"), text(""))],
            unbuilt: vec![text("*")],
            ..File::default()
        };
        assert_eq!(files, [one, two]);
        assert!(files[1].is_unbuilt() && !files[0].is_unbuilt());
        for wrong in ["only a", "[a]\nnever b: c", "[a]\nfails b", "[a]\nreplace b"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_name_is_the_last_part() {
        let files = parse(LIST).expect("a good list");
        assert!(files[0].wants("first") && files[0].wants("module::first") && !files[0].wants("not_first"));
        assert!(files[1].wants("anything"));
        assert!(files[0].expects_failure("module::second") && !files[0].expects_failure("first"));
        assert_eq!(files[0].unknown(&["module::first".to_owned()]), ["second", "second"]);
    }

    #[test]
    fn a_test_is_taken_out() {
        let source = "use a;\n\n#[test]\n#[cfg(b)]\nfn one() {\n    {\n    }\n}\n\nfn two() {\n}";
        assert_eq!(without(source, "one").as_deref(), Some("use a;\n\n\nfn two() {\n}"));
        assert_eq!(without(source, "three"), None);
    }
}
