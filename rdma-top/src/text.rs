//! Text as a terminal shows it: without control characters, cut or wrapped to a width, and numbers that one reads at a glance.

use std::borrow::Cow;
use std::time::Duration;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Replaces characters that a terminal obeys, or that change the order of others: texts of another process are not trusted.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    if text.contains(is_hidden) {
        Cow::Owned(text.replace(is_hidden, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// Returns whether a character shows nothing by itself, and does something to what is around it.
pub(crate) fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Returns the number of columns that a text takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Cuts a text to this number of columns; an ellipsis stands for the rest.
pub(crate) fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let Some(room) = columns.checked_sub(1) else { return Cow::Borrowed("") };
    let (head, _) = split(text, room);
    Cow::Owned(format!("{}…", head.trim_end()))
}

/// Cuts a text to this number of columns, or fills it up with spaces.
pub(crate) fn fit(text: &str, columns: usize) -> String {
    let text = cut(text, columns);
    let missing = columns - width(&text).min(columns);
    format!("{text}{:missing$}", "")
}

/// Breaks a text into lines of at most this number of columns, between words where it can. Spaces at the beginning are lost.
pub(crate) fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = Vec::new();
    let mut line = String::new();
    for mut word in text.split(' ') {
        if !line.is_empty() && width(&line) + 1 + width(word) > columns {
            lines.push(std::mem::take(&mut line));
        }
        // A word that is longer than a line is broken, but its first part may not fit behind another word.
        while line.is_empty() && width(word) > columns {
            let (head, rest) = split(word, columns);
            if head.is_empty() {
                break;
            }
            lines.push(head.to_owned());
            word = rest;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

/// Splits a text behind the last character that fits in this number of columns.
fn split(text: &str, columns: usize) -> (&str, &str) {
    let mut taken = 0;
    for (at, character) in text.char_indices() {
        taken += character.width().unwrap_or(0);
        if taken > columns {
            return text.split_at(at);
        }
    }
    (text, "")
}

/// Returns a time in at most six columns.
pub(crate) fn time(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{}ms", time.as_millis()),
        1..60 => format!("{:.1}s", (time.as_secs_f64() * 10.0).floor() / 10.0),
        seconds @ 60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        seconds @ 3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        seconds => format!("{}d{:02}h", seconds / 86400, seconds % 86400 / 3600),
    }
}

/// Returns a number of bytes in at most five columns.
pub(crate) fn bytes(bytes: u64) -> String {
    if bytes < 1000 {
        return bytes.to_string();
    }
    let mut size = bytes as f64;
    let mut unit = ' ';
    for next in ['k', 'M', 'G', 'T', 'P', 'E'] {
        size /= 1024.0;
        unit = next;
        if size < 999.5 {
            break;
        }
    }
    if size < 9.95 { format!("{size:.1}{unit}") } else { format!("{size:.0}{unit}") }
}

/// Returns a number whose thousands are set apart.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(
            clean("a\u{1b}[2Jb\r\n\u{9b}c\u{202e}d\u{7f}"),
            "a\u{fffd}[2Jb\u{fffd}\u{fffd}\u{fffd}c\u{fffd}d\u{fffd}"
        );
        assert!(matches!(clean("ä – 漢"), Cow::Borrowed("ä – 漢")));
    }

    #[test]
    fn cut_ends_with_an_ellipsis() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdef", 5), "abcd…");
        assert_eq!(cut("ab cdef", 4), "ab…");
        assert_eq!(cut("abc", 1), "…");
        assert_eq!(cut("abc", 0), "");
        // Two columns each.
        assert_eq!(cut("漢字漢", 5), "漢字…");
        assert_eq!(cut("漢字漢", 4), "漢…");
        assert_eq!(fit("漢字漢", 4), "漢… ");
        assert_eq!(fit("ab", 4), "ab  ");
    }

    #[test]
    fn wrap_breaks_between_words_and_in_long_ones() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("a abcdefgh b", 3), ["a", "abc", "def", "gh", "b"]);
        assert_eq!(wrap("漢", 1), ["漢"]);
        assert_eq!(wrap("", 5), [""]);
    }

    #[test]
    fn numbers_are_short() {
        let second = Duration::from_secs(1);
        let times = [second / 1000, second * 59, second * 61, second * 3660, second * 90_000].map(time);
        assert_eq!(times, ["1ms", "59.0s", "1m01s", "1h01m", "1d01h"]);
        assert_eq!(time(Duration::from_millis(59_999)), "59.9s");
        assert_eq!(
            [0, 999, 1000, 10_240, 1 << 20, u64::MAX].map(bytes),
            ["0", "999", "1.0k", "10k", "1.0M", "16E"]
        );
        assert_eq!([1, 1000, 1_234_567].map(grouped), ["1", "1,000", "1,234,567"]);
    }
}
