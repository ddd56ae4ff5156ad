//! What gRPC has in fields: the time for a call, and statuses.

use std::error::Error as StdError;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};

const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The most characters of a message: it has to fit into the trailers that a peer takes.
const MOST_MESSAGE: usize = 200;

/// Returns whether a head is one of gRPC.
pub(crate) fn is_grpc(fields: &HeaderMap) -> bool {
    let kind = fields.get(CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
    let rest = kind.strip_prefix(b"application/grpc");
    // Not `application/grpc-web`, whose trailers are in the body.
    rest.is_some_and(|rest| matches!(rest, [] | [b'+' | b';', ..]))
}

/// Returns the time for a call. `None` if there is no limit, or one that cannot be read.
pub(crate) fn timeout(fields: &HeaderMap) -> Option<Duration> {
    let value = fields.get(TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    // "at most 8 digits"
    let count =
        Some(digits).filter(|digits| digits.len() <= 8 && digits.bytes().all(|byte| byte.is_ascii_digit()));
    let count: u64 = count?.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// Returns the fields that tell a caller of gRPC of an error: the code of its status, and the message.
pub(crate) fn status(code: u32, message: &str) -> HeaderMap {
    let mut fields = HeaderMap::with_capacity(3);
    fields.insert(STATUS, HeaderValue::from(code));
    let message: String = message.chars().take(MOST_MESSAGE).collect();
    if let Ok(message) = HeaderValue::try_from(encode(&message)) {
        fields.insert(MESSAGE, message);
    }
    fields
}

/// Returns the fields of the `tonic::Status` that an error is, or has among its sources.
#[cfg(feature = "tonic")]
pub(crate) fn own_status(error: &(dyn StdError + 'static)) -> Option<HeaderMap> {
    let mut sources = std::iter::successors(Some(error), |error| (*error).source());
    let status = sources.find_map(|error| error.downcast_ref::<tonic::Status>())?;
    // It would say that the call has not failed.
    let status = Some(status).filter(|status| status.code() != tonic::Code::Ok)?;
    let mut fields = HeaderMap::new();
    status.add_header(&mut fields).ok().map(|()| fields)
}

#[cfg(not(feature = "tonic"))]
pub(crate) fn own_status(_error: &(dyn StdError + 'static)) -> Option<HeaderMap> {
    None
}

/// The names of the statuses, by their codes.
const NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// Returns the code of the status in a head or trailers.
pub(crate) fn status_of(fields: &HeaderMap) -> Option<u32> {
    fields.get(STATUS)?.to_str().ok()?.parse().ok()
}

/// Returns the name of a status. One that gRPC does not have is `UNKNOWN`.
pub(crate) fn status_name(code: u32) -> &'static str {
    NAMES.get(code as usize).unwrap_or(&NAMES[2])
}

/// Encodes a message as gRPC has it: what is not printable, and `%`, in hexadecimal.
fn encode(message: &str) -> String {
    message.bytes().fold(String::with_capacity(message.len()), |mut encoded, byte| {
        match byte {
            b'%' | ..b' ' | b'\x7F'.. => encoded.push_str(&format!("%{byte:02X}")),
            _ => encoded.push(char::from(byte)),
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read() {
        let read =
            |text: &'static str| timeout(&HeaderMap::from_iter([(TIMEOUT, HeaderValue::from_static(text))]));
        for (text, time) in [
            ("1H", Duration::from_secs(3600)),
            ("2M", Duration::from_secs(120)),
            ("99999999S", Duration::from_secs(99_999_999)),
            ("5m", Duration::from_millis(5)),
            ("6u", Duration::from_micros(6)),
            ("7n", Duration::from_nanos(7)),
        ] {
            assert_eq!(read(text), Some(time), "{text}");
        }
        for text in ["", "S", "1", "100000000S", "-1S", "1s", "1 S"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn messages_are_encoded() {
        assert_eq!(encode("100 % of\nthem: ☺"), "100 %25 of%0Athem: %E2%98%BA");
    }
}
