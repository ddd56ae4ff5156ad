//! Byte streams.

mod alike;
mod chaos;
mod contract;
mod descriptors;
mod early;
mod fairness;
mod families;
mod flood;
mod frames;
#[cfg(feature = "inspect")]
mod inspect;
mod listener;
mod names;
mod one_sided;
mod peers;
mod readiness;
mod short;
mod silent;
mod slow;
mod stream;
