//! What a connection of calls tells the snapshots of tokio-rdma.

#[cfg(feature = "inspect")]
mod on {
    use std::any::Any;
    use std::sync::{Arc, OnceLock, Weak};

    use tokio_rdma::RdmaStream;
    use tokio_rdma::inspect::{Inspect, Place, Snapshot, register};

    use crate::link::Link;

    /// The connection of a stream, for reports.
    #[derive(Clone, Copy)]
    pub(crate) struct Below(Option<u64>);

    impl Below {
        pub(crate) fn of(stream: &dyn Any) -> Self {
            Self(stream.downcast_ref::<RdmaStream>().map(|stream| stream.connection().id().0))
        }
    }

    /// A connection that snapshots see as long as this exists.
    pub(crate) struct Shown {
        link: Weak<Link>,
        below: Below,
        place: OnceLock<Place>,
    }

    /// Lets snapshots see a connection, until the returned value is dropped.
    pub(crate) fn show(link: &Arc<Link>, below: Below) -> Arc<Shown> {
        let shown = Arc::new(Shown { link: Arc::downgrade(link), below, place: OnceLock::new() });
        let object: Weak<Shown> = Arc::downgrade(&shown);
        let _ = shown.place.set(register(object));
        shown
    }

    impl Inspect for Shown {
        fn inspect(&self, snapshot: &mut Snapshot) {
            let Some(link) = self.link.upgrade() else { return };
            let mut report = link.report();
            report.connection = self.below.0;
            snapshot.channels.push(report);
        }
    }
}

#[cfg(not(feature = "inspect"))]
mod off {
    use std::any::Any;
    use std::sync::Arc;

    use crate::link::Link;

    /// Nothing.
    #[derive(Clone, Copy)]
    pub(crate) struct Below;

    impl Below {
        pub(crate) fn of(_stream: &dyn Any) -> Self {
            Self
        }
    }

    /// Nothing.
    pub(crate) struct Shown;

    pub(crate) fn show(_link: &Arc<Link>, _below: Below) -> Shown {
        Shown
    }
}

#[cfg(not(feature = "inspect"))]
pub(crate) use off::{Below, show};
#[cfg(feature = "inspect")]
pub(crate) use on::{Below, show};
