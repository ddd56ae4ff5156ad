//! The events of an adapter as a stream.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;

use crate::provider::events::{AdapterEvent, Subscription};

/// The events of an adapter, from [`Adapter::events`](crate::Adapter::events) on: a [`Stream`].
///
/// A program that does not read loses events, and not memory: of those that wait, the last 32 are kept, and
/// [`AdapterEvent::Missed`] stands for the others.
///
/// The stream does not keep the adapter open. It ends behind [`AdapterEvent::Removed`], and without that event when the adapter is
/// closed, when its runtime shuts down, or, with the soft provider, when the system cannot report changes any longer. With a device the
/// events of its ports go on then. While the process has no descriptor for the announcements of addresses, they are looked at once in a
/// second.
#[must_use = "the events are lost with it"]
pub struct AdapterEvents {
    subscription: Arc<Subscription>,
}

impl AdapterEvents {
    pub(super) fn new(subscription: Arc<Subscription>) -> Self {
        Self { subscription }
    }

    /// Returns the next event. `None` behind the last one.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event: an event is taken in the poll that returns it.
    pub async fn recv(&mut self) -> Option<AdapterEvent> {
        poll_fn(|cx| self.subscription.poll_next(cx)).await
    }
}

impl Stream for AdapterEvents {
    type Item = AdapterEvent;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<AdapterEvent>> {
        self.subscription.poll_next(cx)
    }
}

impl fmt::Debug for AdapterEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterEvents").finish_non_exhaustive()
    }
}
