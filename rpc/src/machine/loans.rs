//! Long bodies one-sidedly: this end lends memory that the peer reads, and reads what the peer lends.

use std::task::Waker;

use bytes::{Buf, Bytes};

use super::{Call, Chunk, Content, FRAME_COST, Machine};
use crate::wire::{Code, Header, Kind, Malformed, number};

/// The shortest part of a body that is lent: for a shorter one a copy is quicker than another message each way.
const SHORTEST: usize = 64 << 10;
/// The longest part that is lent at once, so that the peer reads the first parts of a long body while others are copied.
pub(crate) const LONGEST: usize = 256 << 10;
/// The most loans at once, in each direction. Their numbers are below it.
pub(crate) const MOST: usize = 64;
/// The checks behind which a peer that has not returned a loan has broken the protocol.
const PATIENCE: u8 = 3;

/// Memory for the bodies that this end lends.
pub(crate) trait Lender: Send {
    /// Copies bytes to a place of which there is no loan. Returns the number of the loan, and the description of its memory.
    /// `None` if all places are lent.
    fn lend(&mut self, bytes: &[u8]) -> Option<(u32, [u8; 16])>;

    /// Takes a place back.
    fn take_back(&mut self, loan: u32);
}

/// Memory of the peer that is to be read.
#[derive(Debug)]
pub(crate) struct Borrowed {
    pub(crate) call: u32,
    pub(crate) loan: u32,
    pub(crate) length: usize,
    /// The description of the memory.
    pub(crate) memory: [u8; 16],
}

/// The loans of both directions.
#[derive(Default)]
pub(super) struct Loans {
    lender: Option<Box<dyn Lender>>,
    /// A body was long enough, and there was no memory.
    is_wanted: bool,
    /// The one that makes the memory.
    keeper: Option<Waker>,
    /// The checks since each loan was made, of those that the peer has.
    lent: Vec<(u32, u8)>,
    /// Something was lent since the last check.
    is_used: bool,
    /// The loans of the peer that this end has, as bits.
    borrowed: u64,
    /// Those that are to be read.
    arrived: Vec<Borrowed>,
}

/// What a check of the loans finds.
pub(crate) enum Checked {
    /// Nothing is lent, nor was since the last check. The memory is no longer used.
    Idle(Option<Box<dyn Lender>>),
    InUse,
    /// The peer keeps a loan.
    Overdue,
}

impl Loans {
    /// Returns whether the peer has loans of this end.
    pub(super) fn are_out(&self) -> bool {
        !self.lent.is_empty()
    }
}

impl Machine {
    /// Returns whether memory for loans is wanted. If not, the waker is woken when it is.
    pub(crate) fn wants_memory(&mut self, waker: &Waker) -> bool {
        self.loans.keeper = Some(waker.clone());
        std::mem::take(&mut self.loans.is_wanted)
    }

    /// Lends from this memory from now on.
    pub(crate) fn lend_from(&mut self, lender: Box<dyn Lender>) {
        self.loans.lender = Some(lender);
        self.loans.is_used = true;
    }

    /// Checks the loans. It is done at intervals.
    pub(crate) fn check_loans(&mut self) -> Checked {
        let Loans { lent, is_used, lender, .. } = &mut self.loans;
        lent.iter_mut().for_each(|(_, checks)| *checks += 1);
        if lent.iter().any(|(_, checks)| *checks > PATIENCE) {
            return Checked::Overdue;
        }
        if std::mem::take(is_used) || !lent.is_empty() {
            Checked::InUse
        } else {
            Checked::Idle(lender.take())
        }
    }

    /// Returns whether a body of this length is lent.
    pub(super) fn is_lent(&self, length: usize) -> bool {
        length >= SHORTEST && self.loans.lender.is_some()
    }

    /// Lends the next part of a body, if it is long, and there is room for it at both ends.
    pub(super) fn lend(&mut self, id: u32, body: &mut Bytes) -> bool {
        if body.len() < SHORTEST || !self.peer.reads || self.is_full() {
            return false;
        }
        let Some(call) = self.calls.get_mut(&id).filter(|call| call.sends && call.failed.is_none()) else {
            return false;
        };
        let window = usize::try_from(call.send_window.min(self.send_window)).unwrap_or(usize::MAX);
        let length = body.len().min(window.saturating_sub(FRAME_COST)).min(LONGEST);
        if length < SHORTEST {
            return false;
        }
        let Some(lender) = &mut self.loans.lender else {
            if !std::mem::replace(&mut self.loans.is_wanted, true) {
                self.after.wakers.extend(self.loans.keeper.take());
            }
            return false;
        };
        let Some((loan, memory)) = lender.lend(&body[..length]) else { return false };
        body.advance(length);
        self.loans.lent.push((loan, 0));
        self.loans.is_used = true;
        let cost = (length + FRAME_COST) as u64;
        call.send_window -= cost;
        self.send_window -= cost;
        self.traffic.sent(length);
        self.put(id, Kind::Lent, 0, &[&loan.to_be_bytes()[..], &memory].concat());
        true
    }

    /// Takes back what the peer has read.
    pub(super) fn receive_returned(&mut self, payload: &[u8]) -> Result<(), Malformed> {
        let loan = number(payload)?;
        let place = self.loans.lent.iter().position(|(lent, _)| *lent == loan);
        let place = place.ok_or(Malformed("a loan is returned that was not made"))?;
        self.loans.lent.swap_remove(place);
        if let Some(lender) = &mut self.loans.lender {
            lender.take_back(loan);
        }
        Ok(())
    }

    /// Takes a part of a body that is to be read from the peer's memory.
    pub(super) fn receive_lent(&mut self, header: Header, payload: &[u8]) -> Result<(), Malformed> {
        let id = header.call;
        self.check_known(id)?;
        let (loan, memory) = payload
            .split_first_chunk::<4>()
            .and_then(|(loan, rest)| Some((u32::from_be_bytes(*loan), <[u8; 16]>::try_from(rest).ok()?)))
            .ok_or(Malformed("a frame of another length than its kind has"))?;
        let [.., a, b, c, d] = memory;
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if !self.local.reads {
            return Err(Malformed("memory is lent to an end that does not read it"));
        }
        if length == 0 || length > LONGEST {
            return Err(Malformed("a loan of nothing, or of too much"));
        }
        let bit = 1_u64.checked_shl(loan).ok_or(Malformed("the number of a loan is too large"))?;
        if self.loans.borrowed & bit != 0 {
            return Err(Malformed("a loan that was not returned is made again"));
        }
        let call = self.calls.get(&id).filter(|call| call.receives);
        if self.is_client && call.is_some_and(|call| !call.has_head) {
            return Err(Malformed("a body before its head"));
        }
        // It is not longer than a loan.
        let cost = (length + FRAME_COST) as u32;
        let is_wanted = self.take_content(header, Content::Lent(loan), cost, length, None)?;
        if is_wanted {
            self.loans.borrowed |= bit;
            self.loans.arrived.push(Borrowed { call: id, loan, length, memory });
        } else {
            self.put(0, Kind::Returned, 0, &loan.to_be_bytes());
        }
        Ok(())
    }

    /// Takes what is to be read from the peer's memory. [`borrowed`](Self::borrowed) follows for each.
    pub(crate) fn take_borrowed(&mut self) -> Vec<Borrowed> {
        std::mem::take(&mut self.loans.arrived)
    }

    /// Returns a loan, which was read to these bytes; `None` if that has failed, which ends the call.
    pub(crate) fn borrowed(&mut self, id: u32, loan: u32, bytes: Option<Bytes>) {
        self.loans.borrowed &= !1_u64.checked_shl(loan).unwrap_or(0);
        self.put(0, Kind::Returned, 0, &loan.to_be_bytes());
        let Some(call) = self.calls.get_mut(&id) else { return };
        let is_it = |chunk: &Chunk| matches!(chunk.content, Content::Lent(lent) if lent == loan);
        let Some(place) = call.chunks.iter().position(is_it) else { return };
        match bytes {
            Some(bytes) => call.chunks[place].content = Content::Bytes(bytes),
            None => {
                // Nothing behind it can be read.
                let cost = call.chunks.drain(place..).map(|chunk| chunk.cost).sum();
                call.failed = Some(call.failed.unwrap_or(Code::Internal));
                self.grant(id, cost);
                self.reset(id, Code::Internal);
            }
        }
        if let Some(call) = self.calls.get_mut(&id) {
            self.after.wakers.extend(call.reader.take());
        }
    }
}

impl Call {
    /// Returns whether the next part of the body is still being read.
    pub(super) fn waits_for_loan(&self) -> bool {
        matches!(self.chunks.front(), Some(Chunk { content: Content::Lent(_), .. }))
    }
}
