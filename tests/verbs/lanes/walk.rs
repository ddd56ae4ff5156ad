//! A random walk.
