//! Byte streams and messages.

mod chaos;
mod listener;
mod messages;
mod names;
mod peers;
mod stream;
