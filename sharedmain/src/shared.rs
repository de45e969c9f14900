//! One service for many callers.
use std::{
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use tokio::sync::Mutex;
use tower::{Service, ServiceExt};

/// One service for all clones of this, which take turns in waiting until it is ready, and wait for its answers side by
/// side. (tower's `Buffer` does the same by a task, which is two switches between tasks a request.)
pub(crate) struct Shared<S>(Arc<Mutex<S>>);

impl<S> Shared<S> {
    pub(crate) fn of(service: S) -> Self {
        Self(Arc::new(Mutex::new(service)))
    }
}

impl<S> Clone for Shared<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<R, S> Service<R> for Shared<S>
where
    R: Send + 'static,
    S: Service<R, Future: Send> + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    /// Each call waits for itself.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            let answer = service.lock().await.ready().await?.call(request);
            answer.await
        })
    }
}
