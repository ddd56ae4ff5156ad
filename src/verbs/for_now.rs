//! The reject of a passive side of InfiniBand or RoCE that cannot take a connection for now.
//!
//! InfiniBand's connection manager has one reason for every reject of a program, so the private data marks this one as
//! not the application's. Its last byte is not zero: the private data of an application is at least one byte shorter,
//! and arrives with zeros behind it. A peer that does not know the marker finds a sentence in it.

use super::limits::IB_REJECT_DATA;

/// The sentence at the front of the private data.
const TEXT: &[u8] = b"tokio-rdma: the connection cannot be taken for now";

/// The private data of such a reject.
pub(super) const MARKER: [u8; IB_REJECT_DATA] = {
    let mut marker = [0; IB_REJECT_DATA];
    let (text, _) = marker.split_at_mut(TEXT.len());
    text.copy_from_slice(TEXT);
    marker[IB_REJECT_DATA - 1] = 1;
    marker
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::limits::MAX_REJECT_DATA;

    // ERR-10: not even the marker itself, sent by an application, arrives as the marker.
    #[test]
    fn no_data_of_an_application_is_the_marker() {
        for length in 0..=MAX_REJECT_DATA {
            let mut arrives = MARKER[..length].to_vec();
            arrives.resize(IB_REJECT_DATA, 0);
            assert_ne!(arrives, MARKER, "{length}");
        }
    }
}
