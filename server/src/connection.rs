//! The activity of one connection: its current phase, and the time that the client may take for it.

use std::{any::Any, fmt, net::IpAddr, sync::Arc, time::Duration};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};

use crate::Limits;

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The TLS handshake, and the head of the first request.
    Opening,
    /// The body of a request. A router that reads bodies enters this phase, and limits its time.
    Receiving,
    /// The router computes the answer.
    Answering,
    /// The client reads the answer.
    Sending,
    /// The wait for the next request.
    Idle,
}

#[derive(Clone, Copy, Debug)]
struct State {
    phase: Phase,
    since: Instant,
    /// The number of requests whose answers have not been sent. HTTP/2 has several at once.
    open: usize,
}

/// The phase of a connection and the start time of the phase. Clones share it.
#[derive(Clone, Debug)]
pub struct Activity {
    client: IpAddr,
    state: watch::Sender<State>,
    /// Notified when another phase is entered.
    phase_changed: Arc<Notify>,
}

impl Activity {
    pub(crate) fn new(client: IpAddr, phase_changed: &Arc<Notify>) -> Self {
        let state = State { phase: Phase::Opening, since: Instant::now(), open: 0 };
        Self { client, state: watch::Sender::new(state), phase_changed: phase_changed.clone() }
    }

    /// The address of the client.
    pub const fn client(&self) -> IpAddr {
        self.client
    }

    /// Enters another phase, from now on.
    pub fn enter(&self, phase: Phase) {
        self.state.send_modify(|state| (state.phase, state.since) = (phase, Instant::now()));
        self.phase_changed.notify_one();
    }

    /// Returns the time since which the connection has waited for its client. `None` while the client waits for the
    /// answer.
    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        let State { phase, since, .. } = *self.state.borrow();
        (phase != Phase::Answering).then_some(since)
    }

    /// Waits for the head of the first request.
    pub(crate) async fn wait_until_opened(&self) {
        let _ = self.state.subscribe().wait_for(|state| state.phase != Phase::Opening).await;
    }

    /// Waits until the client has taken longer than the limit of the phase. The limits for the body of a request and
    /// for the answer are enforced elsewhere.
    pub(crate) async fn wait_until_overdue(&self, limits: &Limits) {
        let mut state = self.state.subscribe();
        loop {
            let limit = match state.borrow_and_update().phase {
                Phase::Opening | Phase::Sending => limits.receive_timeout,
                Phase::Idle => limits.idle_timeout,
                Phase::Receiving | Phase::Answering => Duration::MAX,
            };
            if timeout(limit, state.changed()).await.is_err() {
                return;
            }
        }
    }

    /// Enters [`Phase::Answering`] for a request, which is open until the result is dropped.
    pub(crate) fn open_request(&self) -> OpenRequest {
        self.state.send_modify(|state| state.open += 1);
        self.enter(Phase::Answering);
        OpenRequest { activity: self.clone() }
    }
}

/// A request whose answer has not been sent. Once the last one of a connection is dropped, the connection is idle.
pub(crate) struct OpenRequest {
    activity: Activity,
}

impl OpenRequest {
    /// Keeps the request open until the response is sent, and also what the response holds.
    pub(crate) fn until_sent(self, mut response: Response) -> Response {
        let held = response.extensions_mut().remove::<HeldByResponse>();
        let guard = Arc::new((self, held));
        let into_chunk = move |data| Bytes::from_owner(Chunk { data, _guard: guard.clone() });
        response.map(|body| Body::new(body.map_frame(move |frame| frame.map_data(&into_chunk))))
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.activity.state.send_modify(|state| {
            state.open -= 1;
            if state.open == 0 {
                (state.phase, state.since) = (Phase::Idle, Instant::now());
            }
        });
        self.activity.phase_changed.notify_one();
    }
}

/// A response extension: a value that is dropped once the response has been sent, such as a permit.
#[derive(Clone)]
pub struct HeldByResponse {
    _value: Arc<dyn Any + Send + Sync>,
}

impl HeldByResponse {
    /// Creates the extension.
    pub fn new(value: impl Any + Send + Sync) -> Self {
        Self { _value: Arc::new(value) }
    }
}

impl fmt::Debug for HeldByResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldByResponse").finish_non_exhaustive()
    }
}

/// A chunk of an answer, dropped once it is written to the connection.
struct Chunk {
    data: Bytes,
    _guard: Arc<(OpenRequest, Option<HeldByResponse>)>,
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}
