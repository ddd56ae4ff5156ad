//! The parameters that one side of a connection sends to the other when it connects or accepts.

use std::time::Instant;

use bytes::Bytes;

use crate::provider::params::Options;
use crate::sys::ConnectionParams;
use crate::types::ReadLimits;

/// The parameters that Connect or Accept sends to the peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offer {
    pub(crate) private_data: Bytes,
    pub(crate) limits: ReadLimits,
    pub(crate) options: Options,
    pub(crate) traffic_class: Option<u8>,
    /// The number of ports that may still be tried.
    pub(crate) tries: u8,
    /// The end of the time in which a step of address resolution is repeated; `None` if the caller's limit ends the attempt.
    pub(crate) until: Option<Instant>,
}

impl Offer {
    pub(crate) fn parameters(&self, limits: ReadLimits, queue_pair: u32) -> ConnectionParams<'_> {
        // Limits are capped to the device, which knows no more than 255.
        let reads = |limit: u32| u8::try_from(limit).unwrap_or(u8::MAX);
        ConnectionParams {
            private_data: &self.private_data,
            responder_resources: reads(limits.inbound),
            initiator_depth: reads(limits.outbound),
            retry_count: self.options.retry_count(),
            rnr_retry_count: self.options.rnr_retry_count(),
            qp_num: queue_pair,
        }
    }
}
