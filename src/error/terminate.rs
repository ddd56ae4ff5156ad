//! The meaning of the Terminate codes, in words.

/// Returns the meaning of a Terminate: the tables of RFC 5040 section 4.8, RFC 5041 section 7.2, RFC 5044 section 8 and
/// RFC 6581 section 8.
pub(super) const fn meaning(layer: u8, etype: u8, code: u8) -> &'static str {
    match (layer, etype, code) {
        (0, 0, _) => "its sender gave the connection up",

        (0, 1, 0) => "the key names no memory",
        (0, 1, 1) => "the access is outside of the memory",
        (0, 1, 2) => "the memory lacks the access right",
        (0, 1, 3) => "the memory belongs to another protection domain",
        (0, 1, 4) => "the address of the access wraps around",
        (0, 1, _) => "unknown protection error of RDMAP",

        (0, 2, 5) => "unsupported version of RDMAP",
        (0, 2, 6) => "unexpected opcode of RDMAP",
        (0, 2, 7) => "catastrophic error of the stream",
        (0, 2, 8) => "catastrophic error of the adapter",
        (0, 2, 9) => "the key cannot be invalidated",
        (0, 2, _) => "unspecified error of a remote operation",

        (1, 0, _) => "its sender had a failure in DDP",

        (1, 1, 0) => "the key of a tagged message names no memory",
        (1, 1, 1) => "a tagged message is outside of its memory",
        (1, 1, 2) => "the memory of a tagged message belongs to another protection domain",
        (1, 1, 3) => "the address of a tagged message wraps around",
        (1, 1, 4) => "unsupported version of DDP in a tagged message",
        (1, 1, _) => "unknown error of a tagged message",

        (1, 2, 1) => "the queue of an untagged message does not exist",
        (1, 2, 2) => "no receive was posted for the message, or more reads were in flight than agreed",
        (1, 2, 3) => "the number of an untagged message is not the next",
        (1, 2, 4) => "the offset in an untagged message is not the next",
        (1, 2, 5) => "the message is longer than the receive",
        (1, 2, 6) => "unsupported version of DDP in an untagged message",
        (1, 2, _) => "unknown error of an untagged message",

        (2, 0, 1) => "the TCP stream was closed or lost",
        (2, 0, 2) => "the CRC of a frame does not match",
        (2, 0, 3) => "the markers and the length of a frame do not match",
        (2, 0, 4) => "invalid start-up frame of MPA",
        (2, 0, 5) => "its sender had a failure in MPA",
        (2, 0, 6) => "the responder wants more reads in flight than the initiator serves",
        (2, 0, 7) => "the responder chose an RTR frame that the initiator did not offer",
        (2, ..) => "unknown error of MPA",

        _ => "unknown error",
    }
}
