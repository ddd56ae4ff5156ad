//! The orders that the two ends of a contender are given: one line on standard input for each batch.

use std::fmt;
use std::str::FromStr;

/// How many blocks are in flight at once where more than one is.
pub(crate) const WINDOW: usize = 16;

/// How many messages are there and back at once where more than one is.
pub(crate) const AT_ONCE: usize = 64;

/// One batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// So many messages of this size there and back, one after the other; the answer is their median in nanoseconds.
    Ping { size: usize, count: usize },
    /// So many messages of this size there and back, [`AT_ONCE`] at a time; the answer is the time of all.
    Echo { size: usize, count: usize },
    /// So many blocks of this size one way, and the peer's word that they are there; the answer is the time of all.
    Write { size: usize, count: usize, how: Posting },
    /// So many blocks fetched from the peer; the answer is the time of all.
    Read { size: usize, count: usize },
    /// So many connections made and ended, this many at once; the answer is the time of all.
    Cycle { at_once: usize, count: usize },
    /// So many remote procedure calls, this many at once; the answer is the time of all.
    Call { at_once: usize, count: usize },
    /// So many calls with a long request and a short answer, [`WINDOW`] at once; the answer is the time of all.
    Upload { size: usize, count: usize },
    /// One call whose answer is so many messages of this size; the answer is the time of all.
    Stream { size: usize, count: usize },
    /// So many pairs of a connect and its accept, this many at once, all of which are held; the answer is the time of all.
    Pairs { at_once: usize, count: usize },
    /// So many writes of this size over a slow path; the answer is the median time until a reader has the first byte. Each is
    /// the first one of a connection, or follows a short message on the same one.
    FirstByte { size: usize, count: usize, is_fresh: bool },
    /// A write of which the second half never arrives; the answer is the number of bytes that a reader receives.
    Lose { size: usize },
    /// Idle connections until there are so many; the answer is the time that the new ones took.
    Grow { total: usize },
}

/// How blocks are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posting {
    /// The next one once the one before is complete.
    Single,
    /// Several in flight.
    Window,
    /// Several handed over by one call, then the next ones once they are complete.
    Batch,
}

impl Order {
    /// How many bytes it moves.
    pub(crate) fn bytes(&self) -> usize {
        match *self {
            Self::Ping { size, count }
            | Self::Write { size, count, .. }
            | Self::Read { size, count }
            | Self::Upload { size, count }
            | Self::Stream { size, count }
            | Self::FirstByte { size, count, .. } => size * count,
            Self::Lose { size } => size,
            Self::Echo { size, count } => 2 * size * count,
            Self::Cycle { .. } | Self::Pairs { .. } | Self::Call { .. } | Self::Grow { .. } => 0,
        }
    }

    /// How many round trips, connections or calls it makes; 1 for blocks.
    pub(crate) fn operations(&self) -> usize {
        match *self {
            Self::Ping { count, .. }
            | Self::Echo { count, .. }
            | Self::Cycle { count, .. }
            | Self::Call { count, .. }
            | Self::Upload { count, .. }
            | Self::Stream { count, .. }
            | Self::Pairs { count, .. }
            | Self::FirstByte { count, .. } => count,
            Self::Write { .. } | Self::Read { .. } | Self::Lose { .. } | Self::Grow { .. } => 1,
        }
    }

    /// The same with a tenth of the work, for a first look.
    pub(crate) fn shorter(self) -> Self {
        let less = |count: usize| (count / 8).max(WINDOW.min(count));
        match self {
            Self::Ping { size, count } => Self::Ping { size, count: less(count) },
            Self::Echo { size, count } => Self::Echo { size, count: less(count).max(AT_ONCE) },
            Self::Write { size, count, how } => Self::Write { size, count: less(count), how },
            Self::Read { size, count } => Self::Read { size, count: less(count) },
            Self::Cycle { at_once, count } => Self::Cycle { at_once, count: less(count) },
            Self::Call { at_once, count } => Self::Call { at_once, count: less(count).max(at_once) },
            Self::Upload { size, count } => Self::Upload { size, count: less(count) },
            Self::Stream { size, count } => Self::Stream { size, count: less(count) },
            Self::Pairs { at_once, count } => Self::Pairs { at_once, count: less(count).max(at_once) },
            same @ (Self::FirstByte { .. } | Self::Lose { .. } | Self::Grow { .. }) => same,
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ping { size, count } => write!(f, "ping {size} {count}"),
            Self::Echo { size, count } => write!(f, "echo {size} {count}"),
            Self::Write { size, count, how: Posting::Single } => write!(f, "single {size} {count}"),
            Self::Write { size, count, how: Posting::Window } => write!(f, "window {size} {count}"),
            Self::Write { size, count, how: Posting::Batch } => write!(f, "batch {size} {count}"),
            Self::Read { size, count } => write!(f, "read {size} {count}"),
            Self::Cycle { at_once, count } => write!(f, "cycle {at_once} {count}"),
            Self::Call { at_once, count } => write!(f, "call {at_once} {count}"),
            Self::Upload { size, count } => write!(f, "upload {size} {count}"),
            Self::Stream { size, count } => write!(f, "stream {size} {count}"),
            Self::Pairs { at_once, count } => write!(f, "pairs {at_once} {count}"),
            Self::FirstByte { size, count, is_fresh: true } => write!(f, "first-write {size} {count}"),
            Self::FirstByte { size, count, is_fresh: false } => write!(f, "next-write {size} {count}"),
            Self::Lose { size } => write!(f, "lose {size} 1"),
            Self::Grow { total } => write!(f, "grow {total} 0"),
        }
    }
}

impl FromStr for Order {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let wrong = || format!("`{line}` is no order");
        let words: Vec<&str> = line.split_whitespace().collect();
        let [verb, first, second] = words[..] else { return Err(wrong()) };
        let (first, second) = (first.parse().map_err(|_| wrong())?, second.parse().map_err(|_| wrong())?);
        let (size, count) = (first, second);
        Ok(match verb {
            "ping" => Self::Ping { size, count },
            "echo" => Self::Echo { size, count },
            "single" => Self::Write { size, count, how: Posting::Single },
            "window" => Self::Write { size, count, how: Posting::Window },
            "batch" => Self::Write { size, count, how: Posting::Batch },
            "read" => Self::Read { size, count },
            "cycle" => Self::Cycle { at_once: first, count },
            "call" => Self::Call { at_once: first, count },
            "upload" => Self::Upload { size, count },
            "stream" => Self::Stream { size, count },
            "pairs" => Self::Pairs { at_once: first, count },
            "first-write" => Self::FirstByte { size, count, is_fresh: true },
            "next-write" => Self::FirstByte { size, count, is_fresh: false },
            "lose" => Self::Lose { size },
            "grow" => Self::Grow { total: first },
            _ => return Err(wrong()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let orders = [
            Order::Ping { size: 64, count: 200 },
            Order::Echo { size: 64, count: 200 },
            Order::Write { size: 4096, count: 3, how: Posting::Single },
            Order::Write { size: 4096, count: 3, how: Posting::Window },
            Order::Write { size: 4096, count: 3, how: Posting::Batch },
            Order::Read { size: 1 << 20, count: 64 },
            Order::Cycle { at_once: 64, count: 640 },
            Order::Call { at_once: 64, count: 640 },
            Order::Upload { size: 1 << 20, count: 64 },
            Order::Stream { size: 64, count: 640 },
            Order::Pairs { at_once: 64, count: 640 },
            Order::FirstByte { size: 1 << 20, count: 3, is_fresh: true },
            Order::FirstByte { size: 1 << 20, count: 3, is_fresh: false },
            Order::Lose { size: 1 << 20 },
            Order::Grow { total: 10_000 },
        ];
        for order in orders {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        assert!("ping 64".parse::<Order>().is_err() && "dance 1 2".parse::<Order>().is_err());
    }

    #[test]
    fn a_shorter_order_still_fills_the_window() {
        let order = Order::Write { size: 1 << 20, count: 64, how: Posting::Window };
        assert_eq!(order.shorter().bytes(), 16 << 20);
        assert_eq!(Order::Cycle { at_once: 1, count: 1 }.shorter(), Order::Cycle { at_once: 1, count: 1 });
    }
}
