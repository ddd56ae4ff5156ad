//! The commands, and the user of our end.

use common::raw;
use futures::FutureExt;
use tokio_rdma::types::RemoteKey;
use tokio_rdma::{Access, Buffer, Op, QueuePair, RemoteRegion};

use super::{BLANK, Known, Outcome, Session, pattern};
use crate::input::Input;
use crate::reader::{PAYLOAD, PEER_KEY, SECRET};

/// The most regions of our end.
const REGIONS: usize = 8;

impl Session {
    pub(super) async fn command(&mut self, input: &mut Input<'_>) {
        match input.below(20) {
            0 => self.raw(input),
            1..=4 => self.frame(input),
            5 | 6 => self.post_receive(input),
            7 => self.post(input, |queue_pair, buffer, _| queue_pair.send(buffer)),
            8 => self.post(input, |queue_pair, buffer, remote| queue_pair.write(buffer, &remote)),
            9 => self.post_read(input),
            10 => self.register(input).await,
            11 => self.unregister(input).await,
            12 => self.answer(input),
            13 => self.burst = !self.burst,
            14 => self.region_request(input),
            15 => self.peer.deaf = !self.peer.deaf,
            16 => self.user(input),
            17 => self.leave(input),
            18 => self.disconnect(),
            _ => self.valid_write(input),
        }
    }

    fn keep(&self, future: impl Future<Output = Outcome> + 'static) {
        self.pending.push(future.boxed_local());
    }

    fn buffer(&self, length: usize, fill: u8) -> Buffer {
        let mut buffer = self.adapter.buffer(length).expect("memory");
        buffer.fill(fill);
        buffer
    }

    fn post_receive(&mut self, input: &mut Input<'_>) {
        let length = input.length();
        let Some(queue_pair) = &self.queue_pair else { return };
        if let Ok(op) = queue_pair.receive(self.buffer(length, BLANK)) {
            let place = self.receives;
            self.receives += 1;
            self.rooms.push_back(length);
            self.keep(async move {
                let (result, buffer) = op.await;
                Outcome::Received(place, result, buffer)
            });
        }
    }

    fn post<E>(
        &mut self,
        input: &mut Input<'_>,
        post: impl FnOnce(&QueuePair, Buffer, RemoteRegion) -> Result<Op<Buffer>, E>,
    ) {
        let (length, forget) = (self.payload_length(input), input.flag());
        let remote = RemoteRegion::new(input.number(0), RemoteKey(PEER_KEY), u32::MAX);
        let Some(queue_pair) = &self.queue_pair else { return };
        if let Ok(op) = post(queue_pair, self.buffer(length, PAYLOAD), remote)
            && !forget
        {
            self.keep(async move {
                let _ = op.await;
                Outcome::Other
            });
        }
    }

    fn post_read(&mut self, input: &mut Input<'_>) {
        let (length, forget) = (self.payload_length(input), input.flag());
        let remote = RemoteRegion::new(0, RemoteKey(PEER_KEY), u32::MAX);
        let Some(queue_pair) = &self.queue_pair else { return };
        if let Ok(op) = queue_pair.read(self.buffer(length, BLANK), &remote)
            && !forget
        {
            self.keep(async move {
                let (result, buffer) = op.await;
                Outcome::Read(result, buffer)
            });
        }
    }

    /// A receive into a region, or a read of the peer's memory into one.
    fn region_request(&mut self, input: &mut Input<'_>) {
        let (place, receive, from, to) = (input.byte(), input.flag(), input.length(), input.length());
        let Some(place) = usize::from(place).checked_rem(self.regions.len()) else { return };
        let Some(queue_pair) = &self.queue_pair else { return };
        let known = &mut self.regions[place];
        let (from, to) = (from.min(to).min(known.bytes.len()), from.max(to).min(known.bytes.len()));
        let slice = known.region.slice(from..to).expect("in bounds");
        let remote = RemoteRegion::new(0, RemoteKey(PEER_KEY), u32::MAX);
        let posted =
            if receive { queue_pair.receive(slice).ok() } else { queue_pair.read(slice, &remote).ok() };
        let Some(op) = posted else { return };
        known.local = true;
        known.changes();
        if receive {
            self.receives += 1;
            self.rooms.push_back(to - from);
        }
        self.keep(async move {
            let _ = op.await;
            Outcome::Other
        });
    }

    async fn register(&mut self, input: &mut Input<'_>) {
        let (rights, length) = (input.byte(), input.length().max(1));
        if self.regions.len() >= REGIONS {
            return;
        }
        let access = Access::from_bits_truncate((rights & 31).into());
        let region = self.adapter.register(length, access).await.expect("registered");
        let bytes =
            if access.contains(Access::REMOTE_READ) { pattern(0x11, length) } else { vec![SECRET; length] };
        region.write(0, &bytes).expect("in bounds");
        self.regions.push(Known {
            region,
            bytes,
            registered: true,
            granted: vec![false; length],
            local: false,
            disputed: false,
            readers: Vec::new(),
        });
    }

    async fn unregister(&mut self, input: &mut Input<'_>) {
        let Some(place) = usize::from(input.byte()).checked_rem(self.regions.len()) else { return };
        // All that the peer has sent before was legal, so it must have come. In memory of ours that cannot be seen.
        self.reader.clean &= self.regions[place].is_known();
        if self.reader.clean {
            self.peer.deaf = false;
            self.until("the region is as it should be", |session| {
                session.regions[place].is_as_expected() && session.reader.reads.is_empty()
            })
            .await;
            // Of a Write that changes nothing it cannot be seen either.
            self.reader.clean &= !self.burst;
        }
        // An answer from this memory that is not sent in full stays a part of a frame, with nothing behind it.
        self.must_terminate &= self.reader.terminated;
        self.regions[place].registered = false;
        self.regions[place].region.deregister().await.expect("deregistered");
    }

    /// Something that ends the connection from our side.
    fn user(&mut self, input: &mut Input<'_>) {
        self.interferes();
        match input.below(5) {
            0 => {
                if let Some(queue_pair) = &self.queue_pair {
                    queue_pair.flush();
                }
            }
            1 => self.queue_pair = None,
            2 => self.connection = None,
            3 => self.establishing = None,
            _ => {
                if let Some(connection) = &self.connection {
                    connection.cancel();
                }
            }
        }
    }

    fn disconnect(&mut self) {
        if let Some(connection) = self.connection.clone() {
            self.interferes();
            self.keep(async move {
                let _ = connection.disconnect().await;
                Outcome::Other
            });
        }
    }

    fn leave(&mut self, input: &mut Input<'_>) {
        self.interferes();
        match input.below(3) {
            0 => self.peer.finish(),
            1 => self.peer.close(true),
            _ => self.emit(raw::terminate(&[0; 4]), false, None),
        }
    }

    /// The connection ends for another reason than a violation, unless our stack has seen one.
    fn interferes(&mut self) {
        self.reader.clean = false;
        self.must_terminate &= self.reader.terminated;
    }
}
