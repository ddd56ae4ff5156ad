//! Errors of opening, listing and binding.

use std::borrow::Cow;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::status::Status;
use crate::types::{AdapterId, TooShort};

/// The error of opening a provider or an adapter, listing or resolving addresses, and creating queues.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No adapter has this address (`INVALID_ADDRESS`).
    #[error("no network interface that can be used has the address {0}")]
    InvalidAddress(IpAddr),
    /// A device has this address, and the settings or the environment exclude the device (`INVALID_ADDRESS`); see
    /// `VerbsConfig::devices`.
    #[error("the device {device}, which has the address {address}, is excluded by {by}")]
    Excluded {
        /// The address.
        address: IpAddr,
        /// The name of the device.
        device: String,
        /// The list that excludes the device, such as `TOKIO_RDMA_DEVICES=^mana_0`.
        by: String,
    },
    /// No adapter has this id (`INVALID_PARAMETER`).
    #[error("no adapter has the id {:#x}", .0.0)]
    InvalidAdapter(AdapterId),
    /// There is no route to the address (`NETWORK_UNREACHABLE`).
    #[error("there is no route to {0}")]
    Unreachable(IpAddr),
    /// The provider is not compiled in or has no device, the call was made outside of a tokio runtime, or the adapter
    /// does not have this kind of queue (`NOT_SUPPORTED`).
    #[error("{0}")]
    Unsupported(&'static str),
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
    /// A setting is invalid (`INVALID_PARAMETER_n`).
    #[error("{what}")]
    InvalidParameter {
        /// The number of the argument of the ND method, 1-based.
        argument: u8,
        /// The setting, its value, and the limit that it exceeds.
        what: Cow<'static, str>,
    },
    /// The slice is too short for the addresses (`BUFFER_OVERFLOW`).
    #[error(transparent)]
    TooShort(#[from] TooShort),
    /// The operating system failed.
    #[error("{call} failed: {source}")]
    Os {
        /// The call that failed.
        call: &'static str,
        /// Its error.
        r#source: Arc<io::Error>,
    },
}

impl OpenError {
    /// Checks a setting, and returns `InvalidParameter` if it is out of range.
    pub(crate) fn check_range(
        argument: u8,
        name: &str,
        value: usize,
        range: RangeInclusive<usize>,
    ) -> Result<(), Self> {
        if range.contains(&value) {
            return Ok(());
        }
        let what = format!("{name} is {value}, not between {} and {}", range.start(), range.end()).into();
        Err(Self::InvalidParameter { argument, what })
    }
}

/// The error of binding a connector or a listener, and of listening.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The local address and port are in use (`SHARING_VIOLATION`).
    #[error("the local address {0} is in use")]
    SharingViolation(SocketAddr),
    /// No ephemeral port is left (`TOO_MANY_ADDRESSES`).
    #[error("no ephemeral port is left at {0}")]
    TooManyAddresses(IpAddr),
    /// The connector or listener is already bound (`ADDRESS_ALREADY_ASSOCIATED`, which ND's documentation does not
    /// list).
    #[error("already bound to {0}")]
    AlreadyBound(SocketAddr),
    /// The address does not belong to this adapter (`INVALID_ADDRESS`).
    #[error("the adapter does not have the address {0}")]
    InvalidAddress(IpAddr),
    /// The listener is not bound or already listening, the connector cannot be used again, or the runtime of the adapter has ended
    /// (`INVALID_DEVICE_STATE`).
    #[error("{0}")]
    InvalidState(&'static str),
    /// The adapter was removed (`DEVICE_REMOVED`).
    #[error("the adapter was removed")]
    DeviceRemoved,
    /// The operating system does not let the address be bound, for example for want of a permission.
    #[error("cannot bind {address}: {error}")]
    Address {
        /// The local address.
        address: SocketAddr,
        /// The error of the operating system.
        error: Arc<io::Error>,
    },
    /// The operating system failed.
    #[error("{call} failed: {source}")]
    Os {
        /// The call that failed.
        call: &'static str,
        /// Its error.
        r#source: Arc<io::Error>,
    },
}

impl BindError {
    /// Returns the error of the bind of a connector that the machine refused with `status`. `local` is where it is bound.
    pub(crate) fn of_connector(status: Status, local: Option<SocketAddr>) -> Self {
        Self::refused(status, local, "the connector is connecting or connected, or cannot be used again")
    }

    /// Returns the error of the bind or the listen of a listener that the machine refused with `status`. `local` is where
    /// it is bound.
    pub(crate) fn of_listener(status: Status, local: Option<SocketAddr>) -> Self {
        Self::refused(
            status,
            local,
            match local {
                None => "the listener is not bound, or is closed",
                Some(_) => "the listener is listening already, or is closed",
            },
        )
    }

    fn refused(status: Status, local: Option<SocketAddr>, otherwise: &'static str) -> Self {
        match (status, local) {
            (Status::ADDRESS_ALREADY_ASSOCIATED, Some(local)) => Self::AlreadyBound(local),
            (Status::DEVICE_REMOVED, _) => Self::DeviceRemoved,
            _ => Self::InvalidState(otherwise),
        }
    }
}

status_tables! {
    OpenError {
        Self::InvalidAddress(_) | Self::Excluded { .. } => Status::INVALID_ADDRESS,
        Self::InvalidAdapter(_) => Status::INVALID_PARAMETER,
        Self::Unreachable(_) => Status::NETWORK_UNREACHABLE,
        Self::Unsupported(_) => Status::NOT_SUPPORTED,
        Self::DeviceRemoved => Status::DEVICE_REMOVED,
        Self::InvalidParameter { argument, .. } => Status::invalid_parameter(*argument),
        Self::TooShort(error) => error.status(),
        Self::Os { source, .. } => Status::from_io(source),
    }
    BindError {
        Self::SharingViolation(_) => Status::SHARING_VIOLATION,
        Self::TooManyAddresses(_) => Status::TOO_MANY_ADDRESSES,
        Self::AlreadyBound(_) => Status::ADDRESS_ALREADY_ASSOCIATED,
        Self::InvalidAddress(_) => Status::INVALID_ADDRESS,
        Self::InvalidState(_) => Status::INVALID_DEVICE_STATE,
        Self::DeviceRemoved => Status::DEVICE_REMOVED,
        Self::Address { error, .. } => Status::from_io(error),
        Self::Os { source, .. } => Status::from_io(source),
    }
}
