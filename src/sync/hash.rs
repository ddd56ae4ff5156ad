//! The hash of keys and small numbers.

use std::hash::Hasher;

/// A hash that is one multiplication, for tables that are looked into for every frame or completion. The keys must not be of a
/// peer's choice, or it could make them collide.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u16(&mut self, key: u16) {
        self.write_u64(key.into());
    }

    fn write_u32(&mut self, key: u32) {
        self.write_u64(key.into());
    }

    fn write_u64(&mut self, key: u64) {
        // 2^64 divided by the golden ratio: the table looks at the highest bits and the lowest.
        self.0 = (self.0 ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
