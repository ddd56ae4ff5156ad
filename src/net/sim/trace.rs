//! The events that have happened in a network, and their hash.

use std::collections::VecDeque;
use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::time::Duration;

use super::socket::{Kind, Segment};
use crate::net::capture::File;

/// The number of events that are kept as text. The hash covers all events.
const KEPT: usize = 4096;

/// A hash that is the same on every run: eight bytes at a time, because it covers everything that is sent.
#[derive(Debug)]
struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(1)
    }
}

impl Hasher for Digest {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        words.iter().for_each(|word| self.write_u64(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    // A product carries a difference only upwards, the shift carries it down again. Both can be undone, so no difference is
    // lost on the way.
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 ^= self.0 >> 32;
    }
}

/// An event that is kept.
#[derive(Debug)]
enum Event {
    /// A segment has arrived, or was lost.
    Segment {
        from: SocketAddr,
        to: SocketAddr,
        kind: Kind,
        sequence: u64,
        length: usize,
        end: bool,
        lost: bool,
    },
    /// Something else.
    Note(String),
}

/// The events of a network.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    hash: Digest,
    kept: VecDeque<(Duration, Event)>,
    capture: Option<File>,
}

impl Trace {
    /// Captures the segments that arrive from now on.
    pub(crate) fn capture(&mut self) {
        self.capture = Some(File::new());
    }

    /// Returns the file of the capture, if there is one.
    pub(crate) fn pcap(&self) -> Option<Vec<u8>> {
        self.capture.as_ref().map(|capture| capture.bytes().to_vec())
    }

    /// Returns the hash over all events so far.
    pub(crate) fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// Records a segment that has arrived, or was lost.
    pub(super) fn segment(&mut self, at: Duration, segment: &Segment, lost: bool) {
        (at, segment, lost).hash(&mut self.hash);
        if let Some(capture) = self.capture.as_mut().filter(|_| !lost) {
            capture.add(at, &segment.packet());
        }
        let Segment { from, to, kind, sequence, end, .. } = *segment;
        let length = segment.bytes.len();
        self.keep(at, Event::Segment { from, to, kind, sequence, length, end, lost });
    }

    /// Records another event.
    pub(super) fn note(&mut self, at: Duration, note: String) {
        (at, &note).hash(&mut self.hash);
        self.keep(at, Event::Note(note));
    }

    fn keep(&mut self, at: Duration, event: Event) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((at, event));
    }

    /// Returns the last events, a line each.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (at, event) in &self.kept {
            // Writing to a string does not fail.
            let _ = match event {
                Event::Segment { from, to, kind, sequence, length, end, lost } => {
                    let end = if *end { " end" } else { "" };
                    let lost = if *lost { " lost" } else { "" };
                    writeln!(
                        text,
                        "{:.6} {from} > {to} {kind:?} {sequence}+{length}{end}{lost}",
                        at.as_secs_f64()
                    )
                }
                Event::Note(note) => writeln!(text, "{:.6} {note}", at.as_secs_f64()),
            };
        }
        text
    }
}
