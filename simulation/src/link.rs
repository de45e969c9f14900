//! The connection of one replica: the service of its requests, which the driver of the simulation answers.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body::Frame;
use http_body_util::BodyExt;
use kube::client::{Body, DynBody};
use parking_lot::Mutex;
use reknit_injection::internal::HttpResponse;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tower::{BoxError, Service};

use crate::observer::{self, PassId};

/// The requests that a replica sends, and the signal that it has nothing left to do at this instant.
#[derive(Clone, Default)]
pub(crate) struct Link(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    outbox: Vec<Outgoing>,
    deadline: Option<Instant>,
    is_idle: bool,
    waker: Option<Waker>,
}

/// A request that has left a replica.
pub(crate) struct Outgoing {
    pub(crate) head: Parts,
    pub(crate) body: Bytes,
    /// The pass that sends it.
    pub(crate) pass: Option<PassId>,
    pub(crate) at: Instant,
    pub(crate) reply: Reply,
}

/// The sender of the response.
pub(crate) type Reply = oneshot::Sender<Result<HttpResponse, BoxError>>;

impl Link {
    pub(crate) fn take_outbox(&self) -> Vec<Outgoing> {
        std::mem::take(&mut self.0.lock().outbox)
    }

    /// Called when no task of the replica can run: stops the step if the replica has sent a request, or has reached the
    /// deadline of the step.
    pub(crate) fn park(&self) {
        let mut state = self.0.lock();
        let is_due = state.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if is_due || !state.outbox.is_empty() {
            state.is_idle = true;
            if let Some(waker) = state.waker.take() {
                waker.wake();
            }
        }
    }

    /// Resolves once the replica is [idle](Self::park) after it has sent a request, or at the deadline.
    pub(crate) async fn idle(&self, deadline: Instant) {
        {
            let mut state = self.0.lock();
            (state.deadline, state.is_idle) = (Some(deadline), false);
        }
        let mut timer = std::pin::pin!(tokio::time::sleep_until(deadline));
        let mut has_fired = false;
        std::future::poll_fn(|cx| {
            let mut state = self.0.lock();
            if state.is_idle {
                return Poll::Ready(());
            }
            state.waker = Some(cx.waker().clone());
            drop(state);
            has_fired = has_fired || timer.as_mut().poll(cx).is_ready();
            Poll::Pending
        })
        .await;
    }
}

impl Service<Request<Body>> for Link {
    type Response = HttpResponse;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<HttpResponse, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (link, pass) = (self.clone(), observer::current_pass());
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let (reply, response) = oneshot::channel();
            link.0.lock().outbox.push(Outgoing { head, body, pass, at: Instant::now(), reply });
            response.await?
        })
    }
}

/// The body of a complete response.
pub(crate) fn full(bytes: Bytes) -> Box<DynBody> {
    Box::new(Body::from(bytes).map_err(BoxError::from))
}

/// The body of a watch, to which the driver sends events.
pub(crate) struct EventBody(mpsc::UnboundedReceiver<Result<Bytes, BoxError>>);

pub(crate) type EventSender = mpsc::UnboundedSender<Result<Bytes, BoxError>>;

impl EventBody {
    pub(crate) fn new() -> (EventSender, Self) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (sender, Self(receiver))
    }

    pub(crate) fn response(self, head: Response<()>) -> HttpResponse {
        head.map(|()| Box::new(self) as Box<DynBody>)
    }
}

impl http_body::Body for EventBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0.poll_recv(cx).map(|event| event.map(|event| event.map(Frame::data)))
    }
}
