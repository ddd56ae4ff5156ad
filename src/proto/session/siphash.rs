//! SipHash-2-4 with a result of 128 bits, a message authentication code for short messages.
//!
//! Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012), and the reference implementation for 128 bits.

/// The four words of the state.
struct State([u64; 4]);

impl State {
    fn rounds(&mut self, count: usize) {
        let [mut a, mut b, mut c, mut d] = self.0;
        for _ in 0..count {
            a = a.wrapping_add(b);
            b = b.rotate_left(13) ^ a;
            a = a.rotate_left(32);
            c = c.wrapping_add(d);
            d = d.rotate_left(16) ^ c;
            a = a.wrapping_add(d);
            d = d.rotate_left(21) ^ a;
            c = c.wrapping_add(b);
            b = b.rotate_left(17) ^ c;
            c = c.rotate_left(32);
        }
        self.0 = [a, b, c, d];
    }

    /// Takes in a word of the message.
    fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.rounds(2);
        self.0[0] ^= word;
    }

    /// Returns a half of the result.
    fn squeeze(&mut self) -> [u8; 8] {
        self.rounds(4);
        self.0.iter().fold(0, |all, word| all ^ word).to_le_bytes()
    }
}

/// Returns the code of a message under this key.
pub(super) fn siphash(key: [u8; 16], message: &[u8]) -> [u8; 16] {
    let (k0, k1) = halves(key);
    let mut state = State([
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ]);
    let (words, rest) = message.as_chunks::<8>();
    words.iter().for_each(|word| state.absorb(u64::from_le_bytes(*word)));
    // The last word ends with the length, modulo 256.
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = message.len().to_le_bytes()[0];
    state.absorb(u64::from_le_bytes(last));
    state.0[2] ^= 0xee;
    let first = state.squeeze();
    state.0[1] ^= 0xdd;
    let second = state.squeeze();
    let mut code = [0; 16];
    code[..8].copy_from_slice(&first);
    code[8..].copy_from_slice(&second);
    code
}

/// Returns the lower half of a key and the upper one.
fn halves(key: [u8; 16]) -> (u64, u64) {
    let key = u128::from_le_bytes(key);
    let lower = |number: u128| u64::try_from(number & u128::from(u64::MAX)).unwrap_or_default();
    (lower(key), lower(key >> 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Of the reference implementation: the key and the message are 0, 1, 2 and so on.
    #[test]
    fn codes_are_those_of_the_reference() {
        let key: [u8; 16] = std::array::from_fn(|place| place as u8);
        let known = [
            (0, 0xa381_7f04_ba25_a8e6_6df6_7214_c755_0293_u128),
            (1, 0xda87_c1d8_6b99_af44_3476_5911_9b22_fc45),
        ];
        for (length, code) in known {
            let message: Vec<u8> = (0..length).collect();
            assert_eq!(siphash(key, &message), code.to_be_bytes(), "{length} bytes");
        }
    }
}
