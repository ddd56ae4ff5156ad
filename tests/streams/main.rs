//! Byte streams and messages.

mod chaos;
mod contract;
mod early;
mod fairness;
mod flood;
mod listener;
mod messages;
mod names;
mod peers;
mod readiness;
mod silent;
mod slow;
mod stream;
