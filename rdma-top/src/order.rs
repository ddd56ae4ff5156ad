//! The columns, the order of the lines, and the lines that are shown.

use std::borrow::Cow;
use std::cmp::{Ordering, Reverse};

use crate::rows::{Kind, Row};
use crate::text;

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    /// The number and the program of the process.
    Process,
    /// The kind of the object.
    Kind,
    /// Its number or name.
    Id,
    /// Its state.
    State,
    /// The time in this state.
    Since,
    /// The local address.
    Local,
    /// The peer.
    Peer,
    /// The bytes that were sent and received.
    Bytes,
    /// Why it makes no progress.
    WaitsFor,
}

impl Column {
    /// Every column, from left to right.
    pub(crate) const ALL: [Self; 9] = [
        Self::Process,
        Self::Kind,
        Self::Id,
        Self::State,
        Self::Since,
        Self::Local,
        Self::Peer,
        Self::Bytes,
        Self::WaitsFor,
    ];

    /// Returns its head.
    pub(crate) fn head(self) -> &'static str {
        match self {
            Self::Process => "PROCESS",
            Self::Kind => "KIND",
            Self::Id => "ID",
            Self::State => "STATE",
            Self::Since => "SINCE",
            Self::Local => "LOCAL",
            Self::Peer => "PEER",
            Self::Bytes => "OUT/IN",
            Self::WaitsFor => "WAITS FOR",
        }
    }

    /// Returns the width of the longest of its texts, without its head.
    pub(crate) fn width<R: AsRef<Row>>(self, rows: &[R]) -> usize {
        rows.iter().map(|row| text::width(&self.of(row.as_ref()))).max().unwrap_or_default()
    }

    /// Returns whether numbers stand in it, on the right.
    pub(crate) fn is_number(self) -> bool {
        matches!(self, Self::Since | Self::Bytes)
    }

    /// Returns what a line has in it.
    pub(crate) fn of(self, row: &Row) -> Cow<'_, str> {
        Cow::Borrowed(match self {
            Self::Process => &row.process,
            Self::Kind => row.key.kind.name(),
            Self::Id => &row.key.id,
            Self::State => &row.state,
            Self::Since => return Cow::Owned(row.since.map(text::time).unwrap_or_default()),
            Self::Local => &row.local,
            Self::Peer => &row.peer,
            Self::Bytes => {
                let both = |(sent, received)| format!("{}/{}", text::bytes(sent), text::bytes(received));
                return Cow::Owned(row.bytes.map(both).unwrap_or_default());
            }
            Self::WaitsFor => row.waits_for.as_deref().unwrap_or_default(),
        })
    }

    /// Compares two lines: times and bytes from the largest, those that wait from the longest.
    fn compare(self, one: &Row, other: &Row) -> Ordering {
        match self {
            Self::Process => one.number.cmp(&other.number),
            Self::Id => {
                let number =
                    |row: &Row| row.key.id.trim_start_matches('#').parse::<u64>().unwrap_or(u64::MAX);
                number(one).cmp(&number(other)).then_with(|| one.key.id.cmp(&other.key.id))
            }
            Self::Kind => one.key.kind.cmp(&other.key.kind),
            Self::Since => other.since.cmp(&one.since),
            Self::Bytes => {
                let all = |row: &Row| row.bytes.map(|(sent, received)| sent.saturating_add(received));
                all(other).cmp(&all(one))
            }
            Self::WaitsFor => {
                // A process that does not answer hides what waits in it. The ages of objects that do not wait say nothing.
                let is_process = |row: &Row| row.key.kind == Kind::Process;
                let since = |row: &Row| row.waits_for.is_some().then_some(Reverse(row.since));
                let key = |row: &Row| (row.waits_for.is_none(), !is_process(row), since(row));
                key(one).cmp(&key(other)).then_with(|| one.key.kind.cmp(&other.key.kind))
            }
            Self::State | Self::Local | Self::Peer => self.of(one).cmp(&self.of(other)),
        }
    }
}

/// The order of the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    /// The column by which they are ordered.
    pub(crate) column: Column,
    /// The order is the other way round.
    pub(crate) is_reversed: bool,
}

impl Default for Order {
    fn default() -> Self {
        Self { column: Column::WaitsFor, is_reversed: false }
    }
}

impl Order {
    /// Chooses another column: so many to the right.
    pub(crate) fn shift(&mut self, by: isize) {
        let at = Column::ALL.iter().position(|&column| column == self.column).unwrap_or_default();
        let count = Column::ALL.len() as isize;
        let at = (at as isize + by).rem_euclid(count) as usize;
        *self = Self { column: Column::ALL[at], is_reversed: false };
    }

    /// Sorts lines. Those that the column does not tell apart stand in the order of the processes.
    pub(crate) fn sort<R: AsRef<Row>>(self, rows: &mut [R]) {
        rows.sort_by(|one, other| {
            let order = self.column.compare(one.as_ref(), other.as_ref());
            if self.is_reversed { order.reverse() } else { order }
        });
    }
}

/// The lines that are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Filter {
    /// Only this kind.
    pub(crate) kind: Option<Kind>,
    /// Only those that wait.
    pub(crate) is_waiting: bool,
}

impl Filter {
    /// Returns whether a line is shown. That of a process that cannot be read always is.
    pub(crate) fn shows(self, row: &Row) -> bool {
        let is_kind = self.kind.is_none_or(|kind| kind == row.key.kind || row.key.kind == Kind::Process);
        is_kind && (!self.is_waiting || row.waits_for.is_some())
    }

    /// Chooses the next kind of which there is an object, or all.
    pub(crate) fn next_kind<R: AsRef<Row>>(&mut self, rows: &[R]) {
        let is_there = |kind: &Kind| rows.iter().any(|row| row.as_ref().key.kind == *kind);
        let after = |own| Kind::ALL.iter().skip_while(move |&&kind| kind != own).skip(1);
        self.kind = match self.kind {
            None => Kind::ALL.iter().find(|kind| is_there(kind)),
            Some(own) => after(own).find(|kind| is_there(kind)),
        }
        .copied();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows;
    use crate::samples;

    /// Returns the kinds and names of lines.
    fn names(rows: &[Row]) -> Vec<String> {
        rows.iter().map(|row| format!("{} {}", row.key.kind.name(), row.key.id)).collect()
    }

    /// Returns the lines of the sample in this order.
    fn sorted(column: Column, is_reversed: bool) -> Vec<String> {
        let mut rows = rows::rows(&samples::readings());
        Order { column, is_reversed }.sort(&mut rows);
        names(&rows)
    }

    #[test]
    fn those_that_wait_longest_come_first() {
        let expected =
            ["process ", "listener #1", "connection 4", "stream 4", "connection 5", "cq #1", "adapter 1"];
        assert_eq!(sorted(Column::WaitsFor, false), expected);
        assert_eq!(sorted(Column::WaitsFor, true)[0], "adapter 1");
    }

    #[test]
    fn each_column_orders_the_lines() {
        assert_eq!(sorted(Column::Bytes, false)[..2], ["connection 4", "stream 4"]);
        assert_eq!(sorted(Column::Since, false)[0], "adapter 1");
        assert_eq!(sorted(Column::Process, true)[0], "process ");
        assert_eq!(sorted(Column::Id, false).last().map(String::as_str), Some("process "));
        assert_eq!(sorted(Column::Kind, false)[..2], ["process ", "adapter 1"]);
        assert_eq!(sorted(Column::State, false)[0], "cq #1");
        assert_eq!(sorted(Column::Peer, true)[0], "connection 5");
        assert_eq!(sorted(Column::Local, true)[0], "adapter 1");
    }

    #[test]
    fn columns_are_chosen_round_and_round() {
        let mut order = Order { column: Column::WaitsFor, is_reversed: true };
        order.shift(1);
        assert_eq!(order, Order { column: Column::Process, is_reversed: false });
        order.shift(-2);
        assert_eq!(order.column, Column::Bytes);
    }

    #[test]
    fn the_filter_goes_through_the_kinds_that_there_are() {
        let rows = rows::rows(&samples::readings());
        let mut filter = Filter::default();
        let mut seen = Vec::new();
        for _ in 0..7 {
            filter.next_kind(&rows);
            seen.push(filter.kind.map_or("all", Kind::name));
        }
        assert_eq!(seen, ["connection", "stream", "listener", "cq", "adapter", "process", "all"]);
        let shown =
            |filter: Filter| names(&rows.iter().filter(|row| filter.shows(row)).cloned().collect::<Vec<_>>());
        assert_eq!(shown(Filter { kind: Some(Kind::Stream), is_waiting: false }), ["stream 4", "process "]);
        assert_eq!(shown(Filter { kind: None, is_waiting: true }).len(), 6);
        assert_eq!(shown(Filter { kind: Some(Kind::Adapter), is_waiting: true }), ["process "]);
    }
}
