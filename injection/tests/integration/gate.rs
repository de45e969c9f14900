//! A client whose watches can be held back and cut.

use std::{io, sync::Arc};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use kube::{Client, client::Body};
use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Open,
    /// Holds back the events of watches.
    Held,
    /// Breaks watches, and refuses lists and watches.
    Cut,
}

/// A gate between a client and its server. It stops watches and lists; writes and reads of one object always pass.
#[derive(Clone)]
pub(crate) struct Gate(Arc<watch::Sender<State>>);

impl Gate {
    /// Returns a client that sends its requests through the gate to this client. The gate is open.
    pub(crate) fn before(client: Client) -> (Client, Self) {
        let gate = Self(Arc::new(watch::Sender::new(State::Open)));
        let (service_gate, namespace) = (gate.clone(), client.default_namespace().to_owned());
        let service = tower::service_fn(move |request| service_gate.clone().pass(client.clone(), request));
        (Client::new(service, namespace), gate)
    }

    pub(crate) fn open(&self) {
        self.0.send_replace(State::Open);
    }

    /// Holds back the events of watches until the gate is opened.
    pub(crate) fn hold(&self) {
        self.0.send_replace(State::Held);
    }

    /// Breaks watches, and refuses lists and watches until the gate is opened.
    pub(crate) fn cut(&self) {
        self.0.send_replace(State::Cut);
    }

    async fn pass(
        self,
        client: Client,
        request: Request<Body>,
    ) -> Result<Response<UnsyncBoxBody<Bytes, kube::Error>>, io::Error> {
        let query = request.uri().query().unwrap_or_default();
        let (is_watch, is_list) = (query.contains("watch=true"), query.contains("limit="));
        let is_gated = *request.method() == Method::GET && (is_watch || is_list);
        if is_gated && *self.0.borrow() == State::Cut {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (head, body) = client.send(request).await.map_err(io::Error::other)?.into_parts();
        let body = if is_watch { self.gate_body(body) } else { body.boxed_unsync() };
        Ok(Response::from_parts(head, body))
    }

    fn gate_body(self, body: Body) -> UnsyncBoxBody<Bytes, kube::Error> {
        let state = self.0.subscribe();
        let frames = futures::stream::unfold((body, state), |(mut body, mut state)| async {
            let frame = next_frame(&mut body, &mut state).await?;
            Some((frame, (body, state)))
        });
        StreamBody::new(frames).boxed_unsync()
    }
}

/// Returns the next frame of a watch, or an error if the gate is cut. Waits while the gate is held.
async fn next_frame(
    body: &mut Body,
    state: &mut watch::Receiver<State>,
) -> Option<Result<Frame<Bytes>, kube::Error>> {
    loop {
        let current = *state.borrow_and_update();
        let frame = async {
            if current == State::Held {
                std::future::pending::<()>().await;
            }
            body.frame().await
        };
        tokio::select! {
            biased;
            changed = state.changed() => changed.ok()?,
            _ = std::future::ready(()), if current == State::Cut => {
                return Some(Err(kube::Error::ReadEvents(io::ErrorKind::ConnectionReset.into())));
            }
            frame = frame => return frame,
        }
    }
}
