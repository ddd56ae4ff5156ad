//! The table as plain text, and the snapshots as JSON.

use std::fmt::Write as _;

use crate::order::{Column, Order};
use crate::rows;
use crate::source::Reading;
use crate::text::{fit, is_hidden, width};

/// Returns a table with all that there is, and nothing cut.
pub(crate) fn table(readings: &[Reading]) -> String {
    let mut rows = rows::rows(readings);
    Order::default().sort(&mut rows);
    let widths = Column::ALL.map(|column| column.width(&rows).max(width(column.head())));
    let mut table = String::new();
    let mut line = |text: &dyn Fn(Column) -> String| {
        let mut line = String::new();
        for (column, &columns) in Column::ALL.into_iter().zip(&widths) {
            let text = text(column);
            if column.is_number() {
                let _ = write!(line, "{text:>columns$}  ");
            } else {
                line += &fit(&text, columns);
                line += "  ";
            }
        }
        table += line.trim_end();
        table.push('\n');
    };
    line(&|column| column.head().to_owned());
    for row in &rows {
        line(&|column| column.of(row).into_owned());
    }
    table
}

/// Returns an array with each snapshot that was read, one a line, with the fields of later versions of tokio-rdma.
pub(crate) fn json(readings: &[Reading]) -> String {
    let snapshots = readings.iter().filter_map(|reading| reading.outcome.as_ref().ok());
    // Written anew: as it came, it could have anything between the tokens.
    let values = snapshots.filter_map(|answer| serde_json::from_slice(&answer.json).ok());
    let lines: Vec<_> = values.map(|value: serde_json::Value| escape(&value.to_string())).collect();
    if lines.is_empty() {
        return "[]\n".to_owned();
    }
    format!("[\n{}\n]\n", lines.join(",\n"))
}

/// Escapes the characters of a JSON text that JSON allows and a terminal obeys. They can only be in strings.
fn escape(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if is_hidden(character) {
            let _ = write!(text, "\\u{:04x}", u32::from(character));
        } else {
            text.push(character);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn the_table_has_whole_sentences() {
        let table = table(&samples::readings());
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 8);
        assert_eq!(
            lines[0],
            "PROCESS  KIND        ID  STATE      SINCE  LOCAL           PEER               OUT/IN  WAITS FOR"
        );
        assert_eq!(
            lines[4],
            "17 kv    stream      4   write      12.0s  127.0.0.1:7000  127.0.0.1:41000   2.0M/12  no credit: the program of the peer has not read 2,097,152 bytes"
        );
        assert!(lines[7].starts_with("17 kv    adapter     1   soft"), "{table}");
    }

    #[test]
    fn the_texts_have_no_control_characters() {
        let readings = samples::hostile();
        for text in [table(&readings), json(&readings)] {
            assert!(!text.replace('\n', "").contains(is_hidden), "{text:?}");
        }
        let value: serde_json::Value = serde_json::from_str(&json(&readings)).expect("JSON");
        // Nothing is lost by that.
        assert!(value[0]["program"].as_str().is_some_and(|text| text.contains("\u{1b}[2J\r\n\u{9b}")));
    }

    #[test]
    fn json_is_an_array_of_snapshots() {
        assert_eq!(json(&[]), "[]\n");
        let value: serde_json::Value = serde_json::from_str(&json(&samples::readings())).expect("JSON");
        assert_eq!(value.as_array().map(Vec::len), Some(1));
        assert_eq!(value[0]["streams"][0]["write_waits"], 12.0);
    }
}
