//! The drivers of the two providers.

#[cfg(feature = "soft")]
pub(crate) mod soft;
