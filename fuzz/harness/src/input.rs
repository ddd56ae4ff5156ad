//! The bytes of a fuzzer as choices.

/// Hands out bytes from the front; zeroes when there are none left.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    /// At most `count` of them.
    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    pub(crate) fn half(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// A length: mostly a small one, but up to two FPDUs and more.
    pub(crate) fn length(&mut self) -> usize {
        match self.byte() {
            small @ 0..128 => small.into(),
            254 => 140_000,
            255 => 65_520,
            large => (usize::from(large) - 127) * 509,
        }
    }

    /// A number around those at which something happens; `edge` is one more of them.
    pub(crate) fn number(&mut self, edge: u64) -> u64 {
        let base = match self.byte() {
            0 => edge,
            1 => u64::MAX,
            2 => 1 << 32,
            3 => 1 << 31,
            4 => 1 << 63,
            small => return small.into(),
        };
        base.wrapping_add_signed(i64::from(self.byte() as i8))
    }
}
