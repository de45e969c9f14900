//! A client-side rate limit for requests to the API server, enabled by `--kube-api-qps`.
use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use tower::{Service, ServiceExt, service_fn};

/// Limits the requests of all clones of a service by one token bucket, as client-go does.
///
/// A request takes its token when the service is called, and is sent once the token is available. A request that is not
/// polled does not delay others.
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
        let (service, token) = (service.clone(), Token::take(&bucket));
        async move {
            token.wait().await;
            service.oneshot(request).await
        }
    })
}

#[derive(Debug)]
struct Bucket {
    per_second: f64,
    burst: f64,
    /// Negative while requests wait for tokens.
    tokens: f64,
    updated: Instant,
}

impl Bucket {
    fn full(per_second: f64, burst: f64) -> Self {
        Self { per_second, burst, tokens: burst, updated: Instant::now() }
    }

    /// Takes a token, and returns the time until it is available.
    fn take(&mut self) -> Duration {
        let now = Instant::now();
        let refilled = now.duration_since(self.updated).as_secs_f64() * self.per_second;
        self.tokens = (self.tokens + refilled).min(self.burst) - 1.0;
        self.updated = now;
        let missing = (-self.tokens).max(0.0) / self.per_second;
        Duration::try_from_secs_f64(missing).unwrap_or(Duration::MAX)
    }
}

/// A token of the bucket, returned if the request is dropped before it is sent.
struct Token {
    bucket: Arc<Mutex<Bucket>>,
    delay: Duration,
    is_used: bool,
}

impl Token {
    fn take(bucket: &Arc<Mutex<Bucket>>) -> Self {
        Self { bucket: bucket.clone(), delay: bucket.lock().take(), is_used: false }
    }

    async fn wait(mut self) {
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
        self.is_used = true;
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if !self.is_used {
            self.bucket.lock().tokens += 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn after_the_burst_requests_go_at_the_rate() {
        let service = tower::service_fn(|()| async { Ok::<_, std::convert::Infallible>(Instant::now()) });
        let mut limited = rate_limited(service, 10.0, 3);
        let start = Instant::now();
        let mut send_times = Vec::new();
        for _ in 0..23 {
            send_times.push(limited.ready().await.unwrap().call(()).await.unwrap().duration_since(start));
        }
        assert_eq!(send_times[2], Duration::ZERO);
        assert!(send_times[3] >= Duration::from_millis(100), "{:?}", send_times[3]);
        assert!(send_times[22] >= Duration::from_secs(2), "{:?}", send_times[22]);
        assert!(send_times[22] < Duration::from_millis(2100), "{:?}", send_times[22]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_not_polled_delays_no_other_and_a_dropped_one_returns_its_token() {
        let service = tower::service_fn(|()| async { Ok::<_, std::convert::Infallible>(Instant::now()) });
        let limited = rate_limited(service, 10.0, 1);
        let start = Instant::now();
        let sent = || limited.clone().oneshot(());
        sent().await.unwrap();
        let mut unpolled = Box::pin(sent());
        assert!(futures::poll!(&mut unpolled).is_pending());
        assert_eq!(sent().await.unwrap().duration_since(start).as_millis(), 200, "the third token");
        drop(unpolled);
        assert_eq!(sent().await.unwrap().duration_since(start).as_millis(), 200, "the returned token");
    }
}
