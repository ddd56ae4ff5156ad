//! The resources of the process.

use std::time::{Duration, Instant};
use std::{fs, io};

use tokio::runtime::Handle;

/// The resources that the process has.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) fds: u64,
    pub(crate) tasks: u64,
    pub(crate) rss_kib: u64,
}

impl Usage {
    pub(crate) fn now() -> io::Result<Self> {
        // The listing itself is one of them.
        let fds = fs::read_dir("/proc/self/fd")?.count() as u64 - 1;
        let status = fs::read_to_string("/proc/self/status")?;
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let rss_kib = rss.and_then(|rest| rest.split_whitespace().next()).and_then(|kib| kib.parse().ok());
        let tasks = Handle::current().metrics().num_alive_tasks() as u64;
        Ok(Self { fds, tasks, rss_kib: rss_kib.ok_or(io::ErrorKind::InvalidData)? })
    }

    /// Waits until no more is open than `before`: connections are closed in the background. No event tells when that
    /// is done, so this looks again and again, for ten seconds at most.
    pub(crate) async fn settled(before: Self) -> io::Result<Self> {
        let patience = Instant::now() + Duration::from_secs(10);
        loop {
            let now = Self::now()?;
            if (now.fds <= before.fds && now.tasks <= before.tasks) || Instant::now() >= patience {
                return Ok(now);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
