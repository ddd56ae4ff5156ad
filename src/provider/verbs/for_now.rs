//! The reject by which the passive side of InfiniBand and RoCE says that it cannot take a connection for now.
//!
//! InfiniBand's connection manager has one reason for every reject of a program, so the private data says that this one is not
//! the application's. Its last byte is not zero: the private data of an application is at least one byte shorter, and arrives
//! with zeros behind it. A peer that does not know this finds a sentence.

/// The private data of a reject of InfiniBand's connection manager through rdma_cm.
pub(super) const REJECT_DATA: usize = 148;

/// The sentence.
const TEXT: &[u8] = b"tokio-rdma: the connection cannot be taken for now";

/// The private data that says so.
pub(super) const MARKER: [u8; REJECT_DATA] = {
    let mut marker = [0; REJECT_DATA];
    let (text, _) = marker.split_at_mut(TEXT.len());
    text.copy_from_slice(TEXT);
    marker[REJECT_DATA - 1] = 1;
    marker
};

/// The most that an application may say with a reject.
pub(super) const MAX_REJECT_DATA: usize = REJECT_DATA - 1;

#[cfg(test)]
mod tests {
    use super::*;

    // ERR-10: not even the marker itself, said by an application, arrives as the marker.
    #[test]
    fn no_data_of_an_application_is_the_marker() {
        for length in 0..=MAX_REJECT_DATA {
            let mut arrives = MARKER[..length].to_vec();
            arrives.resize(REJECT_DATA, 0);
            assert_ne!(arrives, MARKER, "{length}");
        }
    }
}
