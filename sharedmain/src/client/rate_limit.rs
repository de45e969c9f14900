//! Holds requests to the API server back, for those who ask for it with `--kube-api-qps`.
use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use tower::{Service, ServiceExt, service_fn};

/// So many requests a second, and so many at once after a pause: a token bucket, as client-go has, for all clones.
///
/// Each request takes its turn when it is made, and waits for it on its own: one that is not polled holds up no other.
pub(crate) fn rate_limited<R, S>(
    service: S,
    per_second: f64,
    burst: u32,
) -> impl Service<R, Response = S::Response, Error = S::Error, Future: Send> + Clone + Send + Sync + 'static
where
    R: Send + 'static,
    S: Service<R, Response: Send, Error: Send, Future: Send> + Clone + Send + Sync + 'static,
{
    let bucket = Arc::new(Mutex::new(Bucket::full(per_second, f64::from(burst))));
    service_fn(move |request: R| {
        let (service, turn) = (service.clone(), Turn::taken(&bucket));
        async move {
            turn.come().await;
            service.oneshot(request).await
        }
    })
}

#[derive(Debug)]
struct Bucket {
    per_second: f64,
    burst: f64,
    /// Below zero are those that are taken already and not earned yet.
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn full(per_second: f64, burst: f64) -> Self {
        Self { per_second, burst, tokens: burst, at: Instant::now() }
    }

    /// Takes a token; how long until it is earned.
    fn take(&mut self) -> Duration {
        let now = Instant::now();
        let earned = now.duration_since(self.at).as_secs_f64() * self.per_second;
        self.tokens = (self.tokens + earned).min(self.burst) - 1.0;
        self.at = now;
        let missing = (-self.tokens).max(0.0) / self.per_second;
        Duration::try_from_secs_f64(missing).unwrap_or(Duration::MAX)
    }
}

/// A token that is taken, and given back if nothing is sent for it.
struct Turn {
    bucket: Arc<Mutex<Bucket>>,
    wait: Duration,
    came: bool,
}

impl Turn {
    fn taken(bucket: &Arc<Mutex<Bucket>>) -> Self {
        Self { bucket: bucket.clone(), wait: bucket.lock().take(), came: false }
    }

    async fn come(mut self) {
        if !self.wait.is_zero() {
            tokio::time::sleep(self.wait).await;
        }
        self.came = true;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.came {
            self.bucket.lock().tokens += 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn after_the_burst_requests_go_at_the_rate() {
        let answer = tower::service_fn(|()| async { Ok::<_, std::convert::Infallible>(Instant::now()) });
        let mut limited = rate_limited(answer, 10.0, 3);
        let start = Instant::now();
        let mut after = Vec::new();
        for _ in 0..23 {
            after.push(limited.ready().await.unwrap().call(()).await.unwrap().duration_since(start));
        }
        assert_eq!(after[2], Duration::ZERO);
        assert!(after[3] >= Duration::from_millis(100), "{:?}", after[3]);
        assert!(after[22] >= Duration::from_secs(2), "{:?}", after[22]);
        assert!(after[22] < Duration::from_millis(2100), "{:?}", after[22]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_not_polled_holds_up_no_other_and_a_dropped_one_gives_its_turn_back() {
        let answer = tower::service_fn(|()| async { Ok::<_, std::convert::Infallible>(Instant::now()) });
        let limited = rate_limited(answer, 10.0, 1);
        let start = Instant::now();
        let sent = || limited.clone().oneshot(());
        sent().await.unwrap();
        let mut begun = Box::pin(sent());
        assert!(futures::poll!(&mut begun).is_pending());
        assert_eq!(sent().await.unwrap().duration_since(start).as_millis(), 200, "the third turn");
        drop(begun);
        assert_eq!(
            sent().await.unwrap().duration_since(start).as_millis(),
            200,
            "the turn that was given back"
        );
    }
}
