//! Reads the feature table from its page: the rows of every table whose first two columns are `Id` and `State`.

use std::collections::BTreeMap;

/// The page, from the root of the repository.
pub(crate) const PAGE: &str = "docs/spec/features.md";

/// The words before the reason of a row that is out.
const REASON: &str = "Not offered: ";

/// The state of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// A test must cite it.
    Required,
    /// It is not offered; the row gives the reason.
    Out,
    /// It is accepted and not built yet.
    Waiting,
}

impl State {
    /// Every state, in the order of the summary.
    const ALL: [Self; 3] = [Self::Required, Self::Out, Self::Waiting];

    /// The word in the column `State`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Out => "out",
            Self::Waiting => "waiting",
        }
    }

    /// The state with this name.
    fn read(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// A row of the feature table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Its name, such as `CM-19`.
    pub(crate) id: String,
    /// Its line in the page; the first is 1.
    pub(crate) line: usize,
    /// Whether it must be cited.
    pub(crate) state: State,
    /// Why it is out; empty in any other state.
    pub(crate) reason: String,
}

/// The feature table: all rows, in the order of the page.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// The rows.
    pub(crate) rows: Vec<Row>,
}

impl Table {
    /// Reads a page.
    ///
    /// # Errors
    /// Every mistake as `file:line: sentence`.
    pub(crate) fn read(page: &str) -> Result<Self, Vec<String>> {
        let (mut table, mut mistakes) = (Self::default(), Vec::new());
        let mut width = None;
        for (line, text) in (1..).zip(page.lines()) {
            let cells = cells(text);
            match (cells.as_slice(), width) {
                ([], _) => width = None,
                (["Id", "State", ..], _) => width = Some(cells.len()),
                (["Id", ..], _) => mistakes.push((line, "the second column is not State".to_owned())),
                ([first, ..], _) if first.trim_matches(':').starts_with("---") => {}
                (_, None) => {}
                (cells, Some(width)) => match table.row(line, cells, width) {
                    Ok(row) => table.rows.push(row),
                    Err(sentence) => mistakes.push((line, sentence)),
                },
            }
        }
        // A row that cannot be read would also be a gap.
        if mistakes.is_empty() {
            mistakes = table.gaps();
            mistakes.sort();
        }
        if mistakes.is_empty() { Ok(table) } else { Err(mistakes.iter().map(located).collect()) }
    }

    /// Reads one row of a table that has so many columns.
    fn row(&self, line: usize, cells: &[&str], width: usize) -> Result<Row, String> {
        let (id, state) = (cells[0], cells.get(1).copied().unwrap_or_default());
        if number(id).is_none() {
            return Err(format!("`{id}` is not a row id, such as CM-09"));
        }
        if let Some(first) = self.get(id) {
            return Err(format!("{id} occurs twice, first on line {}", first.line));
        }
        if cells.len() != width {
            return Err(format!("{id} has {} cells, and its table {width} columns", cells.len()));
        }
        let state = State::read(state).ok_or_else(|| format!("{id} has the unknown state `{state}`"))?;
        let reason = cells.iter().find_map(|cell| cell.strip_prefix(REASON)).unwrap_or_default();
        match (state, reason) {
            (State::Out, "") => Err(format!("{id} is out without a reason: a cell that begins `{REASON}`")),
            (State::Required | State::Waiting, reason) if !reason.is_empty() => {
                Err(format!("{id} is {}, and a cell says that it is not offered", state.name()))
            }
            _ => Ok(Row { id: id.to_owned(), line, state, reason: reason.to_owned() }),
        }
    }

    /// The rows whose group lacks the number before theirs.
    fn gaps(&self) -> Vec<(usize, String)> {
        let mut groups: BTreeMap<&str, BTreeMap<usize, &Row>> = BTreeMap::new();
        for row in &self.rows {
            if let Some((group, number)) = number(&row.id) {
                groups.entry(group).or_default().insert(number, row);
            }
        }
        let mut gaps = Vec::new();
        for (group, rows) in groups {
            let before = std::iter::once(0).chain(rows.keys().copied());
            for (before, (number, row)) in before.zip(&rows) {
                if *number != before + 1 {
                    gaps.push((row.line, format!("{} comes without {group}-{:02}", row.id, number - 1)));
                }
            }
        }
        gaps
    }

    /// The row with this id.
    pub(crate) fn get(&self, id: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.id == id)
    }

    /// How many rows there are in each state and in all.
    pub(crate) fn summary(&self) -> String {
        let count = |state: State| self.rows.iter().filter(|row| row.state == state).count();
        let counts = State::ALL.map(|state| format!("{} {}", count(state), state.name()));
        format!("{}: {} rows", counts.join(", "), self.rows.len())
    }
}

/// The cells of a line of a table; none of any other line.
pub(super) fn cells(line: &str) -> Vec<&str> {
    let inner = line.trim().strip_prefix('|').and_then(|rest| rest.strip_suffix('|'));
    inner.map_or_else(Vec::new, |inner| inner.split('|').map(str::trim).collect())
}

/// The group and the number of a row id: `CM-09` is 9 of `CM`.
fn number(id: &str) -> Option<(&str, usize)> {
    let (group, digits) = id.split_once('-')?;
    let letters = (2..=3).contains(&group.len()) && group.bytes().all(|byte| byte.is_ascii_uppercase());
    let is_number = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.parse().ok().filter(|number| *number > 0)?;
    (letters && is_number).then_some((group, number))
}

/// A mistake with the page and the line before it.
fn located((line, sentence): &(usize, String)) -> String {
    format!("{PAGE}:{line}: {sentence}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// The mistakes in a table with these rows, of which the first is on line 3, without the name of the page.
    fn mistakes(rows: &[&str]) -> Vec<String> {
        let page = format!("| Id | State | Feature |\n|---|---|---|\n{}\n", rows.join("\n"));
        let mistakes = Table::read(&page).err().unwrap_or_default();
        mistakes.iter().map(|one| one.strip_prefix(PAGE).expect("the page comes first").to_owned()).collect()
    }

    #[test]
    fn rows_are_read_from_feature_tables_only() {
        let page = "# T\n| Letter | State |\n|---|---|\n| AD-09 | wrong |\n\ntext with AD-08\n\
            | Id | State | What | Test |\n|---|---|---|---|\n| AD-01 | required | a | |\n\
            | AD-02 | out | b | Not offered: no use. |\n\n| Id | State | What |\n|:---|---|---|\n| IO-01 | waiting | c |\n";
        let table = Table::read(page).expect("a sound page");
        let show = |row: &Row| format!("{} {} {:?} {}", row.line, row.id, row.state, row.reason);
        let want = ["9 AD-01 Required ", "10 AD-02 Out no use.", "14 IO-01 Waiting "];
        assert_eq!(table.rows.iter().map(show).collect::<Vec<_>>(), want);
        assert_eq!(table.summary(), "1 required, 1 out, 1 waiting: 3 rows");
        assert!(table.get("AD-02").is_some() && table.get("AD-03").is_none());
    }

    #[test]
    fn a_row_occurs_once() {
        let rows = ["| AD-01 | required | a |", "| AD-01 | required | b |"];
        assert_eq!(mistakes(&rows), [":4: AD-01 occurs twice, first on line 3"]);
    }

    #[test]
    fn groups_are_numbered_without_a_gap() {
        let rows = ["| AD-02 | required | a |", "| AD-01 | waiting | b |", "| IO-02 | required | c |"];
        assert_eq!(mistakes(&rows), [":5: IO-02 comes without IO-01"]);
        let rows = ["| AD-01 | required | a |", "| AD-04 | required | b |"];
        assert_eq!(mistakes(&rows), [":4: AD-04 comes without AD-03"]);
    }

    #[test]
    fn states_are_known_and_out_has_a_reason() {
        let rows = ["| AD-01 | done | a |", "| AD-02 | | a |"];
        let want = [":3: AD-01 has the unknown state `done`", ":4: AD-02 has the unknown state ``"];
        assert_eq!(mistakes(&rows), want);
        let rows = ["| AD-01 | out | Not offered: |"];
        let want = ":3: AD-01 is out without a reason: a cell that begins `Not offered: `";
        assert_eq!(mistakes(&rows), [want]);
        let rows = ["| AD-01 | waiting | Not offered: no. |"];
        assert_eq!(mistakes(&rows), [":3: AD-01 is waiting, and a cell says that it is not offered"]);
    }

    #[test]
    fn the_form_of_a_table_is_checked() {
        let rows = ["| CM-1 | required | a |", "| AD-01 | required | a | b |", "| AD-00 | out | a |"];
        let want = [
            ":3: `CM-1` is not a row id, such as CM-09",
            ":4: AD-01 has 4 cells, and its table 3 columns",
            ":5: `AD-00` is not a row id, such as CM-09",
        ];
        assert_eq!(mistakes(&rows), want);
        let wrong = Table::read("| Id | What |\n|---|---|\n").expect_err("no column State");
        assert_eq!(wrong, [format!("{PAGE}:1: the second column is not State")]);
    }

    #[test]
    fn the_page_of_the_repository_is_sound() {
        let page = fs::read_to_string(crate::root().join(PAGE)).expect("the page can be read");
        let table = Table::read(&page).expect("the page has no mistakes");
        // Rows are added, and never removed.
        assert!(table.rows.len() >= 247, "{}", table.summary());
    }
}
