//! Properties of the codec: what is put is taken as it was, and bytes of anybody do no harm.

use bytes::Bytes;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use std::net::{Ipv6Addr, SocketAddr};

use super::*;

/// Returns names of fields, the usual ones among them.
fn names() -> impl Strategy<Value = String> {
    const USUAL: &[&str] =
        &["content-type", "te", "grpc-status", "grpc-message", "accept", "x-request-id", "set-cookie"];
    prop_oneof![select(USUAL).prop_map(|name| name.to_string()), "[a-z0-9!#$%&'*+.^_`|~-]{1,12}"]
}

/// Returns values of fields, those of whole fields among them.
fn values() -> impl Strategy<Value = Vec<u8>> {
    const USUAL: &[&[u8]] = &[b"application/grpc", b"trailers", b"0", b"*/*", b""];
    let byte = prop_oneof![Just(b'\t'), 0x20_u8..=0x7E, 0x80_u8..=0xFF];
    prop_oneof![
        2 => select(USUAL).prop_map(|value| value.to_vec()),
        2 => vec(byte, 0..20),
        // Their length is more than a byte.
        1 => (120..300_usize).prop_map(|length| vec![b'x'; length]),
    ]
}

fn fields() -> impl Strategy<Value = HeaderMap> {
    let field = || (names(), values());
    let most = field().prop_map(|field| std::iter::repeat_n(field, MOST_FIELDS).collect());
    prop_oneof![15 => vec(field(), 0..8), 1 => most].prop_map(|fields| {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(
                HeaderName::from_bytes(name.as_bytes()).expect("a name"),
                HeaderValue::from_bytes(&value).expect("a value"),
            );
        }
        map
    })
}

fn authorities() -> impl Strategy<Value = Authority> {
    "[a-z0-9.-]{1,20}(:[0-9]{1,5})?".prop_filter_map("an authority", |text| Authority::try_from(text).ok())
}

fn origins() -> impl Strategy<Value = Origin> {
    let authority = prop::option::of(authorities());
    (any::<bool>(), authority).prop_map(|(secure, authority)| Origin { secure, authority })
}

fn paths() -> impl Strategy<Value = String> {
    "/[a-zA-Z0-9/._~%-]{0,20}(\\?[a-z0-9=&]{0,10})?"
}

/// Returns the heads of requests.
fn requests() -> impl Strategy<Value = http::request::Parts> {
    const USUAL: &[&str] = &["POST", "GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"];
    let methods = prop_oneof![select(USUAL).prop_map(|name| name.to_string()), "[A-Z!#*-]{1,30}"];
    let target = (prop::option::of((any::<bool>(), authorities())), paths());
    (methods, target, fields()).prop_map(|(method, (origin, path), fields)| {
        let scheme = |secure| if secure { "https" } else { "http" };
        let origin = origin.map(|(secure, authority)| format!("{}://{authority}", scheme(secure)));
        let (mut head, ()) = Request::new(()).into_parts();
        head.method = Method::from_bytes(method.as_bytes()).expect("a method");
        head.uri = format!("{}{path}", origin.unwrap_or_default()).parse().expect("a target");
        head.headers = fields;
        head
    })
}

/// Returns the heads of answers.
fn responses() -> impl Strategy<Value = http::response::Parts> {
    (200..=999_u16, fields()).prop_map(|(status, fields)| {
        let (mut head, ()) = Response::new(()).into_parts();
        head.status = StatusCode::from_u16(status).expect("a status");
        head.headers = fields;
        head
    })
}

fn address((ip, port): (u128, u16)) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), port)
}

/// Returns settings that a peer takes.
fn settings() -> impl Strategy<Value = Settings> {
    (1_u32 << 12..=1 << 20, prop::option::of(any::<[(u128, u16); 2]>()))
        .prop_flat_map(|(head, ends)| {
            let frame = 2 * (head + 4).max(1 << 13)..=u32::MAX;
            (Just((head, ends)), frame, 1_u32 << 12..=u32::MAX, 1_u32 << 14..=u32::MAX, 1..=u32::MAX)
        })
        .prop_map(|((head, ends), frame, call_window, window, calls)| Settings {
            frame,
            call_window,
            window,
            calls,
            head,
            loans: ends.map(|[local, peer]| Ends { local: address(local), peer: address(peer) }),
        })
}

fn put<T: ?Sized>(what: &T, put: impl FnOnce(&T, &mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    put(what, &mut out);
    out
}

/// Reads a block as everything that a block can be. What is taken is within the limits, and is the same when it is put
/// and taken again.
fn take_all(block: &[u8]) {
    let bytes = || Bytes::copy_from_slice(block);
    let check = |fields: &HeaderMap| {
        assert!(fields.len() <= MOST_FIELDS);
        // The longest field of one byte has less than these.
        let length: usize = fields.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        assert!(length <= 64 * block.len());
    };
    let origin = Origin { secure: true, authority: Some(Authority::from_static("host:1")) };
    if let Ok(head) = take_request(bytes(), &origin) {
        check(&head.headers);
        let again = put(&head, |head, out| put_request(head, &origin, out));
        let again = take_request(again.into(), &origin).expect("taken again");
        assert_eq!((again.method, again.uri, again.headers), (head.method, head.uri, head.headers));
    }
    if let Ok(head) = take_response(bytes()) {
        check(&head.headers);
        let again = take_response(put(&head, put_response).into()).expect("taken again");
        assert_eq!((again.status, again.headers), (head.status, head.headers));
    }
    if let Ok(trailers) = take_trailers(bytes()) {
        check(&trailers);
        assert_eq!(take_trailers(put(&trailers, put_trailers).into()), Ok(trailers));
    }
    if let Ok((first, rest)) = split_block(block) {
        assert_eq!(4 + first.len() + rest.len(), block.len());
    }
    let _ = take_code(block);
    if let Some(header) = block.first_chunk()
        && let Ok(decoded) = Header::decode(header)
    {
        assert_eq!(decoded.encode(), *header);
    }
    if let Some(start) = block.first_chunk()
        && let Ok((length, _)) = Settings::from_start(start)
    {
        assert!(length <= LONGEST_HELLO);
    }
    if let Ok((settings, origin)) = Settings::from_hello(true, block) {
        let hello = settings.hello(Some(&origin));
        assert_eq!(Settings::from_hello(true, &hello[HELLO_START..]), Ok((settings, origin)));
    }
}

proptest! {
    #[test]
    fn requests_are_taken_as_they_were_put(head in requests(), origin in origins()) {
        let block = put(&head, |head, out| put_request(head, &origin, out));
        let taken = take_request(block.into(), &origin).expect("taken");
        // Who names no authority means that of the connection.
        let uri = match (&origin.authority, head.uri.authority()) {
            (Some(authority), None) => {
                let scheme = if origin.secure { "https" } else { "http" };
                let path = head.uri.path_and_query().expect("a path").as_str();
                Uri::builder().scheme(scheme).authority(authority.clone()).path_and_query(path).build()
            }
            _ => Ok(head.uri),
        };
        prop_assert_eq!(taken.uri, uri.expect("a target"));
        prop_assert_eq!((taken.method, taken.headers), (head.method, head.headers));
        prop_assert_eq!(taken.version, Version::HTTP_2);
    }

    #[test]
    fn answers_are_taken_as_they_were_put(head in responses()) {
        let taken = take_response(put(&head, put_response).into()).expect("taken");
        prop_assert_eq!((taken.status, taken.headers), (head.status, head.headers));
    }

    #[test]
    fn trailers_are_taken_as_they_were_put(trailers in fields()) {
        prop_assert_eq!(take_trailers(put(&trailers, put_trailers).into()), Ok(trailers));
    }

    #[test]
    fn hellos_are_taken_as_they_were_put(settings in settings(), origin in origins()) {
        let hello = settings.hello(Some(&origin));
        let (start, rest) = hello.split_first_chunk().expect("a start");
        prop_assert_eq!(Settings::from_start(start), Ok((rest.len(), settings.loans.is_some())));
        prop_assert_eq!(Settings::from_hello(settings.loans.is_some(), rest), Ok((settings, origin)));
    }

    #[test]
    fn any_bytes_are_taken_or_refused(block in vec(any::<u8>(), 0..300)) {
        take_all(&block);
    }

    // Bytes that are nearly right get further than any bytes.
    #[test]
    fn broken_heads_are_taken_or_refused(
        head in prop_oneof![
            requests().prop_map(|head| put(&head, |head, out| put_request(head, &Origin::default(), out))),
            responses().prop_map(|head| put(&head, put_response)),
            (settings(), origins()).prop_map(|(settings, origin)| settings.hello(Some(&origin)).split_off(HELLO_START)),
        ],
        changes in vec((any::<Index>(), any::<u8>()), 0..4),
        end in any::<Index>(),
    ) {
        let mut head = head;
        for (place, byte) in changes {
            let place = place.index(head.len());
            head[place] = byte;
        }
        take_all(&head);
        head.truncate(end.index(head.len()));
        take_all(&head);
    }

    #[test]
    fn more_fields_are_refused(count in MOST_FIELDS - 2..MOST_FIELDS + 3) {
        // Each is `grpc-status: 0`.
        let taken = take_trailers(vec![130; count].into());
        prop_assert_eq!(taken.is_ok(), count <= MOST_FIELDS);
    }
}

// An end may see an IPv4 address in the form of IPv6, or the interface of an address.
#[test]
fn ends_are_equal_in_every_form_of_an_address() {
    let ends = |local: &str, peer: &str| {
        Ends::new(local.parse().expect("an address"), peer.parse().expect("an address"))
    };
    let here = ends("[::ffff:10.0.0.1]:7", "[fe80::1%3]:8");
    assert_eq!(here, ends("10.0.0.1:7", "[fe80::1]:8"));
    assert_eq!(Ends::decode(&here.encode()), here);
    assert_ne!(here.swapped(), here);
}
