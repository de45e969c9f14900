//! One service for many callers.
use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use tower::{Service, service_fn};

/// One service for all clones of this. (tower's `Buffer` is that too, by a task: two switches between tasks a request.)
///
/// Nobody holds it from one poll to the next: a request that is begun and then not polled, as one of several in a
/// stream, must not keep others from theirs. So it is for a service that is ready whenever it is asked, as kube's is;
/// of one that is not, each caller asks again and again.
pub(crate) fn shared<R, S>(
    service: S,
) -> impl Service<R, Response = S::Response, Error = S::Error, Future: Send> + Clone + Send + Sync + 'static
where
    R: Send + 'static,
    S: Service<R, Error: Send, Future: Send> + Send + 'static,
{
    let service = Arc::new(Mutex::new(service));
    service_fn(move |request: R| {
        let (service, mut request) = (service.clone(), Some(request));
        async move { poll_fn(|cx| called(&mut *service.lock(), &mut request, cx)).await?.await }
    })
}

fn called<R, S: Service<R>>(
    service: &mut S,
    request: &mut Option<R>,
    cx: &mut Context<'_>,
) -> Poll<Result<S::Future, S::Error>> {
    let Poll::Ready(ready) = service.poll_ready(cx) else {
        cx.waker().wake_by_ref(); // it remembers one waker, and there may be others
        return Poll::Pending;
    };
    match (ready, request.take()) {
        (Err(error), _) => Poll::Ready(Err(error)),
        (Ok(()), Some(request)) => Poll::Ready(Ok(service.call(request))),
        (Ok(()), None) => Poll::Pending, // called already: this is not polled again
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tower::ServiceExt;

    use super::*;

    /// Ready from the second time on that it is asked, and answers how often it was called.
    #[derive(Default)]
    struct Reluctant {
        asked: u32,
        called: u32,
    }

    impl Service<()> for Reluctant {
        type Response = u32;
        type Error = Infallible;
        type Future = std::future::Ready<Result<u32, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            self.asked += 1;
            if self.asked < 2 { Poll::Pending } else { Poll::Ready(Ok(())) }
        }

        fn call(&mut self, (): ()) -> Self::Future {
            self.called += 1;
            std::future::ready(Ok(self.called))
        }
    }

    #[tokio::test]
    async fn a_request_that_is_begun_and_not_polled_keeps_no_other_from_the_service() {
        let shared = shared(Reluctant::default());
        let mut begun = Box::pin(shared.clone().oneshot(()));
        assert!(futures::poll!(&mut begun).is_pending());
        assert_eq!(shared.clone().oneshot(()).await, Ok(1));
        assert_eq!(begun.await, Ok(2));
        assert_eq!(super::shared(Reluctant::default()).oneshot(()).await, Ok(1), "it is woken to ask again");
    }
}
