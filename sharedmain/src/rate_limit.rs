//! Holds requests to the API server back, for those who ask for it with `--kube-api-qps`.
use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};

/// So many requests a second, and so many at once after a pause: a token bucket, as client-go has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RateLimitLayer {
    per_second: f64,
    burst: f64,
}

impl RateLimitLayer {
    pub(crate) fn new(per_second: f64, burst: u32) -> Self {
        Self { per_second, burst: f64::from(burst) }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        let bucket = Bucket { rate: *self, tokens: self.burst, at: Instant::now() };
        RateLimit { inner, bucket: Arc::new(Mutex::new(bucket)) }
    }
}

/// Each request takes its turn when it is made, and waits for it on its own: one that is not polled holds up no other.
#[derive(Clone)]
pub(crate) struct RateLimit<S> {
    inner: S,
    bucket: Arc<Mutex<Bucket>>,
}

impl<R, S> Service<R> for RateLimit<S>
where
    R: Send + 'static,
    S: Service<R, Response: Send, Error: Send, Future: Send> + Clone + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        let (inner, turn) = (self.inner.clone(), Turn::taken(&self.bucket));
        Box::pin(async move {
            turn.come().await;
            inner.oneshot(request).await
        })
    }
}

#[derive(Debug)]
struct Bucket {
    rate: RateLimitLayer,
    /// Below zero are those that are taken already and not earned yet.
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// Takes a token; how long until it is earned.
    fn take(&mut self) -> Duration {
        let now = Instant::now();
        let earned = now.duration_since(self.at).as_secs_f64() * self.rate.per_second;
        self.tokens = (self.tokens + earned).min(self.rate.burst) - 1.0;
        self.at = now;
        let missing = (-self.tokens).max(0.0) / self.rate.per_second;
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
        let mut limited = RateLimitLayer::new(10.0, 3).layer(answer);
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
        let limited = RateLimitLayer::new(10.0, 1).layer(answer);
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
