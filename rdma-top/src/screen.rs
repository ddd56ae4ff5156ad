//! The drawing of the display.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use crate::app::{App, Detail};
use crate::detail;
use crate::order::Column;
use crate::rows::{Kind, Row};
use crate::text::{cut, fit, width, wrap};

/// The columns that the sentences have at least. Others are left out for them.
const SENTENCE: usize = 30;

/// The columns that are left out where there is no room, the first first.
const OPTIONAL: [Column; 3] = [Column::Local, Column::Bytes, Column::Peer];

/// What is said if there is no process.
pub(crate) const HINT: &str = "\
no process serves snapshots

A program does so with the feature `inspect` of tokio-rdma, and one line where it begins:

    let _server = tokio_rdma::inspect::Server::start();

Processes of another user: name their sockets as arguments.";

/// The keys of the table.
const TABLE_KEYS: &[(&str, &str)] = &[
    ("↑↓", "move"),
    ("←→", "sort by"),
    ("r", "reverse"),
    ("f", "kind"),
    ("w", "only waiting"),
    ("Enter", "details"),
    ("q", "quit"),
];

/// The keys of the detail.
const DETAIL_KEYS: &[(&str, &str)] = &[("↑↓", "scroll"), ("Enter", "back"), ("q", "quit")];

/// Draws the display.
pub(crate) fn draw(frame: &mut Frame<'_>, app: &mut App) {
    let keys = if app.detail.is_some() { DETAIL_KEYS } else { TABLE_KEYS };
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(key_line(keys), foot);
    if let Some(detail) = &mut app.detail {
        draw_detail(frame, head, body, detail);
        return;
    }
    frame.render_widget(summary(app, head.width.into()), head);
    if app.rows.is_empty() {
        let text = match (app.is_new, app.counts().0) {
            (true, _) => "reading",
            (false, 0) => HINT,
            (false, _) => "nothing that the filter shows: Esc shows all",
        };
        let columns = usize::from(body.width).saturating_sub(2);
        let fitted = |line: &str| match width(line) <= columns {
            true => vec![line.to_owned()],
            false => wrap(line, columns),
        };
        let lines: Vec<_> = text.lines().flat_map(fitted).map(Line::from).collect();
        let inner = Rect { x: body.x + 1, width: body.width.saturating_sub(1), ..body };
        frame.render_widget(Paragraph::new(lines), inner);
        return;
    }
    let [table, marked] = Layout::vertical([Constraint::Fill(1), Constraint::Length(3)]).areas(body);
    draw_table(frame, table, app);
    draw_marked(frame, marked, &app.rows[app.marked]);
}

/// Returns the line with the keys.
fn key_line(keys: &[(&'static str, &'static str)]) -> Line<'static> {
    let spans = keys.iter().flat_map(|(key, effect)| {
        [Span::styled(format!(" {key}"), Style::new().bold()), Span::raw(format!(" {effect} "))]
    });
    Line::from_iter(spans)
}

/// Returns the first line: how much there is, and what is shown.
fn summary(app: &App, columns: usize) -> Line<'static> {
    let (processes, waiting) = app.counts();
    let count = |number: usize, noun: &str| format!("{number} {noun}");
    let process = if processes == 1 { "process" } else { "processes" };
    let mut text = format!(
        " rdma-top: {}, {}, {} ",
        count(processes, process),
        count(app.objects(), if app.objects() == 1 { "object" } else { "objects" }),
        count(waiting, if waiting == 1 { "waits" } else { "wait" }),
    );
    let kind = app.filter.kind.map(|kind| format!(" only {}", kind.name()));
    let waits = app.filter.is_waiting.then(|| " only waiting".to_owned());
    let shown: Vec<_> = kind.into_iter().chain(waits).collect();
    if !shown.is_empty() {
        text += &format!("| shown:{} ", shown.join(","));
    }
    Line::styled(fit(&text, columns), Style::new().add_modifier(Modifier::REVERSED))
}

/// Returns the columns that fit, with their widths, from the widths of all.
fn columns(widths: &[usize; Column::ALL.len()], columns: usize) -> Vec<(Column, usize)> {
    // One that is empty is not missed.
    let all = Column::ALL.into_iter().zip(widths);
    let some = all.filter(|&(column, &width)| width > 0 || !OPTIONAL.contains(&column));
    let mut fitting: Vec<_> = some.map(|(column, &width)| (column, limited(column, width))).collect();
    let room = |fitting: &[(Column, usize)]| {
        let others = fitting.iter().filter(|(column, _)| *column != Column::WaitsFor);
        columns.saturating_sub(others.map(|(_, width)| width + 1).sum())
    };
    for left_out in OPTIONAL {
        if room(&fitting) < SENTENCE {
            fitting.retain(|(column, _)| *column != left_out);
        }
    }
    let rest = room(&fitting);
    if let Some((_, width)) = fitting.last_mut() {
        *width = rest;
    }
    fitting
}

/// Returns the width that a column gets.
fn limited(column: Column, longest: usize) -> usize {
    let most = match column {
        Column::Process => 18,
        Column::Id => 8,
        Column::State => 13,
        Column::Local | Column::Peer => 28,
        _ => 12,
    };
    // The head of the chosen column has an arrow.
    longest.min(most).max(width(column.head()) + 1)
}

/// Draws the table.
fn draw_table(frame: &mut Frame<'_>, area: Rect, app: &mut App) {
    let fitting = columns(&app.widths, area.width.into());
    app.height = usize::from(area.height).saturating_sub(1).max(1);
    let least = (app.marked + 1).saturating_sub(app.height);
    let most = app.marked.min(app.rows.len().saturating_sub(app.height));
    app.first = app.first.clamp(least, most.max(least));
    let arrow = if app.order.is_reversed { "▲" } else { "▼" };
    let heads = fitting.iter().map(|&(column, columns)| {
        let chosen = column == app.order.column;
        let text = format!("{}{}", column.head(), if chosen { arrow } else { "" });
        let style = if chosen { Style::new().bold().underlined() } else { Style::new().bold() };
        [Span::styled(cell(column, &text, columns), style), Span::raw(" ")]
    });
    let mut lines = vec![Line::from_iter(heads.flatten())];
    for (at, row) in app.rows.iter().enumerate().skip(app.first).take(app.height) {
        let cells = fitting.iter().flat_map(|&(column, columns)| {
            [Span::styled(cell(column, &column.of(row), columns), colour(column, row)), Span::raw(" ")]
        });
        let line = Line::from_iter(cells);
        lines.push(if at == app.marked { line.reversed() } else { line });
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// Returns the text of a cell, as wide as its column.
fn cell(column: Column, text: &str, columns: usize) -> String {
    if column.is_number() {
        let text = cut(text, columns);
        let missing = columns.saturating_sub(width(&text));
        format!("{:missing$}{text}", "")
    } else {
        fit(text, columns)
    }
}

/// Returns the colour of a cell, which only underlines what the text says.
fn colour(column: Column, row: &Row) -> Style {
    let waits_long = row.since.is_some_and(|since| since.as_secs() >= 5);
    match column {
        _ if row.key.kind == Kind::Process => Style::new().fg(Color::Red),
        Column::WaitsFor | Column::Since if row.waits_for.is_some() && waits_long => {
            Style::new().fg(Color::Yellow)
        }
        _ => Style::new(),
    }
}

/// Returns the name of an object, for a title.
fn name(row: &Row) -> String {
    match row.key.kind {
        Kind::Process => format!("process {}", row.process),
        kind => format!("{} {} of process {}", kind.name(), row.key.id, row.process),
    }
}

/// Draws what there was no room for in the marked line.
fn draw_marked(frame: &mut Frame<'_>, area: Rect, row: &Row) {
    let columns = usize::from(area.width);
    let ends = match (row.local.as_str(), row.peer.as_str()) {
        ("", "") => String::new(),
        (local, "") => format!(": {local}"),
        ("", peer) => format!(": to {peer}"),
        (local, peer) => format!(": {local} to {peer}"),
    };
    let kind = row.key.kind.name();
    let name =
        if row.key.kind == Kind::Process { String::new() } else { format!("{kind} {} of ", row.key.id) };
    let first = format!("─ {name}process {}{ends} ", row.process);
    let first = cut(&first, columns);
    let rule = "─".repeat(columns.saturating_sub(width(&first)));
    let mut lines = vec![Line::from(format!("{first}{rule}"))];
    let sentence = row.waits_for.as_deref().unwrap_or("waits for nothing");
    let mut parts = wrap(sentence, columns.saturating_sub(2));
    if parts.len() > 2 {
        let rest = parts.split_off(1).join(" ");
        parts.push(cut(&rest, columns.saturating_sub(2)).into_owned());
    }
    lines.extend(parts.into_iter().map(|part| Line::from(format!("  {part}"))));
    frame.render_widget(Paragraph::new(lines), area);
}

/// Draws one object.
fn draw_detail(frame: &mut Frame<'_>, head: Rect, body: Rect, detail: &mut Detail) {
    let row = &detail.row;
    let gone = if detail.is_gone { " (gone: these are its last reports)" } else { "" };
    let title = format!(" {}{gone}", name(row));
    let title = fit(&title, head.width.into());
    frame.render_widget(Line::styled(title, Style::new().add_modifier(Modifier::REVERSED)), head);
    let columns = usize::from(body.width).saturating_sub(2);
    let mut lines = Vec::new();
    if let Some(sentence) = &row.waits_for {
        let style = Style::new().fg(Color::Yellow).bold();
        let parts = wrap(&format!("waits for: {sentence}"), columns);
        lines.extend(parts.into_iter().map(|part| Line::styled(format!(" {part}"), style)));
        lines.push(Line::default());
    }
    lines.extend(detail::lines(&detail.sections, columns).into_iter().map(|line| match line {
        detail::Line::Title(title) => Line::styled(format!(" {title}"), Style::new().bold().underlined()),
        detail::Line::Field(name, value) => {
            Line::from(vec![Span::raw(" "), Span::styled(name, Style::new().dim()), Span::raw(value)])
        }
        detail::Line::Empty => Line::default(),
    }));
    let height = usize::from(body.height);
    detail.scroll = detail.scroll.min(lines.len().saturating_sub(height));
    let shown: Vec<_> = lines.into_iter().skip(detail.scroll).take(height).collect();
    frame.render_widget(Paragraph::new(shown), body);
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyCode;

    use super::*;
    use crate::samples;

    /// Returns the lines of a screen after these keys.
    fn screen(columns: u16, lines: u16, app: &mut App, keys: &[KeyCode]) -> Vec<String> {
        keys.iter().for_each(|&code| app.key(code.into()));
        let mut terminal = Terminal::new(TestBackend::new(columns, lines)).expect("a terminal");
        terminal.draw(|frame| draw(frame, app)).expect("drawn");
        let buffer = terminal.backend().buffer().clone();
        let line =
            |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
        buffer.content.chunks(columns.into()).map(|cells| line(cells).trim_end().to_owned()).collect()
    }

    /// Returns a display of the sample.
    fn app() -> App {
        let mut app = App::new();
        app.update(samples::readings(), Instant::now());
        app
    }

    #[test]
    fn a_narrow_terminal_has_the_sentences() {
        let lines = screen(80, 24, &mut app(), &[KeyCode::Down; 3]);
        assert_eq!(
            lines[..6],
            [
                " rdma-top: 2 processes, 6 objects, 6 wait",
                "PROCESS  KIND       ID  STATE      SINCE WAITS FOR▼",
                "18       process        silent           no answer in time: the process is stop…",
                "17 kv    listener   #1  listening  30.0s no peer asks",
                "17 kv    connection 4   connected  30.0s socket full: the peer has read nothing…",
                "17 kv    stream     4   write      12.0s no credit: the program of the peer has…",
            ]
        );
        assert_eq!(
            lines[20..],
            [
                "─ stream 4 of process 17 kv: 127.0.0.1:7000 to 127.0.0.1:41000 ─────────────────",
                "  no credit: the program of the peer has not read 2,097,152 bytes",
                "",
                " ↑↓ move  ←→ sort by  r reverse  f kind  w only waiting  Enter details  q quit",
            ]
        );
    }

    #[test]
    fn a_wide_terminal_has_every_column() {
        let lines = screen(200, 50, &mut app(), &[]);
        assert_eq!(
            lines[1..6],
            [
                "PROCESS  KIND       ID  STATE      SINCE LOCAL          PEER              OUT/IN WAITS FOR▼",
                "18       process        silent                                                   no answer in time: the process is stopped, or its runtime is blocked",
                "17 kv    listener   #1  listening  30.0s 127.0.0.1:7000                          no peer asks",
                "17 kv    connection 4   connected  30.0s 127.0.0.1:7000 127.0.0.1:41000 2.0M/400 socket full: the peer has read nothing for 12.0 s, and its window is closed",
                "17 kv    stream     4   write      12.0s 127.0.0.1:7000 127.0.0.1:41000  2.0M/12 no credit: the program of the peer has not read 2,097,152 bytes",
            ]
        );
    }

    #[test]
    fn the_detail_has_the_whole_sentence() {
        let mut app = app();
        let lines = screen(80, 24, &mut app, &[KeyCode::Down, KeyCode::Down, KeyCode::Enter]);
        assert_eq!(lines[0], " connection 4 of process 17 kv");
        let sentence = "waits for: socket full: the peer has read nothing for 12.0 s, and its window";
        assert_eq!(lines[1..4], [format!(" {sentence}"), " is closed".to_owned(), String::new()]);
        assert_eq!(lines[4], " connection");
        assert_eq!(lines[23], " ↑↓ scroll  Enter back  q quit");
        // To the end and no further.
        let lines = screen(80, 24, &mut app, &[KeyCode::End]);
        assert!(
            lines[22].starts_with(" waits for") && lines.iter().any(|line| line == " adapter"),
            "{lines:#?}"
        );
        app.update(Vec::new(), Instant::now());
        let lines = screen(80, 24, &mut app, &[]);
        assert!(lines[0].ends_with("(gone: these are its last reports)"), "{lines:#?}");
    }

    #[test]
    fn without_a_process_the_switch_is_named() {
        let mut app = App::new();
        assert_eq!(screen(80, 24, &mut app, &[])[1], " reading");
        app.update(Vec::new(), Instant::now());
        let text = screen(80, 24, &mut app, &[]).join("\n");
        assert!(
            text.contains("no process serves snapshots") && text.contains("inspect::Server::start()"),
            "{text}"
        );
    }

    #[test]
    fn the_marked_line_is_on_the_screen() {
        let mut app = app();
        // Two lines of the table.
        for (key, shown) in [(KeyCode::End, "17 kv    adapter"), (KeyCode::Home, "18       process")] {
            let lines = screen(80, 8, &mut app, &[]);
            assert_eq!(lines.len(), 8);
            let lines = screen(80, 8, &mut app, &[key]);
            assert!(lines[2..4].iter().any(|line| line.starts_with(shown)), "{lines:#?}");
        }
    }

    #[test]
    fn no_size_is_too_small() {
        for (columns, lines) in [(1, 1), (1, 50), (200, 1), (10, 4), (40, 10)] {
            let mut app = app();
            screen(columns, lines, &mut app, &[KeyCode::End]);
            screen(columns, lines, &mut app, &[KeyCode::Enter]);
            app.update(Vec::new(), Instant::now());
            screen(columns, lines, &mut app, &[KeyCode::Enter]);
        }
    }
}
