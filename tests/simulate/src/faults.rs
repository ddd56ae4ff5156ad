//! Faults.

use std::time::Duration;

use tokio::time::sleep;

use crate::world::World;

/// Draws faults, and mends them all at the end.
pub(crate) async fn draw(world: &World) {
    if world.calm {
        return;
    }
    for _ in 0..world.draw(1..=3) {
        let most = *world.pick(&[20, 500, 5000, 40_000]);
        sleep(world.time(most)).await;
        one(world).await;
    }
}

/// Draws one.
async fn one(world: &World) {
    let network = &world.network;
    let (first, second) = world.two_hosts();
    let time = world.time(*world.pick(&[100, 5000, 60_000])) + Duration::from_millis(1);
    let fault = world.draw(0..=9);
    // What a stream with a session outlives: neither host loses its objects, and connections can be made again.
    world.disturb(match fault {
        4 | 5 => Duration::ZERO,
        0..=7 if fault != 6 => time,
        _ => Duration::MAX,
    });
    match fault {
        0 => network.partition(first, second, time),
        1 | 2 => network.partition_one_way(first, second, time),
        3 => network.stall(first, second, time),
        4 => drop(network.reset(first, second)),
        5 => drop(network.link(first, second).bandwidth(world.draw(10_000..=1_000_000))),
        6 => drop(network.link(first, second).idle_limit(time)),
        7 => {
            first.freeze();
            sleep(time).await;
            first.thaw();
        }
        8 => {
            first.crash();
            sleep(time).await;
            first.restart();
        }
        _ => {
            first.remove_interface();
            sleep(time).await;
            first.restore_interface();
        }
    }
}
