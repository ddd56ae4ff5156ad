// SPDX-License-Identifier: GPL-3.0-only
//! Which RDMA device owns an IP address, and under which GID: what async-rdma has to be told to use it.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use async_rdma::{ConnectionType, MRManageStrategy, MTU, Rdma, RdmaBuilder};

/// Where the kernel shows its RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// A GID of a port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    /// The device, `rxe0`.
    pub(crate) name: String,
    /// The port, from one.
    pub(crate) port: u8,
    /// The place of the GID in the port's table.
    pub(crate) gid_index: usize,
}

impl Device {
    /// The RoCE device that owns the address.
    ///
    /// # Errors
    /// There is none, or the kernel does not say.
    pub(crate) fn of(address: IpAddr) -> io::Result<Self> {
        Self::under(Path::new(DEVICES), address)?.ok_or_else(|| {
            let sentence = format!(
                "no RoCE device owns {address}: with rdma_rxe, `rdma link add rxe0 type rxe netdev DEVICE` makes one"
            );
            io::Error::new(io::ErrorKind::NotFound, sentence)
        })
    }

    /// The first GID of the address in this folder. Of several, RoCE v2 goes through routers; v1 is not looked at.
    fn under(devices: &Path, address: IpAddr) -> io::Result<Option<Self>> {
        let wanted = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        for name in names(devices)? {
            let ports = devices.join(&name).join("ports");
            for port in names(&ports)? {
                let (gids, types) =
                    (ports.join(&port).join("gids"), ports.join(&port).join("gid_attrs/types"));
                for index in names(&gids)? {
                    // An unused place in the table cannot be read.
                    let read = |folder: &Path| fs::read_to_string(folder.join(&index)).unwrap_or_default();
                    let found = read(&gids).trim().parse::<Ipv6Addr>().is_ok_and(|gid| gid == wanted);
                    let place = port.parse().ok().zip(index.parse().ok());
                    if let (true, "RoCE v2", Some((port, gid_index))) = (found, read(&types).trim(), place) {
                        return Ok(Some(Self { name, port, gid_index }));
                    }
                }
            }
        }
        Ok(None)
    }

    /// A queue pair that is connected to nobody yet.
    ///
    /// # Errors
    /// What async-rdma says.
    pub(crate) fn queue_pair(&self) -> io::Result<Rdma> {
        RdmaBuilder::default()
            .set_dev(&self.name)
            .set_port_num(self.port)
            .set_gid_index(self.gid_index)
            .set_conn_type(ConnectionType::RCIBV)
            // Without async-rdma's own protocol, whose set-up sleeps for a second.
            .set_raw(true)
            // The pools of its default strategy share jemalloc's cache of the thread: with two of them in one
            // process, an assertion fails as soon as one is handed memory of the other.
            .set_mr_strategy(MRManageStrategy::Raw)
            .set_mtu(MTU::MTU1024)
            // Without a limit: a message may arrive before its receive is posted.
            .set_rnr_retry(7)
            .build()
    }
}

/// The names of what is in a folder, in order; none if there is no such folder.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort_by_key(|name| (name.len(), name.clone()));
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process;

    use super::*;

    #[test]
    fn the_gid_of_an_address_is_found() {
        let root = env::temp_dir().join(format!("rendezvous-device-{}", process::id()));
        let table = [
            ("siw0", 0, "0200:0000:0000:0000:0000:0000:0000:0000", "IWARP"),
            ("rxe0", 0, "fe80:0000:0000:0000:0000:00ff:fe00:0001", "RoCE v2"),
            ("rxe0", 1, "0000:0000:0000:0000:0000:ffff:0a00:0001", "IB/RoCE v1"),
            ("rxe0", 2, "0000:0000:0000:0000:0000:0000:0000:0000", ""),
            ("rxe0", 10, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),
        ];
        for (device, index, gid, kind) in table {
            let port = root.join(device).join("ports/1");
            fs::create_dir_all(port.join("gids")).expect("a folder");
            fs::create_dir_all(port.join("gid_attrs/types")).expect("a folder");
            fs::write(port.join("gids").join(index.to_string()), format!("{gid}\n")).expect("a file");
            fs::write(port.join("gid_attrs/types").join(index.to_string()), format!("{kind}\n"))
                .expect("a file");
        }
        let find =
            |address: &str| Device::under(&root, address.parse().expect("an address")).expect("readable");
        let rxe = |gid_index| Some(Device { name: "rxe0".into(), port: 1, gid_index });
        let found = [find("10.0.0.1"), find("fe80::ff:fe00:1"), find("10.0.0.2"), find("200::")];
        let nowhere =
            Device::under(&root.join("nowhere"), IpAddr::from([10, 0, 0, 1])).expect("nothing to read");
        fs::remove_dir_all(&root).expect("ours");
        assert_eq!(found, [rxe(10), rxe(0), None, None]);
        assert_eq!(nowhere, None);
    }
}
