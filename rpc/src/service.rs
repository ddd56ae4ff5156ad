//! The bounds of a service, in one place.

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::body::Incoming;
use crate::error::BoxError;

/// A service of HTTP requests that [`serve`](crate::serve) takes: tonic's `Routes`, axum's `Router`, or any other clonable
/// [`Service`] whose futures and bodies are `Send`.
///
/// Every service that has these bounds implements the trait, and nothing else does.
pub trait HttpService:
    Service<
        Request<Incoming>,
        Response = Response<<Self as HttpService>::ResponseBody>,
        Error: Into<BoxError>,
        Future: Send + 'static,
    > + Clone
    + Send
    + 'static
{
    /// The body of an answer.
    type ResponseBody: Body<Data: Send, Error: Into<BoxError>> + Send + 'static;
}

impl<S, B> HttpService for S
where
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<BoxError>, Future: Send + 'static>
        + Clone
        + Send
        + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    type ResponseBody = B;
}
