//! Ids of the other pages of docs/spec, such as `X4` and `A12`: each stands in one row, and none of its group is left out.

use std::collections::BTreeMap;

use super::table::cells;

/// The ids of a group, by number: the page and the line of each.
type Group<'a> = BTreeMap<usize, (&'a str, usize)>;

/// Returns the mistakes of pages, each of which is a path and its text, as `file:line: sentence`. The first column of a table with
/// ids has the head `#`.
pub(super) fn check(pages: &[(String, String)]) -> Vec<String> {
    let (mut groups, mut mistakes) = (BTreeMap::<&str, Group<'_>>::new(), Vec::new());
    for (file, text) in pages {
        let mut has_ids = false;
        for (line, text) in (1..).zip(text.lines()) {
            let Some(first) = cells(text).first().copied() else {
                has_ids = false;
                continue;
            };
            has_ids |= first == "#";
            if !has_ids || first == "#" || first.starts_with("---") {
                continue;
            }
            let Some((group, number)) = id(first) else {
                mistakes.push(format!("{file}:{line}: `{first}` is not an id, such as X4"));
                continue;
            };
            let ids = groups.entry(group).or_default();
            if let Some((file_of_first, line_of_first)) = ids.insert(number, (file, line)) {
                mistakes.push(format!(
                    "{file}:{line}: {first} is also on line {line_of_first} of {file_of_first}"
                ));
            }
        }
    }
    for (group, ids) in &groups {
        for ((number, (file, line)), place) in ids.iter().zip(1..) {
            if *number > place {
                mistakes.push(format!("{file}:{line}: {group}{number} comes without {group}{place}"));
                break;
            }
        }
    }
    mistakes
}

/// The group and the number of an id: `X4` is 4 of `X`.
fn id(text: &str) -> Option<(&str, usize)> {
    let (group, digits) = text.split_at(text.find(|character: char| character.is_ascii_digit())?);
    let is_group = !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_uppercase());
    let number = digits.parse().ok().filter(|number| *number > 0)?;
    (is_group && !digits.starts_with('0')).then_some((group, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mistakes of a page whose first row of ids is on line 3, and of a second page.
    fn mistakes(first: &[&str], second: &str) -> Vec<String> {
        let table = |rows: &[&str]| format!("| # | Decision |\n|---|---|\n{}", rows.join("\n"));
        check(&[("a.md".to_owned(), table(first)), ("b.md".to_owned(), table(&[second]))])
    }

    #[test]
    fn an_id_stands_once_in_all_pages() {
        let other_tables = "| X2 | c |\n\n| Row | Choice |\n|---|---|\n| X1 | d |";
        assert_eq!(mistakes(&["| X1 | a |", "| A1 | b |"], other_tables), [""; 0]);
        assert_eq!(
            mistakes(&["| X1 | a |", "| X1 | b |"], "| A1 | c |"),
            ["a.md:4: X1 is also on line 3 of a.md"]
        );
        assert_eq!(mistakes(&["| X1 | a |"], "| X1 | b |"), ["b.md:3: X1 is also on line 3 of a.md"]);
    }

    #[test]
    fn a_group_has_no_gap() {
        assert_eq!(
            mistakes(&["| X1 | a |", "| X3 | b |"], "| A2 | c |"),
            ["b.md:3: A2 comes without A1", "a.md:4: X3 comes without X2"]
        );
    }

    #[test]
    fn the_form_of_an_id_is_checked() {
        for wrong in ["X", "X01", "x1", "X0", "1", "X1a"] {
            assert_eq!(mistakes(&[&format!("| {wrong} | a |")], "| A1 | b |").len(), 1, "{wrong}");
        }
    }
}
