//! Long bodies one-sidedly: this end lends memory that the peer reads, and reads what the peer lends.

use std::task::{Context, Waker};

use bytes::{Buf, Bytes};

use super::{Call, Chunk, Content, FRAME_COST, Machine};
use crate::wire::{Code, Header, Kind, Malformed, number};

/// The shortest part of a body that is lent: for a shorter one a copy is quicker than another message each way.
const SHORTEST: usize = 128 << 10;
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
    /// The one that makes the memory, and looks after it while it is watched.
    keeper: Option<Waker>,
    is_watched: bool,
    /// The checks since each loan was made, of those that the peer has.
    lent: Vec<(u32, u8)>,
    /// Something was lent or borrowed since the last check.
    is_used: bool,
    /// The loans of the peer that this end has, as bits.
    borrowed: u64,
    /// Those that were returned, with the place of that frame in all that is written.
    returned: Vec<(u32, u64)>,
    /// Those that are to be read.
    arrived: Vec<Borrowed>,
}

/// What the loans need.
pub(crate) enum Need {
    /// Memory that can be lent, and checks from now on.
    Memory,
    /// Checks from now on.
    Checks,
}

/// What a check of the loans finds.
pub(crate) enum Checked {
    /// Nothing is lent or borrowed, nor was since the last check. The memory is no longer used.
    Idle(Option<Box<dyn Lender>>),
    InUse,
    /// The peer keeps a loan.
    Overdue,
}

impl Loans {
    /// Returns whether one of the ends has loans of the other.
    pub(super) fn are_out(&self) -> bool {
        !self.lent.is_empty() || self.borrowed != 0
    }
}

impl Machine {
    /// Returns what the loans need. If that is nothing, the waker is woken when it is something.
    pub(crate) fn loans_need(&mut self, cx: &Context<'_>) -> Option<Need> {
        let loans = &mut self.loans;
        if std::mem::take(&mut loans.is_wanted) {
            loans.is_watched = true;
            return Some(Need::Memory);
        }
        if loans.is_used && !std::mem::replace(&mut loans.is_watched, loans.is_used) {
            return Some(Need::Checks);
        }
        self.after.register(&mut loans.keeper, cx);
        None
    }

    /// Lends from this memory from now on.
    pub(crate) fn lend_from(&mut self, lender: Box<dyn Lender>) {
        self.loans.lender = Some(lender);
        (self.loans.is_used, self.loans.is_wanted) = (true, false);
    }

    /// Checks the loans. It is done at intervals.
    pub(crate) fn check_loans(&mut self) -> Checked {
        // What the peer has returned is perhaps not read as long as this is so.
        let is_deaf = self.is_full();
        let Loans { lent, is_used, lender, borrowed, is_watched, .. } = &mut self.loans;
        lent.iter_mut().filter(|_| !is_deaf).for_each(|(_, checks)| *checks += 1);
        if lent.iter().any(|(_, checks)| *checks > PATIENCE) {
            return Checked::Overdue;
        }
        if std::mem::take(is_used) || !lent.is_empty() || *borrowed != 0 {
            return Checked::InUse;
        }
        *is_watched = false;
        Checked::Idle(lender.take())
    }

    /// Returns whether a body of this length is lent. If only memory is lacking for it, that is made.
    pub(super) fn is_lent(&mut self, length: usize) -> bool {
        if length < SHORTEST || self.peer.loans.is_none() {
            return false;
        }
        if self.loans.lender.is_none() && !std::mem::replace(&mut self.loans.is_wanted, true) {
            self.after.wakers.extend(self.loans.keeper.take());
        }
        self.loans.lender.is_some()
    }

    /// Lends the next part of a body, if it is long, and there is room for it at both ends.
    pub(super) fn lend(&mut self, id: u32, body: &mut Bytes) -> bool {
        if !self.is_lent(body.len()) {
            return false;
        }
        let Some(call) = self.calls.get_mut(&id).filter(|call| call.sends) else {
            return false;
        };
        let window = usize::try_from(call.send_window.min(self.send_window)).unwrap_or(usize::MAX);
        let length = body.len().min(window.saturating_sub(FRAME_COST)).min(LONGEST);
        if length < SHORTEST {
            return false;
        }
        let lent = self.loans.lender.as_mut().and_then(|lender| lender.lend(&body[..length]));
        let Some((loan, memory)) = lent else { return false };
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

    /// Takes the memory, which nothing is lent from any more.
    pub(crate) fn take_lender(&mut self) -> Option<Box<dyn Lender>> {
        self.loans.lender.take()
    }

    /// Takes back what the peer has read.
    pub(super) fn receive_returned(&mut self, header: Header, payload: &[u8]) -> Result<(), Malformed> {
        let loan = number(payload)?;
        if header.call != 0 {
            return Err(Malformed("a return for a call"));
        }
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
        if self.local.loans.is_none() {
            return Err(Malformed("memory is lent to an end that does not read it"));
        }
        if !(SHORTEST..=LONGEST).contains(&length) {
            return Err(Malformed("a loan of too little, or of too much"));
        }
        let bit = 1_u64.checked_shl(loan).ok_or(Malformed("the number of a loan is too large"))?;
        let written = self.output.written_in_all();
        self.loans.returned.retain(|(_, place)| *place > written);
        let is_returned = self.loans.returned.iter().all(|(returned, _)| *returned != loan);
        if self.loans.borrowed & bit != 0 || !is_returned {
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
            if !std::mem::replace(&mut self.loans.is_used, true) && !self.loans.is_watched {
                self.after.wakers.extend(self.loans.keeper.take());
            }
            self.loans.arrived.push(Borrowed { call: id, loan, length, memory });
        } else {
            self.put_returned(loan);
        }
        Ok(())
    }

    fn put_returned(&mut self, loan: u32) {
        self.put(0, Kind::Returned, 0, &loan.to_be_bytes());
        let place = self.output.written_in_all() + self.output.len() as u64;
        self.loans.returned.push((loan, place));
    }

    /// Takes what is to be read from the peer's memory. [`borrowed`](Self::borrowed) follows for each.
    pub(crate) fn take_borrowed(&mut self) -> Vec<Borrowed> {
        std::mem::take(&mut self.loans.arrived)
    }

    /// Returns a loan, which was read to these bytes; `None` if that has failed, which ends the call.
    pub(crate) fn borrowed(&mut self, id: u32, loan: u32, bytes: Option<Bytes>) {
        self.loans.borrowed &= !1_u64.checked_shl(loan).unwrap_or(0);
        self.put_returned(loan);
        let is_it = |chunk: &Chunk| matches!(chunk.content, Content::Lent(lent) if lent == loan);
        let call = self.calls.get_mut(&id);
        let chunk = call.and_then(|call| call.chunks.iter_mut().find(|chunk| is_it(chunk)));
        match (chunk, bytes) {
            (Some(chunk), Some(bytes)) => chunk.content = Content::Bytes(bytes),
            (Some(_), None) => {
                self.cut_at_loan(id);
                self.reset(id, Code::Internal);
            }
            (None, bytes) => self.after.bytes.extend(bytes),
        }
        if let Some(call) = self.calls.get_mut(&id) {
            self.after.wakers.extend(call.reader.take());
        }
    }

    /// Ends a body before the first part that is still being read. It has failed, also if its end had come.
    pub(super) fn cut_at_loan(&mut self, id: u32) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let is_lent = |chunk: &Chunk| matches!(chunk.content, Content::Lent(_));
        let Some(place) = call.chunks.iter().position(is_lent) else { return };
        let mut cost = 0;
        for chunk in call.chunks.drain(place..) {
            cost += chunk.cost;
            self.after.bytes.extend(chunk.into_bytes());
        }
        call.trailers = None;
        call.failed = Some(call.failed.unwrap_or(Code::Internal));
        self.grant(id, cost);
    }
}

impl Call {
    /// Returns whether a part of the body is still being read.
    pub(super) fn has_loan(&self) -> bool {
        self.chunks.iter().any(|chunk| matches!(chunk.content, Content::Lent(_)))
    }

    /// Returns whether the next part of the body is.
    pub(super) fn waits_for_loan(&self) -> bool {
        matches!(self.chunks.front(), Some(Chunk { content: Content::Lent(_), .. }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::sync::{Arc, Mutex, PoisonError};

    use proptest::prelude::*;

    use super::*;
    use crate::machine::{Answer, End, Read, Sent};
    use crate::wire::{Ends, HEADER, Origin, Settings};

    const WINDOW: u32 = 1 << 20;
    const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
    const ENDS: Ends = Ends { local: ANY, peer: ANY };
    const SETTINGS: Settings = Settings {
        frame: 64 << 10,
        call_window: WINDOW,
        window: 2 * WINDOW,
        calls: 9,
        head: 16 << 10,
        loans: Some(ENDS),
    };

    /// Memory of a few places, which the other end finds here.
    #[derive(Clone)]
    struct Shelf(Arc<Mutex<[Option<Vec<u8>>; 3]>>);

    impl Shelf {
        fn with<R>(&self, act: impl FnOnce(&mut [Option<Vec<u8>>; 3]) -> R) -> R {
            act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
        }

        fn is_empty(&self) -> bool {
            self.with(|places| places.iter().all(Option::is_none))
        }
    }

    impl Lender for Shelf {
        fn lend(&mut self, bytes: &[u8]) -> Option<(u32, [u8; 16])> {
            self.with(|places| {
                let place = places.iter().position(Option::is_none)?;
                places[place] = Some(bytes.to_vec());
                let mut memory = [0; 16];
                memory[12..].copy_from_slice(&(bytes.len() as u32).to_be_bytes());
                Some((place as u32, memory))
            })
        }

        fn take_back(&mut self, loan: u32) {
            let place = self.with(|places| places[loan as usize].take());
            assert!(place.is_some(), "{loan} was lent");
        }
    }

    /// A client and a server, the first of which lends from a shelf.
    struct Pair {
        machines: [Machine; 2],
        shelf: Shelf,
        /// What the server has to read.
        borrowed: VecDeque<Borrowed>,
        /// The bytes that the server has read of each call.
        came: Vec<(Vec<u8>, Seen)>,
    }

    /// What the server has seen of the end of a body.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Seen {
        Nothing,
        End,
        /// It reads no more.
        Stopped,
    }

    fn cx() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    impl Pair {
        fn new() -> Self {
            let machine = |is_client| Machine::new(is_client, SETTINGS, SETTINGS, Origin::default());
            let (mut machines, shelf) = ([machine(true), machine(false)], Shelf(Arc::default()));
            machines[0].lend_from(Box::new(shelf.clone()));
            Self { machines, shelf, borrowed: VecDeque::new(), came: Vec::new() }
        }

        /// Begins a call with a body of its own, which is not short. Returns what could not be sent yet.
        fn post(&mut self, length: usize) -> Bytes {
            let id = self.machines[0].open();
            let mut body: Bytes = (0..length).map(|place| (place / 7 + id as usize) as u8).collect();
            let _ = self.machines[0].send(id, &mut Some(HEAD.to_vec()), &mut body, END_OF_BODY, &mut cx());
            self.came.push((Vec::new(), Seen::Nothing));
            body
        }

        /// Begins a call whose body has not begun.
        fn begin(&mut self) {
            let id = self.machines[0].open();
            let _ = self.machines[0].send(id, &mut Some(HEAD.to_vec()), &mut Bytes::new(), None, &mut cx());
            self.came.push((Vec::new(), Seen::Nothing));
        }

        /// Passes all frames on, and has the server read what has come.
        fn exchange(&mut self) {
            for from in [0, 1, 0, 1] {
                let mut bytes = Vec::new();
                let [one, other] = &mut self.machines;
                let (from, to) = if from == 0 { (one, other) } else { (other, one) };
                from.output()
                    .with_slices(|slices| slices.iter().for_each(|slice| bytes.extend_from_slice(slice)));
                from.output().advance(bytes.len());
                let mut rest = Bytes::from(bytes);
                while let Some(header) = rest.first_chunk::<HEADER>() {
                    let header = Header::decode(header).unwrap_or_else(|error| panic!("{}", error.0));
                    rest.advance(HEADER);
                    let payload = rest.split_to(header.length as usize);
                    to.receive(header, payload).unwrap_or_else(|error| panic!("{}", error.0));
                }
                self.borrowed.extend(self.machines[1].take_borrowed());
                self.read();
            }
        }

        /// Has the server read what is there.
        fn read(&mut self) {
            for (id, (came, seen)) in (1..).zip(&mut self.came) {
                while *seen != Seen::Stopped {
                    match self.machines[1].read(id, &mut cx()) {
                        Ok(Some(Read::Data(bytes, _))) => came.extend_from_slice(&bytes),
                        Ok(Some(Read::Trailers(_))) => *seen = Seen::End,
                        Ok(Some(Read::End)) => break,
                        Ok(None) | Err(_) => break,
                    }
                }
            }
        }

        /// Has the server read one of the loans, or fail to.
        fn borrow(&mut self, which: usize, succeeds: bool) {
            let Some(borrowed) = self.borrowed.remove(which % self.borrowed.len().max(1)) else { return };
            let bytes = self.shelf.with(|places| places[borrowed.loan as usize].clone().expect("it is lent"));
            assert_eq!(bytes.len(), borrowed.length);
            self.machines[1].borrowed(borrowed.call, borrowed.loan, succeeds.then(|| bytes.into()));
        }
    }

    /// The head of a request.
    const HEAD: [u8; 4] = [1, 1, b'/', 0];
    /// With the trailer of a call of gRPC that is fine.
    const END_OF_BODY: End<'static> = Some(Some(&[130]));

    fn wants_memory(machine: &mut Machine) -> bool {
        matches!(machine.loans_need(&cx()), Some(Need::Memory))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        // Loans are read in any order, some calls are given up or fail: what comes is the beginning of what was sent, all of it
        // for the others, and no loan is left.
        #[test]
        fn bodies_come_whole_and_loans_return(
            lengths in prop::collection::vec(5_000_usize..900_000, 1..5),
            steps in prop::collection::vec((0_u8..12, any::<usize>()), 0..40),
        ) {
            let mut ends = Pair::new();
            let is_lost = steps.len() % 3 == 0;
            let count = steps.len();
            let mut left: Vec<_> = lengths.iter().map(|length| ends.post(*length)).collect();
            let mut is_spoilt = vec![false; lengths.len()];
            let all = std::iter::repeat_n((0, 0), 60);
            for (number, (step, index)) in steps.into_iter().chain(all).enumerate() {
                ends.exchange();
                if is_lost && number == count {
                    // The device ends the reads that are under way.
                    ends.machines[1].fail();
                    ends.read();
                    for (id, (_, seen)) in (1..).zip(&ends.came).filter(|(_, (_, seen))| *seen != Seen::Stopped) {
                        let read = ends.machines[1].read(id, &mut cx());
                        prop_assert!(!matches!(read, Ok(None)), "call {} waits, behind {:?}", id, seen);
                    }
                    while !ends.borrowed.is_empty() {
                        ends.borrow(0, false);
                    }
                    break;
                }
                let call = index % lengths.len();
                match step {
                    0..8 => ends.borrow(index, true),
                    8 if !ends.borrowed.is_empty() => {
                        let which = index % ends.borrowed.len();
                        is_spoilt[ends.borrowed[which].call as usize - 1] = true;
                        ends.borrow(which, false);
                    }
                    9 => {
                        is_spoilt[call] = true;
                        ends.machines[0].reset(call as u32 + 1, Code::Cancel);
                    }
                    10 => {
                        is_spoilt[call] = true;
                        ends.came[call].1 = Seen::Stopped;
                        ends.machines[1].stop_reading(call as u32 + 1);
                    }
                    _ => {}
                }
                for (index, body) in left.iter_mut().enumerate().filter(|(_, body)| !body.is_empty()) {
                    let _ = ends.machines[0].send(index as u32 + 1, &mut None, body, END_OF_BODY, &mut cx());
                }
            }
            ends.exchange();
            prop_assert!(is_lost || ends.shelf.is_empty() && !ends.machines[0].loans.are_out());
            prop_assert_eq!(ends.machines[1].loans.borrowed, 0);
            for ((came, length), (id, is_spoilt)) in ends.came.iter().zip(lengths).zip((1..).zip(is_spoilt)) {
                let sent: Vec<u8> = (0..length).map(|place| (place / 7 + id) as u8).collect();
                let (came, seen) = came;
                prop_assert!(sent.starts_with(came), "call {}", id);
                prop_assert!(*seen != Seen::End || came.len() == length, "call {}: {} of {}", id, came.len(), length);
                prop_assert!(*seen == Seen::End || is_spoilt || is_lost, "call {}", id);
            }
        }
    }

    #[test]
    fn kept_loan_is_overdue() {
        let mut ends = Pair::new();
        ends.post(SHORTEST);
        ends.exchange();
        assert!(ends.machines[0].loans.are_out());
        let client = &mut ends.machines[0];
        assert!((0..PATIENCE).all(|_| matches!(client.check_loans(), Checked::InUse)));
        assert!(matches!(client.check_loans(), Checked::Overdue));
    }

    // A full end may not have read the frame that returns the loan.
    #[test]
    fn full_end_does_not_count_checks() {
        let mut ends = Pair::new();
        ends.post(3 * LONGEST);
        ends.exchange();
        ends.post(900_000);
        let client = &mut ends.machines[0];
        assert!(client.is_full() && client.loans.are_out());
        assert!((0..4 * PATIENCE).all(|_| matches!(client.check_loans(), Checked::InUse)));
        ends.exchange();
        let client = &mut ends.machines[0];
        assert!((0..PATIENCE).all(|_| matches!(client.check_loans(), Checked::InUse)));
        assert!(matches!(client.check_loans(), Checked::Overdue));
    }

    // Also if no call is left.
    #[test]
    fn both_ends_wait_for_the_last_return() {
        let mut ends = Pair::new();
        ends.post(SHORTEST);
        ends.exchange();
        ends.machines[1].go_away(Code::None);
        // The task that answers and the reader of the body.
        ends.machines[1].release(1, Code::Internal);
        ends.machines[1].release(1, Code::Internal);
        ends.machines[0].release(1, Code::Cancel);
        ends.exchange();
        for machine in &mut ends.machines {
            assert!(machine.going && machine.calls.is_empty() && machine.output().is_empty());
            assert!(!machine.is_finished(), "client: {}", machine.is_client());
        }
        ends.borrow(0, true);
        assert!(!ends.machines[1].is_finished(), "it is not written");
        ends.exchange();
        assert!(ends.machines.iter().all(Machine::is_finished));
    }

    #[test]
    fn call_that_has_ended_lends_nothing() {
        let mut ends = Pair::new();
        ends.begin();
        ends.machines[0].reset(1, Code::Cancel);
        let mut body = Bytes::from_static(&[0; SHORTEST]);
        let sent = ends.machines[0].send(1, &mut None, &mut body, END_OF_BODY, &mut cx());
        assert!(sent.is_err() && body.len() == SHORTEST && ends.shelf.is_empty());
    }

    #[test]
    fn failed_loans_leave_the_window_as_it_was() {
        let mut ends = Pair::new();
        for call in 1..=20 {
            ends.post(LONGEST);
            ends.exchange();
            assert_eq!(ends.borrowed.len(), 1, "call {call}");
            ends.borrow(0, false);
            ends.exchange();
        }
    }

    #[test]
    fn return_is_for_no_call() {
        let mut ends = Pair::new();
        ends.post(SHORTEST);
        let mut receive = |call| {
            let header = Header { length: 4, call, kind: Kind::Returned, flags: 0 };
            ends.machines[0].receive(header, Bytes::from_static(&[0; 4])).map(|_| ()).map_err(|error| error.0)
        };
        assert_eq!(receive(1), Err("a return for a call"));
        assert_eq!(receive(0), Ok(()));
        assert_eq!(receive(0), Err("a loan is returned that was not made"));
    }

    // All of the answer has come but what is still being read.
    #[test]
    fn answer_that_is_lent_is_not_whole() {
        let mut ends = Pair::new();
        ends.begin();
        ends.exchange();
        let [client, server] = &mut ends.machines;
        let lent = Header { length: 20, call: 1, kind: Kind::Lent, flags: 0 };
        let payload: Bytes = [&[0; 16][..], &(SHORTEST as u32).to_be_bytes()].concat().into();
        let early = client.receive(lent, payload).map(|_| ()).map_err(|error| error.0);
        assert_eq!(early, Err("a body before its head"));
        server.lend_from(Box::new(ends.shelf.clone()));
        let (mut head, mut body) = (Some(vec![0, 200]), Bytes::from_static(&[7; SHORTEST]));
        assert_eq!(server.send(1, &mut head, &mut body, Some(None), &mut cx()), Ok(Sent::All));
        ends.exchange();
        let client = &mut ends.machines[0];
        assert!(matches!(client.answer(1, &mut cx()), Ok(Some(Answer::Begun(_)))));
        assert!(matches!(client.read(1, &mut cx()), Ok(None)), "it waits");
        let borrowed = client.take_borrowed();
        let place = ends.shelf.with(|places| places[borrowed[0].loan as usize].clone().expect("it is lent"));
        client.borrowed(1, borrowed[0].loan, Some(place.into()));
        let Ok(Some(Read::Data(bytes, true))) = client.read(1, &mut cx()) else { panic!("all of it") };
        assert_eq!(bytes, [7; SHORTEST][..]);
        ends.exchange();
        assert!(ends.shelf.is_empty());
    }

    // A peer that does not wait for the frame could have any number of them queued here.
    #[test]
    fn number_of_a_loan_is_free_when_its_return_is_written() {
        let mut ends = Pair::new();
        ends.begin();
        ends.exchange();
        let server = &mut ends.machines[1];
        let lend = |server: &mut Machine| {
            let header = Header { length: 20, call: 1, kind: Kind::Lent, flags: 0 };
            let payload = [&[0; 16][..], &(SHORTEST as u32).to_be_bytes()].concat();
            server.receive(header, payload.into()).map(|_| ()).map_err(|malformed| malformed.0)
        };
        let again = Err("a loan that was not returned is made again");
        assert_eq!(lend(server), Ok(()));
        assert_eq!(lend(server), again, "it is being read");
        for is_read in [true, false] {
            if is_read {
                server.borrowed(1, 0, Some(Bytes::from_static(&[0; SHORTEST])));
                server.stop_reading(1);
            } else {
                assert_eq!(lend(server), Ok(()), "nobody reads it");
            }
            assert_eq!(lend(server), again, "its return is not written");
            let length = server.output().len();
            server.output().advance(length - 1);
            assert_eq!(lend(server), again, "half of its return is written");
            server.output().advance(1);
        }
        assert_eq!(lend(server), Ok(()));
    }

    #[test]
    fn unused_memory_is_given_back_and_wanted_again() {
        let mut ends = Pair::new();
        let check = |ends: &mut Pair| matches!(ends.machines[0].check_loans(), Checked::Idle(Some(_)));
        assert!(!check(&mut ends), "it is new");
        ends.post(SHORTEST);
        ends.exchange();
        assert!(!check(&mut ends) && !check(&mut ends), "it is lent");
        let server = &mut ends.machines[1];
        assert!(matches!(server.loans_need(&cx()), Some(Need::Checks)));
        assert!((0..9).all(|_| matches!(server.check_loans(), Checked::InUse)), "it is being read");
        ends.borrow(0, true);
        ends.exchange();
        assert_eq!(ends.came[0].0.len(), SHORTEST);
        ends.post(SHORTEST);
        ends.exchange();
        ends.borrow(0, true);
        ends.exchange();
        assert!(!check(&mut ends), "it was lent since the last check");
        assert!(check(&mut ends));
        let server = &mut ends.machines[1];
        assert!(matches!(server.check_loans(), Checked::InUse));
        assert!(matches!(server.check_loans(), Checked::Idle(None)));
        assert!(server.loans_need(&cx()).is_none());
        assert!(!wants_memory(&mut ends.machines[0]));
        ends.post(SHORTEST - 1);
        assert!(!wants_memory(&mut ends.machines[0]));
        ends.post(SHORTEST);
        assert!(wants_memory(&mut ends.machines[0]), "a long body");
        ends.post(SHORTEST);
        let shelf = Box::new(ends.shelf.clone());
        ends.machines[0].lend_from(shelf);
        assert!(ends.machines[0].loans_need(&cx()).is_none(), "it is there");
        ends.exchange();
        assert_eq!(ends.came[3].0.len(), SHORTEST, "it came in frames");
    }
}
