//! Links between the pages: each leads to a file that exists, and to a heading that the file has.

use std::collections::{BTreeMap, BTreeSet};

use super::{CHAPTERS, Pages};

/// Returns each link that leads nowhere, as `file:line: sentence`.
pub(super) fn check(pages: &Pages, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let anchors: BTreeMap<&str, BTreeSet<String>> =
        pages.iter().map(|(file, text)| (file.as_str(), anchors(text))).collect();
    let mut mistakes = Vec::new();
    for (file, text) in pages {
        for (line, target) in links(text) {
            if let Err(sentence) = follow(file, &target, &anchors, &exists) {
                mistakes.push(format!("{file}:{line}: `{target}` {sentence}"));
            }
        }
    }
    mistakes
}

/// Follows one link of a page.
fn follow(
    file: &str,
    target: &str,
    anchors: &BTreeMap<&str, BTreeSet<String>>,
    exists: &impl Fn(&str) -> bool,
) -> Result<(), &'static str> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let path =
        if path.is_empty() { file.to_owned() } else { resolve(file, path).ok_or("leaves the repository")? };
    // The book has only its own folder when it is rendered.
    let book = format!("{CHAPTERS}/");
    if file.starts_with(&book) && !path.starts_with(&book) {
        return Err("leaves the book: name the file instead");
    }
    if !exists(&path) {
        return Err("does not exist");
    }
    match anchor {
        Some(anchor) if !anchors.get(path.as_str()).is_some_and(|own| own.contains(anchor)) => {
            Err("is not a heading of that page")
        }
        _ => Ok(()),
    }
}

/// The path of a link, from the root of the repository.
fn resolve(file: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in target.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The lines outside of code blocks, with their numbers.
pub(super) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// The targets of the links of a page, with their lines. Links in code do not count.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let plain: Vec<&str> = line.split('`').step_by(2).collect();
        let plain = plain.join("");
        let after = plain.split("](").skip(1);
        found.extend(after.filter_map(|rest| Some((number, rest.split_once(')')?.0.to_owned()))));
    }
    found
}

/// The anchors of the headings of a page, as mdBook and repository hosts make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, line) in prose(text).filter(|(_, line)| line.starts_with('#')) {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept =
            title.chars().filter(|character| character.is_alphanumeric() || " -_".contains(*character));
        let anchor: String = kept.map(|character| if character == ' ' { '-' } else { character }).collect();
        let again = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(again).find(|anchor| !found.contains(anchor));
        found.extend(free);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mistakes of pages, and of no other files.
    fn mistakes(pages: &[(&str, &str)]) -> Vec<String> {
        let pages: Pages =
            pages.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect();
        check(&pages, |path| pages.contains_key(path))
    }

    #[test]
    fn a_link_leads_to_a_file_and_a_heading() {
        let other = ("docs/b.md", "# B\n## Memory and fork(2)\n## Twice\n## Twice");
        let good = "[1](docs/b.md) [2](docs/b.md#memory-and-fork2) [3](docs/b.md#twice-1) [4](#a) [5](https://c.example)\n# A";
        assert_eq!(mistakes(&[("a.md", good), other]), [""; 0]);
        let wrong = "[1](c.md)\n[2](docs/b.md#c)\n[3](#c)\n[4](../d.md)";
        assert_eq!(mistakes(&[("a.md", wrong), other]).len(), 4);
    }

    #[test]
    fn code_has_no_links_and_no_headings() {
        assert_eq!(mistakes(&[("a.md", "`[x](y)`\n```\n[x](y)\n```")]), [""; 0]);
        assert_eq!(mistakes(&[("a.md", "[x](#y)\n```sh\n# y\n```")]).len(), 1);
    }

    #[test]
    fn the_book_links_to_itself_only() {
        let chapter = format!("{CHAPTERS}/a.md");
        assert_eq!(mistakes(&[(&chapter, "[x](../../b.md)"), ("docs/b.md", "")]).len(), 1);
        assert_eq!(mistakes(&[(&chapter, "[x](a.md)"), ("docs/b.md", "")]), [""; 0]);
    }
}
