//! A connection, driven in place.
use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

use futures::future::{BoxFuture, poll_fn};
use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::{
        TrySendError,
        http1::{SendRequest, handshake},
    },
    rt::{Read, Write},
};
use kube::client::Body;
use tokio::task::unconstrained;

/// One connection in HTTP/1.1, which moves only while somebody waits for it.
///
/// hyper's own client gives each to a task, which requests are handed over to and answers from, and waits for the end of
/// an answer in another task. Here whoever waits drives it: no other task is woken.
pub(super) struct Connection {
    requests: SendRequest<Body>,
    /// None when it has ended.
    driven: Option<BoxFuture<'static, hyper::Result<()>>>,
}

impl Connection {
    pub(super) async fn on<S>(stream: S) -> hyper::Result<Self>
    where
        S: Read + Write + Send + Unpin + 'static,
    {
        let (requests, driven) = handshake(stream).await?;
        Ok(Self { requests, driven: Some(Box::pin(driven.with_upgrades())) })
    }

    /// Hands the request over at once, and not when it is polled first, so that the future has no room for it. What comes is
    /// the head of the answer, and a body that arrives as the connection is driven.
    ///
    /// # Errors
    ///
    /// With the request where nothing of it was sent: the other end had closed the connection.
    pub(super) fn send(
        &mut self,
        request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Body>>>> {
        let mut answer = Box::pin(unconstrained(self.requests.try_send_request(request)));
        poll_fn(move |cx| self.drive(cx, answer.as_mut()))
    }

    /// Polls what comes by this connection, and by nothing else: it must not even be held back by tokio's budget for a task.
    ///
    /// The waker is left only with the connection, and only where there is something to wait for. Taking what is there
    /// wakes whoever waits for room to put more, and that is who takes it: he would be polled once more for nothing, and
    /// mostly by another thread.
    pub(super) fn drive<F: Future>(
        &mut self,
        cx: &mut Context<'_>,
        mut awaited: Pin<&mut F>,
    ) -> Poll<F::Output> {
        let nobody = &mut Context::from_waker(Waker::noop());
        self.go_on(nobody);
        if let there @ Poll::Ready(_) = awaited.as_mut().poll(nobody) {
            return there;
        }
        self.go_on(cx);
        awaited.poll(nobody)
    }

    /// Whether it takes another request, once an answer is there to its end.
    pub(super) fn is_reusable(&mut self) -> bool {
        self.go_on(&mut Context::from_waker(Waker::noop()));
        self.driven.is_some() && self.requests.is_ready()
    }

    /// What it fails with is told to what is awaited.
    fn go_on(&mut self, cx: &mut Context<'_>) {
        if self.driven.as_mut().is_some_and(|driven| driven.as_mut().poll(cx).is_ready()) {
            self.driven = None;
        }
    }
}
