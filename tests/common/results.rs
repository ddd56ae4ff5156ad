//! Results of completion queues that the test polls.

use tokio_rdma::{CompletionQueue, NotifyKind, WorkCompletion};

use super::within;

/// Takes results until there are so many, a few at a time, and sleeps in between.
pub async fn collect(queue: &CompletionQueue, count: usize) -> Vec<WorkCompletion> {
    let mut results = Vec::new();
    within(async {
        while results.len() < count {
            if queue.poll((count - results.len()).min(7), &mut results) == 0 {
                queue.notify(NotifyKind::Any).await.expect("it lives");
            }
        }
    })
    .await;
    results
}
