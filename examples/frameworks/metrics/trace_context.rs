//! The context of a trace, as W3C Trace Context has it: level 1, section 3.2.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::str::FromStr;

/// The name of the header, and of the entry in the metadata of a gRPC call.
pub(crate) const TRACEPARENT: &str = "traceparent";

/// A span, and the trace of which it is a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext {
    pub(crate) trace: u128,
    pub(crate) span: u64,
    flags: u8,
}

impl TraceContext {
    /// The flag `sampled`.
    const SAMPLED: u8 = 1;

    /// The first span of a new trace.
    pub(crate) fn new() -> Self {
        let trace = u128::from(random()) << 64 | u128::from(random());
        Self { trace, span: random(), flags: Self::SAMPLED }
    }

    /// A span of the same trace.
    pub(crate) fn child(self) -> Self {
        Self { span: random(), ..self }
    }
}

/// A number that is not 0: such an id is invalid.
fn random() -> u64 {
    RandomState::new().build_hasher().finish().max(1)
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

/// The header is not one of a version that is known.
#[derive(Debug)]
pub(crate) struct Invalid;

impl FromStr for TraceContext {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let lower = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-');
        let parts: Vec<_> = text.split('-').collect();
        let lengths: Vec<_> = parts.iter().map(|part| part.len()).collect();
        // A later version may have more parts, which are ignored.
        let is_complete = match parts.first() {
            Some(&"00") => lengths == [2, 32, 16, 2],
            Some(&"ff") | None => false,
            Some(_) => lengths.starts_with(&[2, 32, 16, 2]),
        };
        if !is_complete || !text.bytes().take(55).all(lower) {
            return Err(Invalid);
        }
        let trace = u128::from_str_radix(parts[1], 16).map_err(|_| Invalid)?;
        let span = u64::from_str_radix(parts[2], 16).map_err(|_| Invalid)?;
        let flags = u8::from_str_radix(parts[3], 16).map_err(|_| Invalid)?;
        if trace == 0 || span == 0 { Err(Invalid) } else { Ok(Self { trace, span, flags }) }
    }
}
