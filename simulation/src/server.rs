//! The API server of a simulation, with the time of the driver.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header::CONTENT_TYPE};
use reknit_apiserver::{ApiServer, Reply};
use serde_json::{Value, json};

use crate::{discovery, time::Time};

pub(crate) struct Server {
    api: ApiServer,
    /// The time in milliseconds, which the server gives to objects.
    now: Arc<AtomicU64>,
}

/// The answer to a request.
pub(crate) enum Answer {
    Response(Response<Bytes>),
    Watch(Response<()>, Box<Watch>),
}

/// An open watch, with the events that are due and not taken yet.
pub(crate) struct Watch {
    watch: reknit_apiserver::Watch,
    due: Vec<u8>,
    has_expired: bool,
}

impl Server {
    pub(crate) fn new() -> Self {
        let now = Arc::new(AtomicU64::new(0));
        let time = now.clone();
        let clock =
            move || Time::after_start(Duration::from_millis(time.load(Ordering::Relaxed))).timestamp();
        Self { api: ApiServer::new().with_clock(clock), now }
    }

    pub(crate) fn api(&self) -> &ApiServer {
        &self.api
    }

    pub(crate) fn set_now(&self, now: Time) {
        let millis = u64::try_from(now.since_start().as_millis()).unwrap_or(u64::MAX);
        self.now.store(millis, Ordering::Relaxed);
    }

    pub(crate) fn handle(&self, request: &Request<Bytes>) -> Answer {
        if let Some(response) = discovery::answer(request, &self.api.objects()) {
            return Answer::Response(response);
        }
        match self.api.handle(request) {
            Reply::Response(response) => Answer::Response(response),
            Reply::Watch(watch) => {
                let mut head = Response::new(());
                head.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                Answer::Watch(head, Box::new(Watch { watch, due: Vec::new(), has_expired: false }))
            }
        }
    }

    /// Sends a request of a test or a stub. The error is the message of the API server.
    pub(crate) fn send(&self, request: Request<Vec<u8>>) -> Result<Bytes, String> {
        match self.handle(&request.map(Bytes::from)) {
            Answer::Response(response) if response.status().is_success() => Ok(response.into_body()),
            Answer::Response(response) => {
                let status: Value = serde_json::from_slice(response.body()).unwrap_or_default();
                Err(status["message"].as_str().unwrap_or("refused").to_owned())
            }
            Answer::Watch(..) => Err("a watch".into()),
        }
    }
}

impl Watch {
    /// Returns true if events are due, or the watch has ended.
    pub(crate) fn has_events(&mut self) -> bool {
        if !self.has_expired {
            let events = self.watch.take_events();
            self.due.extend(events.iter().flat_map(|event| event.to_string().into_bytes()));
        }
        !self.due.is_empty() || self.has_ended()
    }

    /// Takes the lines of the events that are due. The second value is true if the watch has ended.
    pub(crate) fn take_events(&mut self) -> (Bytes, bool) {
        (std::mem::take(&mut self.due).into(), self.has_ended())
    }

    /// Ends the watch with this `Status` instead of the events that are due.
    pub(crate) fn expire(&mut self, status: &Value) {
        self.due = format!("{}\n", json!({"type": "ERROR", "object": status})).into();
        self.has_expired = true;
    }

    fn has_ended(&self) -> bool {
        self.has_expired || self.watch.has_ended()
    }

    /// The time after which the client wants the watch to end.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.watch.timeout()
    }
}
