//! What each device announces: the table of the guide, `docs/guide/src/devices.md`.
//!
//! Runs on: soft, sim, rxe, siw

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use common::*;

/// The flags that tell the transport, or are the same on every device; the page need not explain them.
const OTHERS: [&str; 3] = ["iwarp", "loopback", "in_order_dma"];

/// Reads the cells of the page for the device under test, by the names of the fields.
fn promised() -> BTreeMap<String, String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/src/devices.md");
    let page = fs::read_to_string(page).expect("the page");
    let column = match Device::under_test() {
        Device::Soft | Device::Sim => 1,
        Device::Rxe | Device::Fake => 2,
        Device::Siw | Device::FakeIwarp => 3,
    };
    let table = page.lines().skip_while(|line| !line.starts_with("| `AdapterInfo` |")).skip(2);
    let mut promised = BTreeMap::new();
    for row in table.take_while(|line| line.starts_with('|')) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let names: Vec<_> = cells[0].split(", ").map(|name| name.trim_matches('`')).collect();
        let (cell, is_pair) = (own_part(cells[column]), names.len() == 2);
        for (i, name) in names.into_iter().enumerate() {
            let value = if is_pair { cell.split(", ").nth(i).expect("two values") } else { cell };
            promised.insert(name.to_owned(), value.to_owned());
        }
    }
    promised
}

/// Returns the part of a cell that is about the device under test: in `yes; no on `siw``, the second is for siw.
fn own_part(cell: &str) -> &str {
    let driver = match Device::under_test() {
        Device::Rxe => " on `rdma_rxe`",
        Device::Siw => " on `siw`",
        Device::Soft | Device::Sim | Device::Fake | Device::FakeIwarp => "no other driver",
    };
    let mut parts = cell.split("; ");
    let usual = parts.next().expect("a part");
    parts.find_map(|part| part.strip_suffix(driver)).unwrap_or(usual)
}

/// Returns the flag that a cell promises. The device of `tests/fake` has what cards may have as RoCE and as InfiniBand,
/// and lacks it over iWARP.
fn flag(cell: &str) -> bool {
    match cell.split([' ', ':', ',']).next() {
        Some("yes") => true,
        Some("no") => false,
        Some("depends") => Device::under_test() == Device::Fake,
        _ => panic!("a flag is {cell:?}"),
    }
}

// ERR-06: a flag that changes without the page, or the page without the flag, fails here. Tests elsewhere branch on the flags.
#[tokio::test]
async fn every_flag_is_that_of_the_guide() {
    let adapter = adapter();
    let promised = promised();
    // Every field, as the type shows itself: a new one is not left out.
    let shown = format!("{:#?}", adapter.info());
    let fields = shown.lines().filter_map(|line| line.strip_prefix("    ")?.split_once(": "));
    let mut compared = 0;
    for (name, value) in fields.filter(|(name, _)| !OTHERS.contains(name)) {
        let Ok(value) = value.trim_end_matches(',').parse::<bool>() else { continue };
        let cell = promised.get(name).unwrap_or_else(|| panic!("the page does not tell of {name}"));
        assert_eq!(value, flag(cell), "{name}: the page says {cell:?}");
        compared += 1;
    }
    assert!(compared >= 16, "{shown}");
}

// The numbers are those of the table in the guide (ERR-06).
#[tokio::test]
async fn private_data_limits_match_the_guide() {
    let adapter = adapter();
    let (info, promised) = (adapter.info(), promised());
    for (name, value) in [
        ("max_request_data", info.max_request_data),
        ("max_reply_data", info.max_reply_data),
        ("max_reject_data", info.max_reject_data),
        ("max_active_reject_data", info.max_active_reject_data),
    ] {
        assert_eq!(promised[name], value.to_string(), "{name}");
    }
}

// All devices but `rxe` and the fake RoCE device are iWARP, and only soft places bytes in order (ERR-06, AD-02).
#[tokio::test]
async fn transport_is_that_of_the_device() {
    let adapter = adapter();
    let info = adapter.info();
    let iwarp = !matches!(Device::under_test(), Device::Rxe | Device::Fake);
    assert_eq!((info.iwarp, info.loopback), (iwarp, true));
    assert_eq!(info.in_order_dma, Device::under_test().is_soft());
}
