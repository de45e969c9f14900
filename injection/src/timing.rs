//! Waits of the tasks of a controller.

use tokio::time::Instant;

/// Sleeps until the time. Never returns if it is `None`.
pub async fn sleep_until_optional(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
