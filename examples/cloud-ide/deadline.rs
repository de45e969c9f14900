//! A tower layer for the deadline of a call, which the client sets as `grpc-timeout`.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderMap, Request, Response};
use tonic::Status;
use tower::Service;

/// Ends calls at their deadline with DEADLINE_EXCEEDED.
///
/// Tonic applies `grpc-timeout` too, but with the status CANCELLED. This layer is outside, so its timer fires first.
#[derive(Clone)]
pub(crate) struct Deadline<S>(S);

impl<S> Deadline<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self(inner)
    }
}

impl<S, A, B> Service<Request<A>> for Deadline<S>
where
    S: Service<Request<A>, Response = Response<B>, Future: Send + 'static>,
    B: Default,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let Some(timeout) = grpc_timeout(request.headers()) else { return Box::pin(self.0.call(request)) };
        let call = tokio::time::timeout(timeout, self.0.call(request));
        let exceeded = || Status::deadline_exceeded("the deadline of the call has passed").into_http();
        Box::pin(async move { call.await.unwrap_or_else(|_| Ok(exceeded())) })
    }
}

/// Parses a timeout such as `1S` or `500m`: up to eight digits and a unit from hours to nanoseconds.
fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let count = Some(digits).filter(|digits| digits.len() <= 8)?.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_has_at_most_eight_digits_and_a_unit() {
        let parse = |text: &str| {
            grpc_timeout(
                &[(http::HeaderName::from_static("grpc-timeout"), text.parse().unwrap())]
                    .into_iter()
                    .collect(),
            )
        };
        assert_eq!(parse("2S"), Some(Duration::from_secs(2)));
        assert_eq!(parse("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for text in ["", "S", "2", "123456789S", "-1S", "1x"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
