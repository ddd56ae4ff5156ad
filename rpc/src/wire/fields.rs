//! The fields of heads and trailers: the usual ones are a byte, others are literal.

use std::sync::LazyLock;

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue};

/// A sentence on what is wrong with the bytes of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// The most fields of a block: a field of one byte takes a hundred in memory.
pub(crate) const MOST_FIELDS: usize = 256;

/// Names that are a byte: their places, from 1 on. A later version may add to the end.
const NAMES: &[&str] = &[
    "content-type",
    "te",
    "user-agent",
    "grpc-timeout",
    "grpc-encoding",
    "grpc-accept-encoding",
    "grpc-status",
    "grpc-message",
    "grpc-status-details-bin",
    "authorization",
    "content-length",
    "accept",
    "accept-encoding",
    "content-encoding",
    "date",
    "cookie",
    "set-cookie",
    "cache-control",
    "etag",
    "location",
    "traceparent",
    "tracestate",
    "host",
    "server",
    "vary",
    "x-request-id",
];

/// Whole fields that are a byte: their places, from [`WHOLE`] on.
const FIELDS: &[(&str, &str)] = &[
    ("content-type", "application/grpc"),
    ("te", "trailers"),
    ("grpc-status", "0"),
    ("content-type", "application/json"),
    ("content-type", "text/plain; charset=utf-8"),
    ("accept", "*/*"),
];
const WHOLE: u8 = 128;
const LITERAL: u8 = 0;

static KNOWN: LazyLock<Vec<HeaderName>> =
    LazyLock::new(|| NAMES.iter().map(|name| HeaderName::from_static(name)).collect());
static KNOWN_FIELDS: LazyLock<Vec<(HeaderName, HeaderValue)>> = LazyLock::new(|| {
    let field = |(name, value): &(&'static str, &'static str)| {
        (HeaderName::from_static(name), HeaderValue::from_static(value))
    };
    FIELDS.iter().map(field).collect()
});

/// Returns the byte that stands for a whole field.
fn whole(name: &str, value: &[u8]) -> Option<u8> {
    let place = FIELDS.iter().position(|(n, v)| *n == name && v.as_bytes() == value)?;
    Some(WHOLE + place as u8)
}

/// Returns the byte that stands for a name.
fn known(name: &str) -> Option<u8> {
    let place = NAMES.iter().position(|known| *known == name)?;
    Some(place as u8 + 1)
}

/// Appends fields.
pub(super) fn put_fields(fields: &HeaderMap, out: &mut Vec<u8>) {
    for (name, value) in fields {
        let (name, value) = (name.as_str(), value.as_bytes());
        if let Some(byte) = whole(name, value) {
            out.push(byte);
            continue;
        }
        match known(name) {
            Some(byte) => out.push(byte),
            None => {
                out.push(LITERAL);
                put_bytes(name.as_bytes(), out);
            }
        }
        put_bytes(value, out);
    }
}

/// Reads fields up to the end of the block.
pub(super) fn take_fields(mut block: Bytes) -> Result<HeaderMap, Malformed> {
    let mut fields = HeaderMap::new();
    let mut count = 0;
    while block.has_remaining() {
        count += 1;
        if count > MOST_FIELDS {
            return Err(Malformed("too many fields"));
        }
        let byte = block.get_u8();
        let (name, value) = match byte {
            WHOLE.. => {
                KNOWN_FIELDS.get(usize::from(byte - WHOLE)).cloned().ok_or(Malformed("an unknown field"))?
            }
            LITERAL => {
                let name = take_bytes(&mut block)?;
                let name = HeaderName::from_lowercase(&name)
                    .map_err(|_| Malformed("the name of a field is invalid"))?;
                (name, take_value(&mut block)?)
            }
            _ => {
                let name = KNOWN.get(usize::from(byte - 1)).cloned();
                (name.ok_or(Malformed("an unknown name of a field"))?, take_value(&mut block)?)
            }
        };
        fields.try_append(name, value).map_err(|_| Malformed("too many fields"))?;
    }
    Ok(fields)
}

fn take_value(block: &mut Bytes) -> Result<HeaderValue, Malformed> {
    let value = take_bytes(block)?;
    HeaderValue::from_maybe_shared(value).map_err(|_| Malformed("the value of a field is invalid"))
}

/// Appends bytes behind their length: seven bits a byte, the lowest first.
pub(super) fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(bytes);
}

/// Reads bytes behind their length.
pub(super) fn take_bytes(block: &mut Bytes) -> Result<Bytes, Malformed> {
    let mut length = 0;
    // A block has less than 2^32 bytes.
    for shift in (0..32).step_by(7) {
        if !block.has_remaining() {
            break;
        }
        let byte = block.get_u8();
        length |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > block.len() {
                break;
            }
            return Ok(block.split_to(length));
        }
    }
    Err(Malformed("a length within a block is too large"))
}
