//! The benchmark's own watch of the AddressableServices, which shows when the measured program writes their statuses.

use std::time::Instant;

use futures::{AsyncBufReadExt, StreamExt};
use http::Request;
use kube::Client;
use reknit_samples::AddressableService;
use serde::Deserialize;
use tokio::{sync::mpsc, task::AbortHandle};

use crate::Result;

/// One event of the watch.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// True if the object is Ready. `None` if it has no Ready condition.
    pub(crate) ready: Option<bool>,
    pub(crate) received_at: Instant,
}

/// The events since the watch was opened.
pub(crate) struct Watch {
    events: mpsc::UnboundedReceiver<Event>,
    task: AbortHandle,
}

#[derive(Deserialize)]
struct WatchLine {
    object: AddressableService,
}

impl Watch {
    /// Watches from this resourceVersion, and resumes when the server ends the watch, as it does shortly after a
    /// CustomResourceDefinition is created.
    pub(crate) fn start(client: &Client, version: String) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let (client, mut version) = (client.clone(), version);
        let resuming = async move { while follow(&client, &mut version, &sender).await.is_ok() {} };
        Self { events, task: tokio::spawn(resuming).abort_handle() }
    }

    pub(crate) async fn next(&mut self) -> Result<Event> {
        Ok(self.events.recv().await.ok_or("the benchmark's own watch ended")?)
    }

    /// Drops the events that were not read yet, and returns their number.
    pub(crate) fn drain(&mut self) -> usize {
        std::iter::from_fn(|| self.events.try_recv().ok()).count()
    }
}

/// Follows the watch until the server ends it. An error means that the watch cannot be resumed.
async fn follow(client: &Client, version: &mut String, sender: &mpsc::UnboundedSender<Event>) -> Result<()> {
    let path = format!(
        "/apis/samples.knative.dev/v1alpha1/addressableservices?watch=true&resourceVersion={version}"
    );
    let mut lines = client.request_stream(Request::get(path).body(Vec::new())?).await?.lines();
    while let Some(Ok(line)) = lines.next().await {
        let received_at = Instant::now();
        let WatchLine { object } = serde_json::from_str(&line)?;
        version.clone_from(object.metadata.resource_version.as_ref().ok_or("an event without a version")?);
        sender.send(event(object, received_at))?;
    }
    Ok(())
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn event(object: AddressableService, received_at: Instant) -> Event {
    let ready = object.status.as_ref().and_then(|status| status.duck.condition("Ready"));
    Event {
        ready: ready.map(|condition| condition.status == "True"),
        namespace: object.metadata.namespace.unwrap_or_default(),
        name: object.metadata.name.unwrap_or_default(),
        received_at,
    }
}
