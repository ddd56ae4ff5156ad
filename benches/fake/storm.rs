//! Many connections are lost at once, on a device whose commands take as long as those of firmware: whether the events of others
//! go on.

use std::io;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio_rdma::Adapter;

use crate::tracks::{Connected, adapter, config, connect};

/// The commands to the device.
const COMMANDS: [&str; 3] = ["ibv_create_qp", "ibv_modify_qp", "ibv_destroy_qp"];
/// The milliseconds that each of them takes.
const COMMAND: &str = "0.1";
/// `RDMA_CM_EVENT_DISCONNECTED`, with the status of a lost peer.
const LOST: &str = "report 10 -110";

/// The queue pairs of connections that come and go meanwhile.
const FEW: i64 = 8;

/// Loses so many connections at once, and prints the longest time between two connections that are made meanwhile.
pub(crate) fn run(connections: usize) -> io::Result<()> {
    Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let adapter = adapter()?;
        let mut lost = Vec::with_capacity(connections);
        for _ in 0..connections {
            lost.push(connect(&adapter, config()).await?);
        }
        for command in COMMANDS {
            fake_control::tell(&format!("delay {command} {COMMAND}"))?;
        }
        let calm = gaps(&adapter, async { tokio::time::sleep(Duration::from_secs(1)).await }).await?;
        fake_control::tell("gap")?;
        let begin = Instant::now();
        let told = fake_control::tell(LOST)?;
        let mut ends: JoinSet<()> = lost.into_iter().map(end).collect();
        let storm = gaps(&adapter, async {
            while ends.join_next().await.is_some() {}
            while fake_control::tell("count qp").is_ok_and(|left| left > FEW) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let storm = storm.await?;
        let gap = fake_control::tell("gap")? as f64 / 1e3;
        println!("{connections} connections are lost at once ({told} ids), commands take {COMMAND} ms");
        println!(
            "  all were told, and their queue pairs destroyed, after {} ms",
            begin.elapsed().as_millis()
        );
        println!("  longest time in which no event was taken though there was one: {gap:.1} ms (goal 50)");
        for (when, Gaps { longest, count }) in [("before", calm), ("meanwhile", storm)] {
            println!(
                "  {when}: {count} connections made, one took {:.1} ms at most",
                longest.as_secs_f64() * 1e3
            );
        }
        Ok(())
    })
}

/// Both ends of a connection that is lost: they are told, and let everything go.
async fn end(connected: Connected) {
    for connection in &connected.connections {
        connection.disconnected().await;
    }
}

/// The connections that were made one after the other.
struct Gaps {
    longest: Duration,
    count: usize,
}

/// Makes connections until something has ended.
async fn gaps(adapter: &Adapter, until: impl Future<Output = ()>) -> io::Result<Gaps> {
    let mut until = std::pin::pin!(until);
    let mut gaps = Gaps { longest: Duration::ZERO, count: 0 };
    let mut last = Instant::now();
    loop {
        tokio::select! {
            () = &mut until => {
                gaps.longest = gaps.longest.max(last.elapsed());
                return Ok(gaps);
            }
            made = connect(adapter, config()) => drop(made?),
        }
        gaps.count += 1;
        gaps.longest = gaps.longest.max(last.elapsed());
        last = Instant::now();
    }
}
