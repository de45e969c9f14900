//! The term of leadership in which a pass may begin requests.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::future::poll_fn;
use http_body::{Frame, SizeHint};
use kube::client::Body;
use tokio::time::Instant;
use tower::BoxError;

tokio::task_local! {
    static TERM: Term;
}

/// The term of leadership in which a pass runs. Every request that the task of the pass makes belongs to it, whichever
/// client it goes through: a client polls the future of its layers in the task that awaits the response.
#[derive(Clone, derive_more::Debug)]
#[debug("Term {{ has_ended: {} }}", self.has_ended())]
pub struct Term {
    began: Instant,
    has_ended: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// The error of a request whose pass has lost its leadership.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "this replica no longer leads the key: the request was not sent, or its response is not awaited; the pass is dropped, \
     and the next leader of the key reconciles it"
)]
pub struct TermEnded;

impl Term {
    /// Creates a term that ends once `has_ended` returns true. The function compares the clock, since the timer of the
    /// end may fire late.
    pub fn new(began: Instant, has_ended: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { began, has_ended: Arc::new(has_ended) }
    }

    fn has_ended(&self) -> bool {
        (self.has_ended)()
    }

    /// Runs a pass in this term.
    pub fn scope<F: Future>(self, pass: F) -> impl Future<Output = F::Output> + use<F> {
        TERM.scope(self, pass)
    }
}

/// Returns true in a pass whose term has ended.
pub fn has_term_ended() -> bool {
    TERM.try_with(Term::has_ended).unwrap_or(false)
}

/// Returns the time at which the term of the current pass began. `None` without leader election.
pub fn term_began() -> Option<Instant> {
    TERM.try_with(|term| term.began).ok()
}

/// Polls a request only while the term of the pass that makes it lasts. This is the last layer before the connection, in the
/// transport of `reknit_sharedmain`: a request begins in a poll, so none begins after the term.
///
/// # Errors
///
/// Returns [`TermEnded`] once the term has ended, or the error of the request.
pub async fn within_term<T>(
    request: impl Future<Output = Result<T, impl Into<BoxError>>>,
) -> Result<T, BoxError> {
    let mut request = pin!(request);
    poll_fn(|cx| match has_term_ended() {
        true => Poll::Ready(Err(TermEnded.into())),
        false => request.as_mut().poll(cx).map_err(Into::into),
    })
    .await
}

/// The body of a request, which fails if the term has ended of the pass that made the request. The task of a connection
/// reads it when it writes the request, and writes none whose body fails.
#[derive(Debug)]
pub struct TermBody {
    body: Body,
    term: Option<Term>,
}

impl TermBody {
    /// Wraps the body of a request of the current pass, if any.
    pub fn new(body: Body) -> Self {
        Self { body, term: TERM.try_with(Term::clone).ok() }
    }
}

impl http_body::Body for TermBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.term.as_ref().is_some_and(Term::has_ended) {
            return Poll::Ready(Some(Err(TermEnded.into())));
        }
        Pin::new(&mut self.body).poll_frame(cx).map_err(Into::into)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn a_body_that_is_written_after_the_term_of_its_pass_fails() {
        let ended = Arc::new(AtomicBool::new(false));
        let has_ended = ended.clone();
        let term = Term::new(Instant::now(), move || has_ended.load(Ordering::SeqCst));
        let body = || async { TermBody::new(Body::from(b"{}".to_vec())) };
        let (in_time, late) = (term.clone().scope(body()).await, term.scope(body()).await);
        assert_eq!(in_time.collect().await.unwrap().to_bytes(), "{}");
        ended.store(true, Ordering::SeqCst);
        let error = late.collect().await.unwrap_err();
        assert!(error.is::<TermEnded>(), "{error}");
    }
}
