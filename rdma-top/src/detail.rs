//! One object in detail: every field of its report, and the reports of what it uses.
//!
//! The fields are those of the JSON text, so that those of a later version of tokio-rdma are among them.

use serde_json::Value;

use crate::rows::{Kind, Row};
use crate::source::Reading;
use crate::text::{clean, grouped, time, width, wrap};

/// The fields with numbers that are names.
const NAMES: [&str; 5] = ["id", "adapter", "connection", "number", "process"];

/// A report, or a part of one.
#[derive(Debug, PartialEq)]
pub(crate) struct Section {
    /// Its title.
    pub(crate) title: String,
    /// The names and the values of its fields.
    pub(crate) fields: Vec<(String, String)>,
}

/// Returns the report of an object, and those of the objects that it uses.
pub(crate) fn sections(row: &Row, readings: &[Reading]) -> Vec<Section> {
    let Some(reading) = readings.get(row.reading) else { return Vec::new() };
    let answer = match &reading.outcome {
        Ok(answer) => answer,
        Err(failure) => {
            let socket = ("socket".to_owned(), clean(&reading.path.to_string_lossy()).into_owned());
            let reason = ("reason".to_owned(), clean(&failure.to_string()).into_owned());
            return vec![Section { title: "process".to_owned(), fields: vec![socket, reason] }];
        }
    };
    // It was read before as a snapshot.
    let snapshot: Value = serde_json::from_slice(&answer.json).unwrap_or_default();
    let own = &snapshot[list(row.key.kind)][row.place];
    let mut sections = Vec::new();
    add(&mut sections, row.key.kind.name(), own);
    let id = match row.key.kind {
        Kind::Connection => own["id"].as_u64(),
        _ => own["connection"].as_u64(),
    };
    let find = |kind: Kind, field: &str, number: Option<u64>| {
        let reports = snapshot[list(kind)].as_array()?;
        number?;
        reports.iter().find(|report| report[field].as_u64() == number)
    };
    let mut adapter = own["adapter"].as_u64();
    for (kind, field) in
        [(Kind::Stream, "connection"), (Kind::Session, "connection"), (Kind::Connection, "id")]
    {
        if let Some(report) = find(kind, field, id).filter(|_| kind != row.key.kind) {
            add(&mut sections, kind.name(), report);
            adapter = adapter.or(report["adapter"].as_u64());
        }
    }
    if let Some(report) = find(Kind::Adapter, "id", adapter) {
        add(&mut sections, Kind::Adapter.name(), report);
    }
    sections
}

/// Returns the name of the list of a snapshot with objects of this kind.
fn list(kind: Kind) -> &'static str {
    match kind {
        Kind::Process => "",
        Kind::Adapter => "adapters",
        Kind::Listener => "listeners",
        Kind::Connection => "connections",
        Kind::Stream => "streams",
        Kind::Session => "sessions",
        Kind::Channel => "channels",
        Kind::CompletionQueue => "completion_queues",
        Kind::SharedReceiveQueue => "shared_receive_queues",
        Kind::Lane => "lanes",
    }
}

/// Adds a report, and a section for each part of it that has parts itself.
fn add(sections: &mut Vec<Section>, title: &str, report: &Value) {
    let Value::Object(report) = report else { return };
    let at = sections.len();
    sections.push(Section { title: title.to_owned(), fields: Vec::new() });
    for (name, value) in report {
        let label = clean(name).replace('_', " ");
        match value {
            Value::Object(parts) if !is_event(value) && !parts.is_empty() => {
                add(sections, &format!("{title}: {label}"), value);
            }
            Value::Array(parts) if parts.iter().any(Value::is_object) => {
                let mut lines = parts.iter().map(|part| text(name, part));
                let own = &mut sections[at].fields;
                own.extend(lines.next().map(|line| (label, line)));
                own.extend(lines.map(|line| (String::new(), line)));
            }
            _ => sections[at].fields.push((label, text(name, value))),
        }
    }
}

/// Returns whether a value is a name with the time since then.
fn is_event(value: &Value) -> bool {
    value.as_object().is_some_and(|value| value.len() == 2)
        && value["name"].is_string()
        && value["age"].is_f64()
}

/// Returns a value as a person reads it.
fn text(name: &str, value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::Bool(value) => if *value { "yes" } else { "no" }.to_owned(),
        // Times are the only numbers with a fraction.
        Value::Number(number) if number.is_f64() => {
            let seconds = number.as_f64().unwrap_or_default().clamp(0.0, f64::from(u32::MAX));
            let value = std::time::Duration::from_secs_f64(seconds);
            if seconds > 0.0 && seconds < 0.01 { format!("{} µs", value.as_micros()) } else { time(value) }
        }
        Value::Number(number) => match number.as_u64() {
            Some(value) if !NAMES.contains(&name) => grouped(value),
            _ => number.to_string(),
        },
        Value::String(value) => clean(value).into_owned(),
        Value::Array(values) if values.is_empty() => "–".to_owned(),
        Value::Array(values) => values.iter().map(|value| text(name, value)).collect::<Vec<_>>().join(", "),
        Value::Object(parts) => {
            let is_request = ["kind", "bytes", "age"].iter().all(|part| parts.contains_key(*part));
            if is_event(value) {
                format!("{}, {} ago", text("", &value["name"]), text("", &value["age"]))
            } else if is_request && parts.len() == 3 {
                let [kind, bytes, age] = ["kind", "bytes", "age"].map(|part| text("", &value[part]));
                format!("{kind} of {bytes} bytes, {age} ago")
            } else {
                let part =
                    |(name, value): (&String, &Value)| format!("{} {}", clean(name), text(name, value));
                parts.iter().map(part).collect::<Vec<_>>().join(", ")
            }
        }
    }
}

/// A line of the detail.
#[derive(Debug, PartialEq)]
pub(crate) enum Line {
    /// The title of a section.
    Title(String),
    /// The name of a field and its value, or what is left of the value.
    Field(String, String),
    /// An empty line.
    Empty,
}

/// Lays sections out in this number of columns: a value that does not fit goes on below itself.
pub(crate) fn lines(sections: &[Section], columns: usize) -> Vec<Line> {
    let names = sections.iter().flat_map(|section| &section.fields).map(|(name, _)| width(name));
    let indent = names.max().unwrap_or_default().min(columns / 2) + 2;
    let mut lines = Vec::new();
    for section in sections {
        if !lines.is_empty() {
            lines.push(Line::Empty);
        }
        lines.push(Line::Title(section.title.clone()));
        for (name, value) in &section.fields {
            let mut name = crate::text::fit(name, indent);
            for part in wrap(value, columns.saturating_sub(indent)) {
                lines.push(Line::Field(name, part));
                name = " ".repeat(indent);
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{rows, samples};

    /// Returns the detail of the object at this line, as text.
    fn shown(readings: &[Reading], at: usize, columns: usize) -> String {
        let sections = sections(&rows::rows(readings)[at], readings);
        let mut shown = String::new();
        for line in lines(&sections, columns) {
            shown += &match line {
                Line::Title(title) => format!("== {title}\n"),
                Line::Field(name, value) => format!("{name}{value}\n"),
                Line::Empty => "\n".to_owned(),
            };
        }
        shown
    }

    #[test]
    fn a_stream_has_its_connection_queue_pair_requests_and_tcp() {
        let shown = shown(&samples::readings(), 4, 80);
        for part in [
            "== stream\nconnection           4\nage                  30.0s\n",
            "bytes sent           2,097,152\n",
            "read waits           –\nwrite waits          12.0s\n",
            "\n== connection\n",
            "last event           Established, 30.0s ago\n",
            "\n== connection: queue pair\n",
            "\n== connection: queue pair: sends\ndepth                64\n",
            "oldest               Send of 65,536 bytes, 12.0s ago\n",
            "\n== connection: tcp\nstate                ESTAB\nround trip           500 µs\n",
            "\n== adapter\nid                   1\nname                 lo\n",
        ] {
            assert!(shown.contains(part), "no {part:?} in:\n{shown}");
        }
    }

    #[test]
    fn long_values_go_on_below() {
        let shown = shown(&samples::readings(), 3, 40);
        let expected = "waits for   accept pending: the peer has\n            not completed for 5.0 s\n";
        assert!(shown.contains(expected), "{shown}");
        assert!(shown.lines().all(|line| width(line) <= 40), "{shown}");
    }

    #[test]
    fn fields_of_later_versions_are_shown() {
        let mut readings = samples::readings();
        if let Ok(answer) = &mut readings[0].outcome {
            let json = String::from_utf8(answer.json.clone()).expect("text");
            answer.json = json.replace("\"room\":0", "\"room\":0,\"new_count\":70000").into_bytes();
        }
        let shown = shown(&readings, 4, 80);
        assert!(shown.contains("new count            70,000\n"), "{shown}");
    }

    #[test]
    fn no_detail_has_a_control_character() {
        let readings = samples::hostile();
        for at in 0..rows::rows(&readings).len() {
            let shown = shown(&readings, at, 80);
            assert!(!shown.replace('\n', "").contains(char::is_control), "{shown:?}");
            assert!(!shown.is_empty());
        }
    }
}
