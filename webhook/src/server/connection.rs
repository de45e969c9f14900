//! The activity of one connection: its phase, and the time that its client may take in it.

use std::{sync::Arc, time::Duration};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};

use super::{budget::HeldBytes, limits::Limits};

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The TLS handshake, and the head of the first request.
    Opening,
    /// The body of a request.
    Receiving,
    /// The webhook works on the answer.
    Answering,
    /// The client reads the answer.
    Sending,
    /// The wait for the next request.
    Idle,
}

/// The phase of a connection and its beginning. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Activity {
    state: watch::Sender<(Phase, Instant)>,
    /// Notified when the connection begins to wait for its client.
    waits: Arc<Notify>,
}

impl Activity {
    pub(crate) fn new(waits: &Arc<Notify>) -> Self {
        Self { state: watch::Sender::new((Phase::Opening, Instant::now())), waits: waits.clone() }
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.state.send_replace((phase, Instant::now()));
        self.waits.notify_one();
    }

    /// The time at which the connection began to wait for its client. None while the client waits for an answer.
    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        let (phase, since) = *self.state.borrow();
        (phase != Phase::Answering).then_some(since)
    }

    /// Returns once the head of the first request has come.
    pub(crate) async fn opened(&self) {
        let _ = self.state.subscribe().wait_for(|(phase, _)| *phase != Phase::Opening).await;
    }

    /// Returns once the client has taken longer than its phase allows. The body of a request and the answer have limits of
    /// their own.
    pub(crate) async fn overdue(&self, limits: &Limits) {
        let mut state = self.state.subscribe();
        loop {
            let limit = match state.borrow_and_update().0 {
                Phase::Opening | Phase::Sending => limits.receive,
                Phase::Idle => limits.idle,
                Phase::Receiving | Phase::Answering => Duration::MAX,
            };
            if timeout(limit, state.changed()).await.is_err() {
                return;
            }
        }
    }

    /// Marks the connection as sending, and as idle once the response is sent. The response holds the bytes of its request until
    /// then.
    pub(crate) fn sending(&self, mut response: Response) -> Response {
        self.enter(Phase::Sending);
        let held = response.extensions_mut().remove::<Arc<HeldBytes>>();
        let sending = Arc::new(Sending { activity: self.clone(), _held: held });
        let data = move |data| Bytes::from_owner(Sent { data, _sending: sending.clone() });
        response.map(|body| Body::new(body.map_frame(move |frame| frame.map_data(&data))))
    }
}

/// An answer that is being sent.
struct Sending {
    activity: Activity,
    _held: Option<Arc<HeldBytes>>,
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.activity.state.send_if_modified(|(phase, since)| {
            let is_sent = *phase == Phase::Sending;
            if is_sent {
                (*phase, *since) = (Phase::Idle, Instant::now());
            }
            is_sent
        });
    }
}

/// A part of an answer, dropped once it is written to the connection.
struct Sent {
    data: Bytes,
    _sending: Arc<Sending>,
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}
