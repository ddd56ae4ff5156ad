//! The guest machine: two devices, an address for each, and two builds of siw.
//!
//! Runs on: guest

use std::env;
use std::net::IpAddr;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// One test at a time: one of them takes siw away for a moment.
static TURN: Mutex<()> = Mutex::new(());

/// The output of a program, which must end well.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect(program);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

fn variable(name: &str) -> String {
    env::var(name).expect(name)
}

/// Runs a test in the machine, alone.
fn in_guest(test: impl FnOnce()) {
    if env::var_os("TOKIO_RDMA_GUEST").is_none() {
        eprintln!("skipped: needs the guest machine (cargo xtask guest)");
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    test();
}

/// Listens at an address with rdma_cm, and says which device the kernel found for it.
fn device_of(address: IpAddr) -> String {
    let script = r#"rping -s -a "$1" -p "$2" & child=$!
        for _ in $(seq 600); do
            rdma resource show cm_id | grep "state LISTEN.*pid $child " && break
            sleep 0.1
        done
        kill $child"#;
    output("sh", &["-c", script, "device", &address.to_string(), "18515"])
}

#[test]
fn an_address_names_one_device() {
    in_guest(|| {
        for kind in ["RXE", "SIW"] {
            let device = variable(&format!("TOKIO_RDMA_{kind}_DEVICE"));
            for family in ["ADDR", "ADDR6"] {
                let address = variable(&format!("TOKIO_RDMA_{kind}_{family}")).parse().expect("an address");
                let shown = device_of(address);
                assert!(shown.contains(&format!("link {device}/1 ")), "{address}: {shown}");
            }
        }
    });
}

#[test]
fn either_build_of_siw_can_be_loaded() {
    in_guest(|| {
        let link = format!("netdev {}", variable("TOKIO_RDMA_SIW_LINK"));
        for build in ["p2p", "stock"] {
            output("guest-siw", &[build]);
            let shown = output("rdma", &["link", "show", "siw0/1"]);
            assert!(shown.contains("state ACTIVE") && shown.contains(&link), "{build}: {shown}");
        }
    });
}

#[test]
fn the_folders_can_be_written_to() {
    in_guest(|| {
        let here = env::current_dir().expect("a folder");
        assert!(here.join("Cargo.toml").is_file(), "{}", here.display());
        for folder in [&here, &variable("TOKIO_RDMA_SCRATCH").into()] {
            let file = folder.join("written-in-the-guest");
            std::fs::write(&file, "x").expect("a place to write to");
            assert_eq!(std::fs::read_to_string(&file).expect("the file"), "x");
        }
    });
}
