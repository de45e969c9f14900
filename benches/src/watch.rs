//! Sees what becomes of AddressableServices, the same for every candidate.

use std::time::Instant;

use futures::{AsyncBufReadExt, StreamExt};
use http::Request;
use kube::Client;
use serde::Deserialize;
use tokio::{sync::mpsc, task::AbortHandle};

use crate::Result;

/// What one event said.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Whether it is Ready; none where its status does not say.
    pub(crate) ready: Option<bool>,
    pub(crate) at: Instant,
}

/// What is seen from the moment it was opened.
pub(crate) struct Watch {
    events: mpsc::UnboundedReceiver<Seen>,
    task: AbortHandle,
}

#[derive(Deserialize)]
struct Line {
    object: Object,
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
    status: Option<Status>,
}

#[derive(Deserialize)]
struct Metadata {
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Deserialize)]
struct Condition {
    r#type: String,
    status: String,
}

impl Watch {
    pub(crate) async fn from(client: &Client, version: &str) -> Result<Self> {
        let path = format!(
            "/apis/samples.knative.dev/v1alpha1/addressableservices?watch=true&resourceVersion={version}"
        );
        let mut lines = client.request_stream(Request::get(path).body(Vec::new())?).await?.lines();
        let (tell, events) = mpsc::unbounded_channel();
        let follow = async move {
            while let Some(Ok(line)) = lines.next().await {
                let at = Instant::now();
                // What is no event of an object is an error, after which nothing comes.
                let Ok(line) = serde_json::from_str::<Line>(&line) else { return };
                let _ = tell.send(line.object.seen(at));
            }
        };
        Ok(Self { events, task: tokio::spawn(follow).abort_handle() })
    }

    pub(crate) async fn next(&mut self) -> Result<Seen> {
        Ok(self.events.recv().await.ok_or("the watch of the measuring program ended")?)
    }

    /// How many events have come that nobody asked for.
    pub(crate) fn drain(&mut self) -> usize {
        std::iter::from_fn(|| self.events.try_recv().ok()).count()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Object {
    fn seen(self, at: Instant) -> Seen {
        let conditions = self.status.map(|status| status.conditions).unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition.r#type == "Ready");
        Seen {
            ready: ready.map(|condition| condition.status == "True"),
            namespace: self.metadata.namespace,
            name: self.metadata.name,
            at,
        }
    }
}
