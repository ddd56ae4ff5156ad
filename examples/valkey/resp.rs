//! RESP, the encoding of commands and replies: a command is an array of strings.

use std::fmt;
use std::io;

use bytes::{Buf, Bytes, BytesMut};

/// How deep arrays may lie in arrays.
const DEPTH: usize = 8;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Bytes),
    Nil,
    Array(Vec<Value>),
}

impl Value {
    /// The command with these words.
    pub(crate) fn command<W: AsRef<[u8]>>(words: &[W]) -> Self {
        Self::Array(words.iter().map(|word| Self::Bulk(Bytes::copy_from_slice(word.as_ref()))).collect())
    }

    /// The words of a command; `None` if it is none.
    pub(crate) fn words(self) -> Option<Vec<Bytes>> {
        let Self::Array(values) = self else { return None };
        let words =
            values.into_iter().map(|value| if let Self::Bulk(word) = value { Some(word) } else { None });
        words.collect()
    }

    /// Appends the encoding.
    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        let line = |kind, content: &dyn fmt::Display| format!("{kind}{content}\r\n").into_bytes();
        match self {
            Self::Simple(text) => bytes.extend(line('+', text)),
            Self::Error(text) => bytes.extend(line('-', text)),
            Self::Integer(number) => bytes.extend(line(':', number)),
            Self::Bulk(content) => {
                bytes.extend(line('$', &content.len()));
                bytes.extend_from_slice(content);
                bytes.extend_from_slice(b"\r\n");
            }
            Self::Nil => bytes.extend_from_slice(b"$-1\r\n"),
            Self::Array(values) => {
                bytes.extend(line('*', &values.len()));
                values.iter().for_each(|value| value.encode(bytes));
            }
        }
    }

    /// Takes a value from the start of the bytes; `None` until all of it is there.
    pub(crate) fn decode(bytes: &mut BytesMut) -> io::Result<Option<Self>> {
        let mut rest = &bytes[..];
        let value = parse(&mut rest, DEPTH)?;
        if value.is_some() {
            bytes.advance(bytes.len() - rest.len());
        }
        Ok(value)
    }
}

impl fmt::Display for Value {
    /// Writes it as `valkey-cli` does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simple(text) => f.write_str(text),
            Self::Error(text) => write!(f, "(error) {text}"),
            Self::Integer(number) => write!(f, "(integer) {number}"),
            Self::Bulk(content) => write!(f, "{:?}", String::from_utf8_lossy(content)),
            Self::Nil => f.write_str("(nil)"),
            Self::Array(values) => f.debug_list().entries(values.iter().map(ToString::to_string)).finish(),
        }
    }
}

fn parse(rest: &mut &[u8], depth: usize) -> io::Result<Option<Value>> {
    let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let (line, mut behind) = (&rest[..end], &rest[end + 2..]);
    let (Some((kind, text)), Some(depth)) = (line.split_first(), depth.checked_sub(1)) else {
        return Err(wrong());
    };
    let text = std::str::from_utf8(text).map_err(|_| wrong())?;
    let number = || text.parse::<i64>().map_err(|_| wrong());
    let value = match kind {
        b'+' => Value::Simple(text.to_owned()),
        b'-' => Value::Error(text.to_owned()),
        b':' => Value::Integer(number()?),
        b'$' | b'*' if text == "-1" => Value::Nil,
        b'$' => {
            let length = usize::try_from(number()?).map_err(|_| wrong())?;
            let Some(content) = behind.get(..length) else { return Ok(None) };
            match behind.get(length..length.saturating_add(2)) {
                None => return Ok(None),
                Some(b"\r\n") => behind = &behind[length + 2..],
                Some(_) => return Err(wrong()),
            }
            Value::Bulk(Bytes::copy_from_slice(content))
        }
        b'*' => {
            let mut values = Vec::new();
            for _ in 0..number()? {
                let Some(value) = parse(&mut behind, depth)? else { return Ok(None) };
                values.push(value);
            }
            Value::Array(values)
        }
        _ => return Err(wrong()),
    };
    *rest = behind;
    Ok(Some(value))
}

fn wrong() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the peer has sent what is not RESP")
}
