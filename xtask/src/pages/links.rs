//! Links between the pages: each leads to a file that exists, and to a heading that the file has.
//!
//! A library reads the pages; the comparison is ours. lychee and mdbook-linkcheck have both, but also an HTTP client with
//! hundreds of crates, which every run would compile to follow links between files. And neither knows that a chapter
//! must not link to files outside the book.

use std::collections::{BTreeMap, BTreeSet};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::{CHAPTERS, Pages};

/// Returns each link that leads nowhere, as `file:line: sentence`.
pub(super) fn check(pages: &Pages, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let pages: BTreeMap<&str, Page> =
        pages.iter().map(|(file, text)| (file.as_str(), Page::read(text))).collect();
    let mut mistakes = Vec::new();
    for (file, page) in &pages {
        for (line, target) in &page.links {
            if let Err(sentence) = follow(file, target, &pages, &exists) {
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
    pages: &BTreeMap<&str, Page>,
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
        Some(anchor) if !pages.get(path.as_str()).is_some_and(|page| page.anchors.contains(anchor)) => {
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

/// The links and the headings of a page, as pulldown-cmark reads them, which mdBook uses.
#[derive(Default)]
struct Page {
    /// The targets of the links, with their lines.
    links: Vec<(usize, String)>,
    /// The anchors of the headings, as mdBook and repository hosts make them.
    anchors: BTreeSet<String>,
}

impl Page {
    /// Reads a page.
    fn read(text: &str) -> Self {
        let mut page = Self::default();
        let mut title = None;
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    let line = 1 + text[..range.start].matches('\n').count();
                    page.links.push((line, dest_url.into_string()));
                }
                Event::Start(Tag::Heading { .. }) => title = Some(String::new()),
                Event::Text(text) | Event::Code(text) => {
                    title.iter_mut().for_each(|title| title.push_str(&text));
                }
                Event::End(TagEnd::Heading(_)) => page.heading(&title.take().unwrap_or_default()),
                _ => {}
            }
        }
        page
    }

    /// Adds the anchor of a heading: with a number if an earlier heading has the same.
    fn heading(&mut self, title: &str) {
        let is_kept = |character: &char| character.is_alphanumeric() || " -_".contains(*character);
        let anchor: String = title.trim().to_lowercase().chars().filter(is_kept).collect();
        let anchor = anchor.replace(' ', "-");
        let again = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(again).find(|anchor| !self.anchors.contains(anchor));
        self.anchors.extend(free);
    }
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
    fn links_lead_to_files_and_headings() {
        let other = ("docs/b.md", "# B\n## Memory and fork(2)\n## Twice\n## Twice");
        let good = "[1](docs/b.md) [2](docs/b.md#memory-and-fork2) [3](docs/b.md#twice-1) [4](#a) [5](https://c.example)\n# A";
        assert_eq!(mistakes(&[("a.md", good), other]), [""; 0]);
        let wrong = "[1](c.md)\n[2](docs/b.md#c)\n[3](#c)\n[4](../d.md)\n\n[5]\n\n[5]: e.md";
        let mistakes = mistakes(&[("a.md", wrong), other]);
        assert_eq!(mistakes.len(), 5);
        assert_eq!(mistakes[4], "a.md:6: `e.md` does not exist");
    }

    #[test]
    fn a_heading_may_have_code_and_links() {
        let heading = "# The `Adapter` of [b](docs/b.md)\n\n[1](#the-adapter-of-b)";
        assert_eq!(mistakes(&[("a.md", heading), ("docs/b.md", "")]), [""; 0]);
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
