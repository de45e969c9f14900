//! Holds requests to the API server back, for those who ask for it with `--kube-api-qps`.
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Instant, Sleep};
use tower::{Layer, Service};

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
        RateLimit { inner, bucket, waiting: None }
    }
}

/// Not ready while its bucket is empty.
#[derive(Debug)]
pub(crate) struct RateLimit<S> {
    inner: S,
    bucket: Bucket,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<R, S: Service<R>> Service<R> for RateLimit<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        while let Some(wait) = self.bucket.wait() {
            let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(wait)));
            ready!(waiting.as_mut().poll(cx));
            self.waiting = None;
        }
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> S::Future {
        self.bucket.tokens -= 1.0;
        self.inner.call(request)
    }
}

#[derive(Debug)]
struct Bucket {
    rate: RateLimitLayer,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// How long until there is a token, if there is none.
    fn wait(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let earned = now.duration_since(self.at).as_secs_f64() * self.rate.per_second;
        self.tokens = (self.tokens + earned).min(self.rate.burst);
        self.at = now;
        // A millisecond, because timers are no finer and rounding must not make this spin.
        let missing = (1.0 - self.tokens).max(0.0) / self.rate.per_second;
        (self.tokens < 1.0).then(|| Duration::from_secs_f64(missing.min(3600.0)) + Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tower::ServiceExt;

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
}
