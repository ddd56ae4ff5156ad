//! The queue pairs of a lane: their beginning, their changes, and their end.

use std::io;
use std::sync::Arc;

use super::{Lane, Member};
use crate::error::{NotifyError, OpenError, PostErrorKind};
use crate::inflight::CompletionSink;
use crate::proto::qp::QueuePairState;
use crate::provider::lane::LaneState;
use crate::provider::params::{QueuePairParts, Queues};
use crate::soft::queue_pair::QueuePair;
use crate::types::{OpKind, QueueKind, QueuePairId};

impl Member {
    /// Creates the member of a place that has no queue pair. The next one gets this id.
    pub(super) fn empty(id: QueuePairId) -> Self {
        let state = LaneState::Gone;
        Self { id, state, reads: false, send_room: 0, receive_room: 0, queue_pair: None }
    }
}

impl Lane {
    /// Makes a queue pair.
    ///
    /// # Errors
    /// `Os` when the lane has as many as it may have, and `DeviceRemoved`.
    pub(crate) fn queue_pair(&mut self) -> Result<(QueuePairId, Arc<QueuePair>), OpenError> {
        // One that has ended may leave its place.
        self.collect();
        if self.rare.ended.is_some() {
            return Err(OpenError::DeviceRemoved);
        }
        let parts = &self.rare.parameters;
        let limit = parts.queue_pairs;
        let free = self.members.iter_mut().find(|member| member.queue_pair.is_none());
        let member = free.ok_or_else(|| {
            let full = format!("the lane has as many queue pairs as it may have, {limit}");
            let source = Arc::new(io::Error::new(io::ErrorKind::OutOfMemory, full));
            OpenError::Os { call: "Lane::queue_pair", source }
        })?;
        let sink = || CompletionSink::to_lane(self.inbox.clone(), member.id);
        let shared = self.rare.shared.clone();
        (member.send_room, member.receive_room) =
            (parts.send_depth, if shared.is_none() { parts.receive_depth } else { 0 });
        let settings = QueuePairParts {
            receive_depth: member.receive_room as usize,
            send_depth: parts.send_depth as usize,
            receive_entries: 1,
            send_entries: parts.send_entries as usize,
            inline: parts.inline as usize,
            receive: sink(),
            initiator: sink(),
            inbox: None,
            credited: false,
        };
        // Polls of the lane read the sockets.
        let queues = Queues { shared, sends: None, receives: None };
        let queue_pair = QueuePair::new(self.rare.adapter.clone(), settings, queues);
        member.queue_pair = Some(queue_pair.clone());
        member.state = LaneState::Unconnected;
        Ok((member.id, queue_pair))
    }

    /// Ends the connection of a queue pair, or its attempt to connect. What is outstanding comes out of the next polls.
    pub(crate) fn close(&mut self, id: QueuePairId) {
        self.ring();
        if let Some(queue_pair) = self.member(id).and_then(|member| member.queue_pair.clone()) {
            queue_pair.released();
        }
        self.collect();
    }

    /// Returns the progress of a queue pair.
    pub(crate) fn state(&mut self, id: QueuePairId) -> LaneState {
        self.collect();
        self.member(id).map_or(LaneState::Gone, |member| member.state)
    }

    /// Returns the queue pair with this id, unless it is gone.
    #[inline]
    pub(super) fn member(&mut self, id: QueuePairId) -> Option<&mut Member> {
        let is_there = |member: &&mut Member| member.id == id && member.queue_pair.is_some();
        self.members.get_mut(id.place()).filter(is_there)
    }

    /// Checks again whether a request of the send queue can be posted.
    ///
    /// # Errors
    /// The reason why it cannot.
    #[cold]
    pub(super) fn admit(&mut self, id: QueuePairId, kind: OpKind) -> Result<(), PostErrorKind> {
        self.collect();
        if self.rare.ended.is_some() {
            return Err(PostErrorKind::DeviceRemoved);
        }
        let depth = self.rare.parameters.send_depth as usize;
        let connected = self.member(id).filter(|member| member.state == LaneState::Connected);
        let member = connected.ok_or(PostErrorKind::ConnectionInvalid)?;
        let is_read = matches!(kind, OpKind::Read | OpKind::CompareSwap | OpKind::FetchAdd);
        match member.send_room {
            0 => Err(PostErrorKind::QueueFull { queue: QueueKind::Send, depth }),
            _ if is_read && !member.reads => Err(PostErrorKind::NoReads),
            _ => Ok(()),
        }
    }

    /// Looks at what has happened to the queue pairs.
    #[cold]
    pub(super) fn look(&mut self) {
        if self.rare.adapter.is_removed() {
            self.rare.ended = Some(NotifyError::DeviceRemoved);
        }
        self.rare.connected.clear();
        for place in 0..self.members.len() {
            let Some(member) = self.members.get_mut(place) else { return };
            let Some(queue_pair) = &member.queue_pair else { continue };
            match queue_pair.phase() {
                QueuePairState::Unconnected | QueuePairState::Associated => {}
                QueuePairState::Connected => {
                    member.state = LaneState::Connected;
                    let connection = queue_pair.connection();
                    member.reads =
                        connection.is_some_and(|shared| shared.sending().queue.outbound.reads_at_all());
                    self.rare.connected.push(place);
                }
                QueuePairState::Over => {
                    member.state = LaneState::Ended;
                    self.release_ended(place);
                }
            }
        }
    }

    /// Removes a queue pair that has ended and has no request outstanding. The next one in its place has another id.
    #[cold]
    pub(super) fn release_ended(&mut self, place: usize) {
        let parts = &self.rare.parameters;
        let receives = if self.rare.shared.is_some() { 0 } else { parts.receive_depth };
        let rooms = (parts.send_depth, receives);
        let Some(member) = self.members.get_mut(place) else { return };
        if member.state == LaneState::Ended && (member.send_room, member.receive_room) == rooms {
            let generation = (member.id.0 >> 16) as u16;
            *member = Member::empty(QueuePairId::new(place as u16, generation.wrapping_add(1)));
        }
    }
}
