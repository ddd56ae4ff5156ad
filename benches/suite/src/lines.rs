//! The measurements: the table of races, with what each contender has to reach.

use crate::contenders::Make;
use crate::order::{Order, Posting};
use crate::statistics::Goal;

/// In what a line is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Microseconds each; less is better.
    Micros,
    /// Gigabytes a second; more is better.
    Gigabytes,
    /// A thousand a second; more is better.
    Thousands,
    /// The part of the bytes that have arrived which a reader receives, in percent; more is better.
    Percent,
}

impl Unit {
    /// For people.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Micros => "µs",
            Self::Gigabytes => "GB/s",
            Self::Thousands => "1000/s",
            Self::Percent => "%",
        }
    }

    /// The answer to an order in this unit: it is in nanoseconds, or for a part in bytes.
    pub(crate) fn of(self, order: Order, answer: f64) -> f64 {
        let nanoseconds = answer;
        match self {
            // Half of what is written arrives.
            Self::Percent => answer / (order.bytes() / 2) as f64 * 100.0,
            Self::Micros => nanoseconds / 1e3,
            Self::Thousands => order.operations() as f64 / nanoseconds * 1e6,
            Self::Gigabytes => order.bytes() as f64 / nanoseconds,
        }
    }

    /// The unit of the processor time, which is that of a gigabyte or of one operation.
    pub(crate) fn processor_text(self) -> &'static str {
        match self {
            Self::Gigabytes => "CPU s/GB",
            Self::Micros | Self::Thousands | Self::Percent => "CPU µs",
        }
    }

    /// A processor time in nanoseconds in that unit.
    pub(crate) fn processor_time(self, order: Order, nanoseconds: f64) -> f64 {
        match self {
            // A nanosecond a byte is a second a gigabyte.
            Self::Gigabytes => nanoseconds / order.bytes() as f64,
            Self::Micros | Self::Thousands | Self::Percent => nanoseconds / 1e3 / order.operations() as f64,
        }
    }

    /// Whether the first value is better.
    pub(crate) fn is_better(self, this: f64, that: f64) -> bool {
        if self == Self::Micros { this < that } else { this > that }
    }
}

/// One that takes part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contender {
    /// As the report names it.
    pub(crate) name: &'static str,
    /// How it runs.
    pub(crate) make: Make,
    /// Its ratio to the first contender.
    pub(crate) goal: Option<Goal>,
    /// How it posts, if not as the line says.
    pub(crate) how: Option<Posting>,
}

impl Contender {
    const fn new(name: &'static str, make: Make) -> Self {
        Self { name, make, goal: None, how: None }
    }

    /// One of ours, which has to reach something.
    const fn goal(self, goal: Goal) -> Self {
        Self { goal: Some(goal), ..self }
    }

    const fn how(self, how: Posting) -> Self {
        Self { how: Some(how), ..self }
    }

    /// Its order in a line.
    pub(crate) fn order(&self, order: Order) -> Order {
        match (order, self.how) {
            (Order::Write { size, count, .. }, Some(how)) => Order::Write { size, count, how },
            (order, _) => order,
        }
    }

    /// Whether it is this crate.
    pub(crate) fn is_ours(&self) -> bool {
        let (Make::Own([carrier, ..]) | Make::Both([carrier, ..])) = self.make else { return false };
        matches!(*carrier, "soft" | "stream" | "grpc" | "grpc-messages" | "framed")
    }
}

/// One race.
#[derive(Debug)]
pub(crate) struct Line {
    /// The word that `--only` takes.
    pub(crate) id: &'static str,
    /// As the report names it.
    pub(crate) title: &'static str,
    /// The order that is carried out in one batch.
    pub(crate) order: Order,
    pub(crate) unit: Unit,
    /// The cores of the active and the passive end.
    pub(crate) cores: [usize; 2],
    /// The first one is what the others are measured against.
    pub(crate) contenders: &'static [Contender],
}

const APART: [usize; 2] = [0, 1];
const TOGETHER: [usize; 2] = [0, 0];
const MIB: usize = 1 << 20;

const RAW: Contender = Contender::new("raw tokio TCP", Make::Own(&["raw"]));
/// Ends a connection as a disconnect does: shuts its own direction down, and waits for the end of the peer's.
const ORDERLY: Contender = Contender::new("raw tokio TCP, orderly end", Make::Own(&["raw", "--orderly"]));
/// Closes the socket without waiting for the peer.
const DROPPED: Contender = Contender::new("raw tokio TCP, close alone", Make::Own(&["raw"]));
const SOFT: Contender = Contender::new("soft", Make::Own(&["soft"]));
const CRC: Contender = Contender::new("soft, CRC", Make::Own(&["soft", "--crc"]));
const FABRIC: Contender = Contender::new("libfabric tcp", Make::Fabric(false));
const FABRIC_SPIN: Contender = Contender::new("libfabric tcp, polling", Make::Fabric(true));
const UCX: Contender = Contender::new("UCX tcp", Make::Ucx(false));
const UCX_SPIN: Contender = Contender::new("UCX tcp, polling", Make::Ucx(true));
/// Its transfers stand still for long when it sleeps in between, so it polls, as is its default.
const UCX_BULK: Contender = Contender::new("UCX tcp, polling", Make::Ucx(true));
const STREAM: Contender = Contender::new("byte stream over soft", Make::Own(&["stream"]));
/// Its reads sleep, as those of TCP do.
const SLEEPING: Contender =
    Contender::new("byte stream over soft, sleeping", Make::Own(&["stream", "--spin", "0"]));
const GRPC: Contender = Contender::new("tonic over soft", Make::Own(&["grpc"]));
const GRPC_TCP: Contender = Contender::new("tonic over TCP", Make::Own(&["grpc-tcp"]));
const MESSAGES: Contender = Contender::new("tonic in messages over soft", Make::Own(&["grpc-messages"]));
const FRAMED: Contender = Contender::new("frames over a byte stream over soft", Make::Own(&["framed"]));
const FRAMED_TCP: Contender = Contender::new("frames over TCP", Make::Own(&["framed-tcp"]));
const PAIR_TCP: Contender = Contender::new("raw tokio TCP", Make::Both(&["raw"]));
const PAIR: Contender = Contender::new("byte stream over soft", Make::Both(&["stream"]));
const KEPT: Contender = Contender::new("byte stream, kept connector", Make::Both(&["stream"]));
/// A program that does not keep a connector: one that has replaced tokio's types and nothing else.
const PAIR_ONE_OFF: Contender =
    Contender::new("byte stream, RdmaStream::connect", Make::Both(&["stream", "--one-off"]));
const QUINN: Contender = Contender::new("quinn", Make::Own(&["quinn"]));

const PING: Order = Order::Ping { size: 64, count: 200 };
const WRITE: Order = Order::Write { size: MIB, count: 128, how: Posting::Window };
const READ: Order = Order::Read { size: MIB, count: 128 };
const PAGES: Order = Order::Write { size: 4096, count: 16_384, how: Posting::Single };

/// All of them, in the order of the report.
pub(crate) const LINES: &[Line] = &[
    Line {
        id: "sleeping",
        title: "64 B round trip, sleeping, multi_thread",
        order: PING,
        unit: Unit::Micros,
        cores: APART,
        contenders: &[RAW, SOFT.goal(Goal::AtMost(1.05)), FABRIC, UCX, QUINN],
    },
    Line {
        id: "current-thread",
        title: "64 B round trip, sleeping, current_thread",
        order: PING,
        unit: Unit::Micros,
        cores: APART,
        contenders: &[
            Contender::new("raw tokio TCP", Make::Own(&["raw", "--workers", "0"])),
            Contender::new("soft", Make::Own(&["soft", "--workers", "0"])).goal(Goal::AtMost(1.06)),
        ],
    },
    Line {
        id: "shared-core",
        title: "64 B round trip, sleeping, both ends on one core",
        order: PING,
        unit: Unit::Micros,
        cores: TOGETHER,
        contenders: &[RAW, SOFT.goal(Goal::AtMost(1.07)), FABRIC, UCX],
    },
    Line {
        id: "spinning",
        title: "64 B round trip, spinning before sleeping (ratio to UCX that polls; raw TCP only sleeps)",
        order: PING,
        unit: Unit::Micros,
        cores: APART,
        contenders: &[
            UCX_SPIN,
            // The 20 µs end before the answer comes, time and again, where waking takes longer than that.
            Contender::new("soft, 20 µs", Make::Own(&["soft", "--spin", "20"])),
            Contender::new("soft, 100 µs", Make::Own(&["soft", "--spin", "100"])).goal(Goal::AtMost(1.05)),
            FABRIC_SPIN,
            RAW,
        ],
    },
    Line {
        id: "write",
        title: "RDMA Write 1 MiB, two cores",
        order: WRITE,
        unit: Unit::Gigabytes,
        cores: APART,
        contenders: &[
            RAW,
            SOFT.goal(Goal::AtLeast(0.98)),
            CRC.goal(Goal::AtLeast(0.85)),
            FABRIC,
            UCX_BULK,
            QUINN,
        ],
    },
    Line {
        id: "write-one-core",
        title: "RDMA Write 1 MiB, one core",
        order: WRITE,
        unit: Unit::Gigabytes,
        cores: TOGETHER,
        contenders: &[RAW, SOFT.goal(Goal::AtLeast(0.97)), CRC.goal(Goal::AtLeast(0.73)), FABRIC],
    },
    Line {
        id: "read",
        title: "RDMA Read 1 MiB, window of 16, two cores",
        order: READ,
        unit: Unit::Gigabytes,
        cores: APART,
        contenders: &[RAW, SOFT.goal(Goal::AtLeast(0.98)), CRC, FABRIC, UCX_BULK],
    },
    Line {
        id: "read-one-core",
        title: "RDMA Read 1 MiB, window of 16, one core",
        order: READ,
        unit: Unit::Gigabytes,
        cores: TOGETHER,
        contenders: &[RAW, SOFT.goal(Goal::AtLeast(0.96)), FABRIC],
    },
    Line {
        id: "pages",
        title: "RDMA Write 4 KiB, one by one",
        order: PAGES,
        unit: Unit::Gigabytes,
        cores: APART,
        contenders: &[RAW, SOFT.goal(Goal::AtLeast(0.98)), FABRIC, UCX_BULK],
    },
    Line {
        id: "batches",
        title: "RDMA Write 4 KiB, in batches of 16 (raw TCP one by one)",
        order: PAGES,
        unit: Unit::Gigabytes,
        cores: APART,
        contenders: &[
            RAW,
            SOFT.how(Posting::Batch).goal(Goal::AtLeast(4.6)),
            Contender::new("raw tokio TCP, 64 KiB writes", Make::Own(&["raw"])).how(Posting::Batch),
            FABRIC.how(Posting::Window),
            UCX_BULK.how(Posting::Window),
        ],
    },
    Line {
        id: "cycle",
        title: "Connect, Accept, CompleteConnect, Disconnect, 64 at once (raw: connect, echo of 1 byte, end)",
        order: Order::Cycle { at_once: 64, count: 1024 },
        unit: Unit::Thousands,
        cores: APART,
        contenders: &[ORDERLY, SOFT.goal(Goal::AtLeast(0.88)), DROPPED, QUINN],
    },
    Line {
        id: "cycle-single",
        title: "the same, one at a time",
        order: Order::Cycle { at_once: 1, count: 256 },
        unit: Unit::Thousands,
        cores: APART,
        contenders: &[ORDERLY, SOFT.goal(Goal::AtLeast(0.88)), DROPPED, QUINN],
    },
    Line {
        id: "stream-echo",
        title: "64 B echo by a byte stream",
        order: PING,
        unit: Unit::Micros,
        cores: APART,
        contenders: &[RAW, STREAM.goal(Goal::AtMost(0.4)), SLEEPING.goal(Goal::AtMost(1.04)), SOFT],
    },
    Line {
        id: "stream-echo-one-core",
        title: "64 B echo by a byte stream, both ends on one core",
        order: PING,
        unit: Unit::Micros,
        cores: TOGETHER,
        contenders: &[RAW, STREAM.goal(Goal::AtMost(1.06)), SLEEPING],
    },
    Line {
        id: "stream-bulk",
        title: "writes of 1 MiB to a byte stream",
        order: WRITE,
        unit: Unit::Gigabytes,
        cores: APART,
        contenders: &[RAW, STREAM.goal(Goal::AtLeast(1.0)), SOFT],
    },
    Line {
        id: "stream-bulk-one-core",
        title: "writes of 1 MiB to a byte stream, one core",
        order: WRITE,
        unit: Unit::Gigabytes,
        cores: TOGETHER,
        contenders: &[RAW, STREAM.goal(Goal::AtLeast(0.95))],
    },
    Line {
        id: "stream-connect",
        title: "connect and accept of byte streams that are held, one at a time, both ends in one process",
        order: Order::Pairs { at_once: 1, count: 200 },
        unit: Unit::Thousands,
        cores: APART,
        contenders: &[PAIR_TCP, KEPT.goal(Goal::AtLeast(0.4)), PAIR_ONE_OFF.goal(Goal::AtLeast(0.33))],
    },
    Line {
        id: "stream-connect-current-thread",
        title: "connect and accept of byte streams that are held, one at a time, both ends on one thread",
        order: Order::Pairs { at_once: 1, count: 200 },
        unit: Unit::Thousands,
        cores: APART,
        contenders: &[
            Contender::new("raw tokio TCP", Make::Both(&["raw", "--workers", "0"])),
            Contender::new("byte stream, kept connector", Make::Both(&["stream", "--workers", "0"])),
            Contender::new(
                "byte stream, RdmaStream::connect",
                Make::Both(&["stream", "--one-off", "--workers", "0"]),
            ),
        ],
    },
    Line {
        id: "stream-connect-64",
        title: "connect and accept of byte streams that are held, 64 at once, both ends in one process",
        order: Order::Pairs { at_once: 64, count: 512 },
        unit: Unit::Thousands,
        cores: APART,
        contenders: &[PAIR_TCP, KEPT.goal(Goal::AtLeast(0.4)), PAIR_ONE_OFF.goal(Goal::AtLeast(0.33))],
    },
    Line {
        id: "stream-first-byte",
        title: "first byte of a write of 1 MiB over 100 Mbit/s, behind a short message",
        order: Order::FirstByte { size: MIB, count: 3, is_fresh: false },
        unit: Unit::Micros,
        cores: APART,
        contenders: &[PAIR_TCP, PAIR.goal(Goal::AtMost(1.5))],
    },
    Line {
        id: "stream-first-byte-new",
        title: "first byte of a write of 1 MiB over 100 Mbit/s, the first one of a connection",
        order: Order::FirstByte { size: MIB, count: 3, is_fresh: true },
        unit: Unit::Micros,
        cores: APART,
        contenders: &[PAIR_TCP, PAIR.goal(Goal::AtMost(1.5))],
    },
    Line {
        id: "stream-loss",
        title: "bytes delivered before a loss, of the half that has arrived of a write of 1 MiB",
        order: Order::Lose { size: MIB },
        unit: Unit::Percent,
        cores: APART,
        // The headers of the frames are in what has arrived.
        contenders: &[PAIR_TCP, PAIR.goal(Goal::AtLeast(0.99))],
    },
    Line {
        id: "grpc-unary",
        title: "unary call of tonic, 64 B (ratio to tonic over TCP)",
        order: PING,
        unit: Unit::Micros,
        cores: APART,
        contenders: &[GRPC_TCP, GRPC.goal(Goal::AtMost(1.1)), MESSAGES.goal(Goal::AtMost(0.65))],
    },
    Line {
        id: "grpc-unary-one-core",
        title: "unary call of tonic, 64 B, one core (ratio to tonic over TCP)",
        order: PING,
        unit: Unit::Micros,
        cores: TOGETHER,
        contenders: &[GRPC_TCP, GRPC, MESSAGES.goal(Goal::AtMost(0.5))],
    },
    Line {
        id: "grpc-unary-64k",
        title: "unary call of tonic, 64 KiB there and back (ratio to tonic over TCP)",
        order: Order::Ping { size: 64 << 10, count: 100 },
        unit: Unit::Micros,
        cores: APART,
        contenders: &[GRPC_TCP, GRPC, MESSAGES],
    },
    Line {
        id: "grpc-unary-1m",
        title: "unary call of tonic, 1 MiB there and back (ratio to tonic over TCP)",
        order: Order::Ping { size: MIB, count: 20 },
        unit: Unit::Micros,
        cores: APART,
        contenders: &[GRPC_TCP, GRPC, MESSAGES],
    },
    Line {
        id: "grpc-calls",
        title: "unary calls of tonic, 64 B, 64 at once (ratio to tonic over TCP)",
        order: Order::Call { at_once: 64, count: 4096 },
        unit: Unit::Thousands,
        cores: APART,
        contenders: &[GRPC_TCP, GRPC.goal(Goal::AtLeast(0.96)), MESSAGES.goal(Goal::AtLeast(3.0))],
    },
    Line {
        id: "grpc-upload-64k",
        title: "calls of tonic with 64 KiB and a short answer, 16 at once (ratio to tonic over TCP)",
        order: Order::Upload { size: 64 << 10, count: 512 },
        unit: Unit::Thousands,
        cores: APART,
        contenders: &[GRPC_TCP, GRPC, MESSAGES.goal(Goal::AtLeast(1.5))],
    },
    Line {
        id: "grpc-upload-1m",
        title: "calls of tonic with 1 MiB and a short answer, 16 at once (ratio to tonic over TCP)",
        order: Order::Upload { size: MIB, count: 96 },
        unit: Unit::Thousands,
        cores: APART,
        contenders: &[GRPC_TCP, GRPC, MESSAGES.goal(Goal::AtLeast(2.0))],
    },
    Line {
        id: "grpc-stream",
        title: "messages of 64 B in the answer of one call of tonic (ratio to tonic over TCP)",
        order: Order::Stream { size: 64, count: 32_768 },
        unit: Unit::Thousands,
        cores: APART,
        contenders: &[GRPC_TCP, GRPC, MESSAGES.goal(Goal::AtLeast(3.0))],
    },
    Line {
        id: "frame-64",
        title: "a frame of 64 B there and back (ratio to frames over TCP)",
        order: Order::Ping { size: 64, count: 200 },
        unit: Unit::Micros,
        cores: APART,
        contenders: &[FRAMED_TCP, FRAMED.goal(Goal::AtMost(1.04))],
    },
    Line {
        id: "frame-1k",
        title: "a frame of 1 KiB there and back (ratio to frames over TCP)",
        order: Order::Ping { size: 1024, count: 200 },
        unit: Unit::Micros,
        cores: APART,
        contenders: &[FRAMED_TCP, FRAMED.goal(Goal::AtMost(1.04))],
    },
    Line {
        id: "frame-64k",
        title: "a frame of 64 KiB there and back (ratio to frames over TCP)",
        order: Order::Ping { size: 64 << 10, count: 100 },
        unit: Unit::Micros,
        cores: APART,
        contenders: &[FRAMED_TCP, FRAMED.goal(Goal::AtMost(1.02))],
    },
    Line {
        id: "frame-1m",
        title: "a frame of 1 MiB there and back (ratio to frames over TCP)",
        order: Order::Ping { size: MIB, count: 32 },
        unit: Unit::Micros,
        cores: APART,
        contenders: &[FRAMED_TCP, FRAMED.goal(Goal::AtMost(0.95))],
    },
    Line {
        id: "frames-64",
        title: "frames of 64 B, 64 at once (ratio to frames over TCP)",
        order: Order::Echo { size: 64, count: 8192 },
        unit: Unit::Thousands,
        cores: APART,
        contenders: &[FRAMED_TCP, FRAMED.goal(Goal::AtLeast(0.98))],
    },
    Line {
        id: "frames-1k",
        title: "frames of 1 KiB, 64 at once (ratio to frames over TCP)",
        order: Order::Echo { size: 1024, count: 8192 },
        unit: Unit::Thousands,
        cores: APART,
        contenders: &[FRAMED_TCP, FRAMED.goal(Goal::AtLeast(0.98))],
    },
    Line {
        id: "frames-64k",
        title: "frames of 64 KiB, 64 at once (ratio to frames over TCP)",
        order: Order::Echo { size: 64 << 10, count: 1024 },
        unit: Unit::Thousands,
        cores: APART,
        contenders: &[FRAMED_TCP, FRAMED.goal(Goal::AtLeast(0.98))],
    },
    Line {
        id: "frames-1m",
        title: "frames of 1 MiB, 64 at once (ratio to frames over TCP)",
        order: Order::Echo { size: MIB, count: 128 },
        unit: Unit::Thousands,
        cores: APART,
        contenders: &[FRAMED_TCP, FRAMED.goal(Goal::AtLeast(1.1))],
    },
];
