//! The providers behind the public handles: an enum for each object of the contract, with a variant for each provider that is
//! compiled in, so that a call is a jump and posting can be inlined.
//!
//! This is the only place that names both providers: each of them sees its own types alone. The methods of the
//! providers by the same name say what their errors are.
#![cfg_attr(
    not(all(feature = "soft", feature = "verbs")),
    allow(unused_variables, reason = "an argument that one provider alone needs")
)]

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::task::Waker;

use tokio::runtime::Handle;

use crate::error::{OpenError, PostErrorKind, RegisterError, ResizeError};
use crate::events::Subscription;
use crate::inflight::{CompletionSink, NotifyKind, Payload, Polling, ReadPlace, Ticket, WORD, WakeList};
use crate::memory::{Owned, Shared};
use crate::provider::info::{AdapterInfo, PortInfo, ProviderKind};
use crate::provider::params::{self, QueuePairParts};
use crate::provider::registry::Registry;
use crate::provider::stream::{Progress, StreamMessage, StreamRoom, Streamed};
use crate::provider::work::{
    BindTarget, DirectOutcome, DirectRequest, InlineRequest, Refused, WindowRequest, WorkRequest,
};
use crate::types::{Access, AdapterId};
#[cfg(feature = "soft")]
use crate::{net::Host, soft};
#[cfg(feature = "verbs")]
use crate::{net::kernel, verbs};

/// Matches with an arm for each provider, of which those that are compiled in remain.
macro_rules! by_provider {
    ($self:expr, $soft:pat => $on_soft:expr, $verbs:pat => $on_verbs:expr $(,)?) => {
        match $self {
            #[cfg(feature = "soft")]
            $soft => $on_soft,
            #[cfg(feature = "verbs")]
            $verbs => $on_verbs,
        }
    };
}

/// Calls the object of either provider by the same name.
macro_rules! dispatch {
    ($self:expr, $object:ident => $call:expr) => {
        by_provider!($self, Self::Soft($object) => $call, Self::Verbs($object) => $call)
    };
}

/// Declares methods that call the object of either provider by the same name.
macro_rules! forward {
    ($($(#[$meta:meta])* pub(crate) fn $name:ident(&self $(, $argument:ident: $kind:ty)*) $(-> $output:ty)?;)+) => {$(
        $(#[$meta])*
        pub(crate) fn $name(&self $(, $argument: $kind)*) $(-> $output)? {
            dispatch!(self, object => object.$name($($argument),*))
        }
    )+};
}

/// Makes an object of the same provider.
macro_rules! make {
    ($self:expr, $made:ident, $object:pat => $soft:expr, $other:pat => $verbs:expr $(,)?) => {
        by_provider!(
            $self,
            Self::Soft($object) => $made::Soft($soft),
            Self::Verbs($other) => $made::Verbs($verbs)
        )
    };
}

/// Calls an object with others, which the caller has checked to be of the same provider: `$foreign` if they are not.
macro_rules! dispatch_all {
    ($self:expr, $($other:expr, $kind:ident),+; ($object:ident, $($name:ident),+) => $call:expr, $foreign:expr) => {
        match ($self, $($other),+) {
            #[cfg(feature = "soft")]
            (Self::Soft($object), $($kind::Soft($name)),+) => $call,
            #[cfg(feature = "verbs")]
            (Self::Verbs($object), $($kind::Verbs($name)),+) => $call,
            #[cfg(all(feature = "soft", feature = "verbs"))]
            _ => $foreign,
        }
    };
}

/// Calls the object of the soft provider. With a device the result is `$device`.
macro_rules! only_soft {
    ($self:expr, $object:pat => $call:expr, $device:expr) => {
        by_provider!($self, Self::Soft($object) => $call, Self::Verbs(_) => $device)
    };
}

/// Declares enums with a variant for each provider, of which those that are compiled in remain.
macro_rules! by_provider_enums {
    ($($(#[$meta:meta])* pub(crate) enum $name:ident { Soft($soft:ty), Verbs($verbs:ty) $(,)? })+) => {$(
        $(#[$meta])*
        pub(crate) enum $name {
            #[cfg(feature = "soft")]
            Soft($soft),
            #[cfg(feature = "verbs")]
            Verbs($verbs),
        }
    )+};
}

mod connection;
mod lane;

pub(crate) use lane::Lane;

/// A provider, with the settings for the adapters that it opens.
#[derive(Clone, Debug)]
pub(crate) enum Provider {
    #[cfg(feature = "soft")]
    Soft(Host, soft::config::SoftConfig),
    #[cfg(feature = "verbs")]
    Verbs(verbs::config::VerbsConfig),
}

by_provider_enums! {
    /// An opened adapter: what it is, and all that is made from it. Objects that are made from it keep it open.
    #[derive(Clone)]
    pub(crate) enum Adapter { Soft(Arc<soft::adapter::Adapter>), Verbs(Arc<verbs::adapter::Adapter>) }

    /// An adapter that stays open only as long as there are other handles and objects.
    pub(crate) enum WeakAdapter { Soft(Weak<soft::adapter::Adapter>), Verbs(Weak<verbs::adapter::Adapter>) }

    /// Registered memory. Its key is good until it is taken back; the memory stays.
    #[derive(Clone)]
    pub(crate) enum Registration {
        Soft(Arc<soft::memory::Registration>),
        Verbs(Arc<verbs::memory::Registration>),
    }

    /// A memory window: a part of a registration under a key of its own.
    #[derive(Clone)]
    pub(crate) enum Window { Soft(Arc<soft::memory::Window>), Verbs(Arc<verbs::memory::Window>) }

    /// The completion queue of a provider. The soft provider completes requests in the program's own queue, and has one only for
    /// the sockets that a poll looks at: not for requests that complete through futures.
    #[derive(Clone)]
    pub(crate) enum CompletionQueue {
        Soft(Option<Arc<soft::completion_queue::CompletionQueue>>),
        Verbs(Arc<verbs::completion_queue::CompletionGroup>),
    }

    /// A receive queue of several queue pairs.
    #[derive(Clone)]
    pub(crate) enum SharedReceives {
        Soft(Arc<soft::receive_queue::SharedReceives>),
        Verbs(Arc<verbs::receive_queue::SharedReceives>),
    }

    /// A queue pair. Each posted request finishes exactly once, in post order within its queue, through the sink of its queue.
    pub(crate) enum QueuePair {
        Soft(Arc<soft::queue_pair::QueuePair>),
        Verbs(Arc<verbs::queue_pair::QueuePair>),
    }

    /// A connector, from Bind to the end of its connection.
    #[derive(Clone)]
    pub(crate) enum Connector {
        Soft(Arc<soft::connector::Connector>),
        Verbs(Arc<verbs::connector::Connector>),
    }

    /// A listener.
    #[derive(Clone)]
    pub(crate) enum Listener { Soft(Arc<soft::listener::Listener>), Verbs(Arc<verbs::listener::Listener>) }
}

/// The queues that a new queue pair uses.
pub(crate) type Queues = params::Queues<SharedReceives, CompletionQueue>;

impl Provider {
    pub(crate) fn kind(&self) -> ProviderKind {
        by_provider!(self, Self::Soft(..) => ProviderKind::Soft, Self::Verbs(_) => ProviderKind::Verbs)
    }

    /// Returns the adapter that has this address, whose port does not matter.
    pub(crate) fn resolve(&self, address: SocketAddr) -> Result<AdapterId, OpenError> {
        by_provider!(
            self,
            Self::Soft(host, _) => soft::adapter::resolve(host, address.ip()),
            Self::Verbs(config) => verbs::devices::resolve(config, address),
        )
    }

    /// Lists every address that its adapters have.
    pub(crate) fn addresses(&self) -> Result<Vec<IpAddr>, OpenError> {
        by_provider!(
            self,
            Self::Soft(host, _) => soft::adapter::addresses(host),
            Self::Verbs(config) => verbs::devices::addresses(config),
        )
    }

    /// Returns the address from which one of its adapters reaches a peer, with any port.
    pub(crate) fn local_for(&self, remote: SocketAddr) -> Result<SocketAddr, OpenError> {
        by_provider!(
            self,
            Self::Soft(host, _) => Ok(SocketAddr::new(soft::adapter::local_for(host, remote.ip())?, 0)),
            Self::Verbs(config) => verbs::devices::local_for(config, remote),
        )
    }

    /// Returns whether one of its adapters could use this address right now.
    pub(crate) fn is_usable(&self, address: IpAddr) -> bool {
        let usable = by_provider!(
            self,
            Self::Soft(host, _) => host.is_usable(address),
            Self::Verbs(_) => kernel::interfaces::is_usable(address),
        );
        usable.unwrap_or(false) && self.resolve(SocketAddr::new(address, 0)).is_ok()
    }

    /// Opens the adapter of a listener at every address of this machine, with and without an interface. `None` if the provider
    /// listens at each address by itself, as devices and simulated hosts do.
    pub(crate) fn everywhere(&self) -> Option<Result<Adapter, OpenError>> {
        by_provider!(
            self,
            Self::Soft(host, config) => {
                let open = || soft::adapter::Adapter::everywhere(config.clone()).map(Adapter::Soft);
                host.is_this_machine().then(open)
            },
            Self::Verbs(_) => None,
        )
    }

    /// Returns whether addresses can be added to this machine that the provider serves.
    pub(crate) fn is_of_machine(&self) -> bool {
        by_provider!(self, Self::Soft(host, _) => host.is_this_machine(), Self::Verbs(_) => true)
    }

    pub(crate) fn open(&self, id: AdapterId) -> Result<Adapter, OpenError> {
        Ok(by_provider!(
            self,
            Self::Soft(host, config) => {
                Adapter::Soft(soft::adapter::Adapter::open(host.clone(), id, config.clone())?)
            },
            Self::Verbs(config) => Adapter::Verbs(verbs::adapter::Adapter::open(id, config.clone())?),
        ))
    }
}

impl WeakAdapter {
    pub(crate) fn upgrade(&self) -> Option<Adapter> {
        Some(make!(self, Adapter, adapter => adapter.upgrade()?, adapter => adapter.upgrade()?))
    }

    pub(crate) fn is_open(&self) -> bool {
        dispatch!(self, adapter => adapter.strong_count() > 0)
    }
}

impl Adapter {
    /// Returns whether it is of this machine, and not of a simulated one.
    pub(crate) fn is_of_machine(&self) -> bool {
        by_provider!(self, Self::Soft(adapter) => adapter.host.is_this_machine(), Self::Verbs(_) => true)
    }

    forward! {
        /// Returns the protection domain: unique in the process, one per open.
        #[inline]
        pub(crate) fn domain(&self) -> u64;

        /// Returns its properties, limits and abilities, with the addresses that it had when it was opened.
        #[inline]
        pub(crate) fn info(&self) -> &Arc<AdapterInfo>;

        /// Returns its properties, limits and abilities, with the addresses that it has now.
        pub(crate) fn current_info(&self) -> AdapterInfo;

        #[inline]
        pub(crate) fn is_removed(&self) -> bool;

        /// Returns its ports as they are now.
        pub(crate) fn port_info(&self) -> Result<Vec<PortInfo>, OpenError>;

        /// Returns its events from now on.
        pub(crate) fn subscribe(&self) -> Arc<Subscription>;

        /// Returns the objects that end with the adapter.
        #[inline]
        pub(crate) fn registry(&self) -> &Arc<Registry>;

        /// Returns the runtime that has threads for registering and deregistering memory; `None` when it can be done right here.
        #[inline]
        pub(crate) fn blocking(&self) -> Option<&Handle>;

        /// Allocates memory that work requests can use, and no peer.
        #[inline]
        pub(crate) fn allocate(&self, length: usize) -> Result<Owned, RegisterError>;
    }

    /// Returns a handle that does not keep the adapter open.
    pub(crate) fn downgrade(&self) -> WeakAdapter {
        make!(self, WeakAdapter, adapter => Arc::downgrade(adapter), adapter => Arc::downgrade(adapter))
    }

    /// Returns whether the adapter has this local address, without a question to the system. A device may have lost it to
    /// another device, of which nothing is announced, so it has to be asked.
    pub(crate) fn has_listed(&self, ip: IpAddr) -> bool {
        only_soft!(self, adapter => adapter.has_listed(ip), false)
    }

    /// Returns a random number that a peer cannot guess; `None` if the system has none.
    pub(crate) fn random(&self) -> Option<u128> {
        let of_system = || {
            let mut bytes = [0; size_of::<u128>()];
            getrandom::fill(&mut bytes).ok().map(|()| u128::from_ne_bytes(bytes))
        };
        only_soft!(self, adapter => adapter.random(), of_system())
    }

    /// Returns the number of the network that the adapter is in: 0 for that of the machine, and another for each simulated one.
    pub(crate) fn network(&self) -> u64 {
        only_soft!(self, adapter => adapter.network(), 0)
    }

    /// Returns whether the number of the adapter means the same adapter in the network namespace of the calling thread.
    pub(crate) fn is_of_this_thread(&self) -> bool {
        only_soft!(self, adapter => adapter.is_of_this_thread(), true)
    }

    pub(crate) fn queue_pair(&self, parts: QueuePairParts, queues: Queues) -> Result<QueuePair, OpenError> {
        // Every queue belongs to the adapter that it was made from, which the caller has checked.
        macro_rules! own {
            ($variant:path, $object:expr) => {
                match $object {
                    $variant(object) => Ok::<_, OpenError>(object),
                    #[cfg(all(feature = "soft", feature = "verbs"))]
                    _ => Err(OpenError::Unsupported("a queue belongs to another provider")),
                }
            };
        }
        macro_rules! own_queues {
            ($variant:ident) => {
                params::Queues {
                    shared: queues.shared.map(|shared| own!(SharedReceives::$variant, shared)).transpose()?,
                    sends: own!(CompletionQueue::$variant, queues.sends)?,
                    receives: own!(CompletionQueue::$variant, queues.receives)?,
                }
            };
        }
        Ok(make!(
            self,
            QueuePair,
            adapter => soft::queue_pair::QueuePair::new(adapter.clone(), parts, own_queues!(Soft)),
            adapter => {
                verbs::queue_pair::QueuePair::new(adapter.context.clone(), parts, own_queues!(Verbs))?
            },
        ))
    }

    /// Makes a completion queue of the program for the processor. `polled` says that the program polls it all the time.
    pub(crate) fn completion_queue(
        &self,
        depth: usize,
        processor: Option<usize>,
        polled: bool,
    ) -> Result<CompletionQueue, OpenError> {
        Ok(make!(
            self,
            CompletionQueue,
            _ => Some(Arc::default()),
            adapter => adapter.completion_queue(depth, processor, polled)?,
        ))
    }

    /// Returns a completion queue that others complete in, too: for requests that complete through futures.
    pub(crate) fn shared_completions(&self) -> Result<CompletionQueue, OpenError> {
        Ok(make!(self, CompletionQueue, _ => None, adapter => adapter.shared_completions()?))
    }

    /// Makes a receive queue for several queue pairs, with room for so many receives of so many entries each. Receives still
    /// posted when the queue is dropped complete through `sink`.
    pub(crate) fn shared_receives(
        &self,
        depth: usize,
        entries: usize,
        sink: CompletionSink,
    ) -> Result<SharedReceives, OpenError> {
        Ok(make!(
            self,
            SharedReceives,
            adapter => soft::receive_queue::SharedReceives::new(adapter, depth, entries, sink)?,
            adapter => verbs::receive_queue::SharedReceives::new(adapter, depth, entries, sink)?
        ))
    }

    pub(crate) fn connector(&self) -> Connector {
        make!(
            self,
            Connector,
            adapter => soft::connector::Connector::new(adapter.clone()),
            adapter => verbs::connector::Connector::new(adapter.context.clone())
        )
    }

    pub(crate) fn listener(&self) -> Listener {
        make!(
            self,
            Listener,
            adapter => soft::listener::Listener::new(adapter.clone()),
            adapter => verbs::listener::Listener::new(adapter.context.clone())
        )
    }

    pub(crate) fn window(&self) -> Result<Window, RegisterError> {
        Ok(make!(
            self,
            Window,
            adapter => soft::memory::Window::new(&adapter.keys)?,
            adapter => verbs::memory::Window::new(adapter)?,
        ))
    }

    /// Puts memory under a key. Returns a handle to the memory, too.
    pub(crate) fn register(
        &self,
        memory: Owned,
        access: Access,
    ) -> Result<(Registration, Shared), RegisterError> {
        by_provider!(
            self,
            Self::Soft(adapter) => {
                adapter.register(memory, access).map(|(own, memory)| (Registration::Soft(own), memory))
            },
            Self::Verbs(adapter) => adapter.register(memory, access).map(of_device),
        )
    }

    /// Puts this memory of a registration that was ended under a new key.
    pub(crate) fn register_again(
        &self,
        old: &Registration,
        memory: &Shared,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        match (self, old) {
            #[cfg(feature = "soft")]
            (Self::Soft(adapter), Registration::Soft(old)) if !old.is_valid() => {
                Ok(Registration::Soft(adapter.keys.register(memory.clone(), access)?))
            }
            // The registration has kept the memory.
            #[cfg(feature = "verbs")]
            (Self::Verbs(adapter), Registration::Verbs(old)) => {
                Ok(Registration::Verbs(Arc::new(adapter.register_again(old, access)?)))
            }
            // One that has not ended. A registration is kept together with its adapter.
            #[cfg(feature = "soft")]
            _ => Err(RegisterError::Busy),
        }
    }

    /// Registers memory of another device: `offset`, `length` and the address of its first byte.
    pub(crate) fn register_dmabuf(
        &self,
        dmabuf: BorrowedFd<'_>,
        part: (u64, usize, u64),
        access: Access,
    ) -> Result<(Registration, Shared), RegisterError> {
        let none = RegisterError::NotSupported("memory of another device with the soft provider");
        by_provider!(
            self,
            Self::Soft(_) => Err(none),
            Self::Verbs(adapter) => adapter.register_dmabuf(dmabuf, part, access).map(of_device),
        )
    }

    /// Takes the key back.
    pub(crate) fn deregister(&self, registration: &Registration) -> Result<(), RegisterError> {
        match (self, registration) {
            #[cfg(feature = "soft")]
            (Self::Soft(adapter), Registration::Soft(registration)) => adapter.keys.deregister(registration),
            #[cfg(feature = "verbs")]
            (_, Registration::Verbs(registration)) => registration.deregister(),
            // A registration is kept together with its adapter.
            #[cfg(all(feature = "soft", feature = "verbs"))]
            (Self::Verbs(_), Registration::Soft(_)) => Ok(()),
        }
    }

    /// Releases a registration whose last handle the user has dropped. A device has the memory until no request uses it either, and
    /// the memory sees to that by itself: requests that name memory that was taken away would fail.
    pub(crate) fn release(&self, registration: &Registration) {
        match (self, registration) {
            #[cfg(feature = "soft")]
            (Self::Soft(adapter), Registration::Soft(registration)) => adapter.keys.release(registration),
            #[cfg(feature = "verbs")]
            _ => {}
        }
    }
}

/// Returns a registration of a device as that of a provider, with a handle to its memory.
#[cfg(feature = "verbs")]
fn of_device(registration: verbs::memory::Registration) -> (Registration, Shared) {
    let memory = registration.memory().clone();
    (Registration::Verbs(Arc::new(registration)), memory)
}

impl Registration {
    forward! {
        /// Returns the key, also of one that was taken back.
        #[inline]
        pub(crate) fn key(&self) -> u32;

        /// Returns the remote address of the first byte.
        #[inline]
        pub(crate) fn address(&self) -> u64;

        #[inline]
        pub(crate) fn access(&self) -> Access;

        /// Returns whether the key is good.
        #[inline]
        pub(crate) fn is_valid(&self) -> bool;
    }
}

impl Window {
    /// Returns its binding by the last call that binds or invalidates it: key, remote address, length.
    pub(crate) fn bound(&self) -> Option<(u32, u64, usize)> {
        dispatch!(self, window => window.bound())
    }
}

impl CompletionQueue {
    /// Takes what the device has completed, for who polls and does not wait for the reactor.
    pub(crate) fn progress(&self) {
        by_provider!(
            self,
            Self::Soft(queue) => queue.iter().for_each(|queue| queue.progress(|| false)),
            Self::Verbs(group) => group.progress(),
        );
    }

    /// Takes what the device has completed as [`progress`](Self::progress) does, for who polls this queue.
    pub(crate) fn poll(&self, polling: &mut Polling<'_>) {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(Some(queue)) => queue.poll(polling.is_empty(), || polling.is_satisfied()),
            #[cfg(feature = "verbs")]
            Self::Verbs(group) if polling.room() > 0 => group.poll(polling),
            _ => {}
        }
    }

    /// Notes that a call waits for completions of this kind from now on, until [`end_wait`](Self::end_wait).
    #[cfg_attr(not(feature = "verbs"), expect(unused_variables, reason = "soft has no events"))]
    pub(crate) fn begin_wait(&self, kind: NotifyKind) {
        by_provider!(
            self,
            Self::Soft(queue) => queue.iter().for_each(|queue| queue.begin_wait()),
            Self::Verbs(group) => group.begin_wait(kind),
        );
    }

    /// Notes that a call no longer waits for completions of this kind.
    #[cfg_attr(not(feature = "verbs"), expect(unused_variables, reason = "soft has no events"))]
    pub(crate) fn end_wait(&self, kind: NotifyKind) {
        by_provider!(self, Self::Soft(_) => {}, Self::Verbs(group) => group.end_wait(kind));
    }
}

impl SharedReceives {
    forward! {
        /// Posts a receive. There is room: the caller counts.
        #[inline]
        pub(crate) fn post_receive(&self, ticket: Ticket, payload: Payload) -> Result<(), Refused>;

        /// Makes room for so many receives; there are not more.
        pub(crate) fn resize(&self, depth: usize) -> Result<(), ResizeError>;

        /// Returns the number of connections whose message waits for a receive, as far as the provider knows.
        #[cfg(feature = "inspect")]
        pub(crate) fn messages_waiting(&self) -> usize;

        /// Ends the queue, whose last handle the user has dropped, and which no queue pair uses.
        pub(crate) fn released(&self);
    }
}

impl QueuePair {
    forward! {
        #[inline]
        pub(crate) fn post_receive(&self, ticket: Ticket, payload: Payload) -> Result<(), Refused>;

        /// Posts a request of the send queue that is no read.
        #[inline]
        pub(crate) fn post_send(&self, request: WorkRequest) -> Result<(), Refused>;

        /// Posts a request of the send queue whose bytes are copied by this call.
        #[inline]
        pub(crate) fn post_inline(&self, request: InlineRequest<'_>) -> Result<(), PostErrorKind>;

        /// Has the device look at what was deferred.
        #[inline]
        pub(crate) fn ring(&self);

        /// Finishes everything outstanding as `CANCELED`. A connection does not survive it.
        pub(crate) fn flush(&self);

        /// Has the device refuse what the peer still writes, and disconnects. Returns whether it does so: then the caller
        /// flushes later.
        pub(crate) fn refuse(&self) -> bool;

        /// Ends the connection, because a completion queue of it has lost a result.
        pub(crate) fn overrun(&self);

        /// Ends the queue pair, whose last handle the user has dropped.
        pub(crate) fn released(&self);
    }

    /// Posts a read or an atomic.
    pub(crate) fn post_read(&self, request: WorkRequest) -> Result<(), Refused> {
        by_provider!(
            self,
            Self::Soft(queue_pair) => queue_pair.post_send(request),
            Self::Verbs(queue_pair) => queue_pair.post_read(request),
        )
    }

    /// Executes a request within the call, if the provider can and nothing is ahead of it.
    #[inline]
    pub(crate) fn post_direct(&self, request: DirectRequest<'_>) -> DirectOutcome {
        only_soft!(self, queue_pair => queue_pair.post_direct(request), DirectOutcome::Declined)
    }

    /// Posts the bind of a window, which has its new key when this returns.
    pub(crate) fn post_bind(
        &self,
        request: WindowRequest,
        window: &Window,
        target: BindTarget<&Registration>,
    ) -> Result<(), PostErrorKind> {
        let BindTarget { registration, range, access } = target;
        dispatch_all!(
            self, window, Window, registration, Registration;
            (queue_pair, window, registration) => {
                queue_pair.post_bind(request, window, BindTarget { registration, range, access })
            },
            Err(PostErrorKind::ForeignMemory)
        )
    }

    pub(crate) fn post_invalidate(
        &self,
        request: WindowRequest,
        window: &Window,
    ) -> Result<(), PostErrorKind> {
        dispatch_all!(
            self, window, Window;
            (queue_pair, window) => queue_pair.post_invalidate(request, window),
            Err(PostErrorKind::ForeignMemory)
        )
    }

    /// Reserves a place among the reads in flight of the adapter, and waits for it. `None` if the number of these is not limited.
    ///
    /// # Errors
    /// If it would wait, those of a post, except a full queue.
    pub(crate) async fn reserve_read(&self) -> Result<Option<ReadPlace>, PostErrorKind> {
        by_provider!(self, Self::Soft(_) => Ok(None), Self::Verbs(queue_pair) => queue_pair.reserve_read().await)
    }

    /// Waits until an attempt that has ended has given the queue pair back.
    pub(crate) async fn settled(&self) {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(queue_pair) => queue_pair.settled().await,
            #[cfg(feature = "verbs")]
            // In a box, because it would be moved with each accept of either provider.
            Self::Verbs(queue_pair) => Box::pin(queue_pair.settled()).await,
        }
    }

    /// Writes a message of a stream, or as much of it as the connection takes, if the provider frames messages itself.
    pub(crate) fn write_message(
        &self,
        message: &StreamMessage<'_>,
        waker: &Waker,
    ) -> Result<Streamed, PostErrorKind> {
        let none = PostErrorKind::NotSupported("a message that is no request, on a device");
        only_soft!(self, queue_pair => queue_pair.write_message(message, waker), Err(none))
    }

    /// Sends the message of the end of a stream, if the provider frames messages itself, and asks the peer for the confirmation that it
    /// has received everything: news of the inbox. `is_last`: no other message follows once the peer has sent its last one, too.
    pub(crate) fn end_stream(&self, message: [u8; WORD], is_last: bool) -> Result<(), PostErrorKind> {
        let none = PostErrorKind::NotSupported("a message that is no request, on a device");
        only_soft!(self, queue_pair => queue_pair.end_stream(message, is_last), Err(none))
    }

    /// Reads what has come for a stream, if the provider reads for the caller. Payload for the place that is read next goes to the
    /// room, and the rest to where it belongs. Without a room, it looks for what is small. If the stream spins, it does not wait for
    /// the runtime to say that something has come. The waker is woken when there may be more; `wakes` is for the caller to wake
    /// without its locks.
    pub(crate) fn read_stream(
        &self,
        room: Option<&mut StreamRoom<'_>>,
        waker: &Waker,
        spins: bool,
        wakes: &mut WakeList,
    ) {
        only_soft!(self, queue_pair => if let Some(connection) = queue_pair.connection() {
            connection.read_stream(room, waker, spins, wakes);
        }, ());
    }

    /// Returns the progress of the connection. `None` if it has ended, and with a device.
    pub(crate) fn progress(&self) -> Option<Progress> {
        only_soft!(self, queue_pair => queue_pair.connection()?.progress(), None)
    }

    /// Returns whether a message of a stream would be taken now, or never again. If not, the waker is woken when one may be.
    pub(crate) fn takes_messages(&self, waker: &Waker) -> bool {
        only_soft!(
            self,
            queue_pair => queue_pair.connection().is_none_or(|connection| connection.takes_messages(waker)),
            true
        )
    }
}
