//! The cases over TCP, which every result is compared with.

super::cases!(Tcp);
