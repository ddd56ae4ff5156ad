//! Memory that a device does not register, and memory of connections that have ended.
//!
//! Runs on: fake

use std::future::pending;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use common::adapter;
use common::life::eventually;
use common::process::alone;
use common::verbs::{fake, fake_reset};
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use tokio_rdma_rpc::{Config, Incoming};

use super::{
    END, GO_AWAY, LENT, PART, RESET, RETURNED, Raw, answer, answer_long, call, channel, connect, echo,
    first_lent, greet, loan, serve,
};

/// The number in C of the error of a device that was removed.
const EIO: u32 = 5;
/// The same if the process may not lock more memory.
const ENOMEM: u32 = 12;

// Others would fail in the same way if the process has no memory. If a device was removed, there may be another one.
#[tokio::test]
async fn process_without_memory_is_lent_nothing_later() {
    if !alone(module_path!(), "process_without_memory_is_lent_nothing_later") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let (address, _stop) = serve(&adapter, async |_| pending::<Response<Empty<Bytes>>>().await);
    for (error, expected) in [(EIO, &[RETURNED, RESET][..]), (ENOMEM, &[GO_AWAY, RETURNED, RESET])] {
        let mut raw = Raw::connect(&adapter, address).await.expect("it is a device");
        let memory = raw.memory().await;
        raw.post(1, 0).await;
        fake(&format!("refuse ibv_reg_mr {error}"));
        raw.send(LENT, 0, 1, &loan(0, &memory, PART)).await;
        let mut kinds = Vec::new();
        while !kinds.contains(&RESET) {
            kinds.push(raw.next().await.expect("a frame").0);
        }
        assert_eq!(kinds, expected, "error {error}");
        fake("reset");
        let mut next = connect(&adapter, address).await;
        assert_eq!(greet(&mut next, 0).await, error == EIO, "error {error}");
    }
    let (address, _stop) = serve(&adapter, echo);
    let channel = channel(adapter, address, Config::default());
    call(&channel, 0, 1 << 20).await.expect("answered in frames");
}

#[tokio::test]
async fn answers_come_in_frames_without_memory_to_lend() {
    if !alone(module_path!(), "answers_come_in_frames_without_memory_to_lend") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let (address, _stop) = serve(&adapter, answer_long);
    let mut raw = Raw::connect(&adapter, address).await.expect("it is a device");
    // It counts calls from now on.
    fake("reset");
    fake(&format!("refuse ibv_reg_mr {ENOMEM}"));
    let attempts = || fake("calls ibv_reg_mr").expect("a number");
    for number in 1..=20 {
        raw.post(number, END).await;
        assert_eq!(answer(&mut raw).await, (1 << 20, None), "answer {number}");
        eventually("an attempt", || attempts() > 0).await;
    }
    assert!(attempts() < 10, "it does not try for each answer");
}

// The program may keep a body, and what it knows of the connection.
#[tokio::test]
async fn ended_connection_keeps_no_memory_for_loans() {
    if !alone(module_path!(), "ended_connection_keeps_no_memory_for_loans") {
        return;
    }
    let Some(_reset) = fake_reset() else { return };
    let adapter = adapter();
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keeper = kept.clone();
    let (address, _stop) = serve(&adapter, move |request: Request<Incoming>| {
        let kept = keeper.clone();
        async move {
            let (head, mut body) = request.into_parts();
            if let Some(part) = body.frame().await {
                drop(part);
                kept.lock().expect("not poisoned").push(body);
                return pending().await;
            }
            answer_long(Request::from_parts(head, body)).await
        }
    });
    let registrations = || fake("count mr").expect("a number");
    let before = registrations();
    let mut raw = Raw::connect(&adapter, address).await.expect("it is a device");
    let memory = raw.memory().await;
    // The server has memory that it lends, and memory for what it is lent.
    let (last, ..) = first_lent(&mut raw).await;
    raw.post(last + 1, 0).await;
    raw.send(LENT, 0, last + 1, &loan(0, &memory, PART)).await;
    while raw.next().await.expect("a frame").0 != RETURNED {}
    let count = || kept.lock().expect("not poisoned").len();
    eventually("the part is read", || count() == 1).await;
    drop((raw, memory));
    eventually("the memory is gone", || registrations() == before).await;
    assert_eq!(count(), 1);
}
