//! The heads of requests and answers, and trailers.

use bytes::{Buf, Bytes};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version, request, response};

use super::fields::{Malformed, put_bytes, put_fields, take_bytes, take_fields};

/// What the requests of a connection have in front of their paths, unless they say something else. A hello has it,
/// so that they need not repeat it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) secure: bool,
    pub(crate) authority: Option<Authority>,
}

impl Origin {
    pub(super) fn encode(&self) -> Vec<u8> {
        let authority = self.authority.as_ref().map_or("", |authority| authority.as_str());
        [&[u8::from(self.secure)], authority.as_bytes()].concat()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let Some((secure, authority)) = bytes.split_first() else { return Ok(Self::default()) };
        let authority = match authority {
            [] => None,
            _ => Some(Authority::try_from(authority).map_err(|_| Malformed("an authority is invalid"))?),
        };
        Ok(Self { secure: *secure != 0, authority })
    }

    fn scheme(&self) -> Scheme {
        if self.secure { Scheme::HTTPS } else { Scheme::HTTP }
    }

    /// Returns the URI of a path.
    fn uri(&self, path: PathAndQuery) -> Result<Uri, Malformed> {
        let mut parts = http::uri::Parts::default();
        if let Some(authority) = &self.authority {
            (parts.scheme, parts.authority) = (Some(self.scheme()), Some(authority.clone()));
        }
        parts.path_and_query = Some(path);
        Uri::from_parts(parts).map_err(|_| Malformed("a target is invalid"))
    }
}

/// Methods that are a byte: their places, from 1 on.
const METHODS: [Method; 7] =
    [Method::POST, Method::GET, Method::PUT, Method::DELETE, Method::HEAD, Method::OPTIONS, Method::PATCH];

/// Appends the head of a request.
pub(crate) fn put_request(head: &request::Parts, origin: &Origin, out: &mut Vec<u8>) {
    match METHODS.iter().position(|method| *method == head.method) {
        Some(place) => out.push(place as u8 + 1),
        None => {
            out.push(0);
            put_bytes(head.method.as_str().as_bytes(), out);
        }
    }
    let path = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    if path.starts_with('/') || path == "*" {
        put_bytes(path.as_bytes(), out);
    } else {
        // Of `http://host?query`.
        put_bytes(format!("/{path}").as_bytes(), out);
    }
    let own = head.uri.authority().filter(|authority| {
        origin.authority.as_ref() != Some(*authority) || head.uri.scheme() != Some(&origin.scheme())
    });
    match own {
        None => out.push(0),
        Some(authority) => {
            let secure = head.uri.scheme() == Some(&Scheme::HTTPS);
            out.push(1 + u8::from(secure));
            put_bytes(authority.as_str().as_bytes(), out);
        }
    }
    put_fields(&head.headers, out);
}

/// Reads the head of a request.
///
/// # Errors
/// It is malformed.
pub(crate) fn take_request(mut block: Bytes, origin: &Origin) -> Result<request::Parts, Malformed> {
    let (mut head, ()) = Request::new(()).into_parts();
    head.method = match take_byte(&mut block)? {
        0 => {
            let name = take_bytes(&mut block)?;
            Method::from_bytes(&name).map_err(|_| Malformed("a method is invalid"))?
        }
        place => METHODS.get(usize::from(place - 1)).cloned().ok_or(Malformed("an unknown method"))?,
    };
    let path = take_bytes(&mut block)?;
    if !path.starts_with(b"/") && path != "*" {
        return Err(Malformed("a path is invalid"));
    }
    let path = PathAndQuery::from_maybe_shared(path).map_err(|_| Malformed("a path is invalid"))?;
    head.uri = match take_byte(&mut block)? {
        0 => origin.uri(path)?,
        flag @ 1..=2 => {
            let authority = Authority::from_maybe_shared(take_bytes(&mut block)?)
                .map_err(|_| Malformed("an authority is invalid"))?;
            Origin { secure: flag == 2, authority: Some(authority) }.uri(path)?
        }
        _ => return Err(Malformed("an unknown kind of target")),
    };
    // What frameworks expect of calls that share a connection.
    head.version = Version::HTTP_2;
    head.headers = take_fields(block)?;
    Ok(head)
}

/// Appends the head of an answer.
pub(crate) fn put_response(head: &response::Parts, out: &mut Vec<u8>) {
    out.extend_from_slice(&head.status.as_u16().to_be_bytes());
    put_fields(&head.headers, out);
}

/// Reads the head of an answer.
///
/// # Errors
/// It is malformed.
pub(crate) fn take_response(mut block: Bytes) -> Result<response::Parts, Malformed> {
    let (mut head, ()) = Response::new(()).into_parts();
    let status = u16::from_be_bytes([take_byte(&mut block)?, take_byte(&mut block)?]);
    let status = StatusCode::from_u16(status).ok().filter(|status| !status.is_informational());
    head.status = status.ok_or(Malformed("a status is invalid"))?;
    head.version = Version::HTTP_2;
    head.headers = take_fields(block)?;
    Ok(head)
}

/// Appends trailers.
pub(crate) fn put_trailers(trailers: &HeaderMap, out: &mut Vec<u8>) {
    put_fields(trailers, out);
}

/// Reads trailers.
///
/// # Errors
/// They are malformed.
pub(crate) fn take_trailers(block: Bytes) -> Result<HeaderMap, Malformed> {
    take_fields(block)
}

fn take_byte(block: &mut Bytes) -> Result<u8, Malformed> {
    if block.has_remaining() { Ok(block.get_u8()) } else { Err(Malformed("a head is too short")) }
}
