//! A reverse proxy in front of the API server that records requests and watch lines, holds or delays them, and breaks
//! connections.
//!
//! The proxy serves plain HTTP, so that a kubeconfig needs only its address. It connects to the API server by TLS. It
//! forwards the credentials of its client, and adds those of a kubeconfig, which reknit does not send without TLS.

pub(crate) mod gate;
mod relay;
pub(crate) mod request;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kube::{Client, Config};
use reknit::testing::eventually;
use serde_json::Value;
use tokio::net::TcpListener;

pub(crate) use self::relay::Exchange;
use self::{
    gate::Gate,
    relay::{Relay, accept},
    request::{Request, WatchLine},
};
use super::{
    link::{Condition, Link},
    wait::TIMEOUT,
};

/// A running proxy. It stops when it is dropped.
pub(crate) struct Proxy {
    relay: Arc<Relay>,
    /// The connections of clients.
    link: Link,
    accept_task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy in front of the server of `config`.
    pub(crate) async fn start(config: &Config) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let link = Link::start(&listener.local_addr().expect("an address").to_string()).await;
        let relay = Arc::new(Relay::new(config));
        let accept_task = tokio::spawn(accept(relay.clone(), listener));
        Self { relay, link, accept_task }
    }

    /// The address, `http://127.0.0.1:PORT`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.link.address)
    }

    /// Writes a kubeconfig that connects through the proxy with the token of `original`, and returns its path.
    pub(crate) fn kubeconfig(&self, original: &Path) -> PathBuf {
        let text = std::fs::read_to_string(original).expect("the kubeconfig");
        let kubeconfig: Value = serde_json::from_str(&text).expect("a kubeconfig in JSON");
        let token = kubeconfig["users"][0]["user"]["token"].as_str().expect("a token");
        *self.relay.token.lock() = Some(token.to_owned());
        self.link.kubeconfig("http", original)
    }

    /// Returns `config` with the address of the proxy in place of the API server's.
    pub(crate) fn config(&self, config: &Config) -> Config {
        let mut config = config.clone();
        config.cluster_url = self.url().parse().expect("a URL");
        config.root_cert = None;
        config
    }

    /// A client that connects through the proxy.
    pub(crate) fn client(&self, config: &Config) -> Client {
        Client::try_from(self.config(config)).expect("a client")
    }

    /// Holds the responses to matching requests at the returned gate: the API server has processed the request, and the
    /// client still waits.
    pub(crate) fn hold_responses(&self, matching: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Gate {
        let gate = Gate::default();
        self.relay.response_gates.lock().push((Arc::new(matching), gate.clone()));
        gate
    }

    /// Holds each matching watch line at the returned gate, and with it all later lines of that watch.
    pub(crate) fn hold_lines(&self, matching: impl Fn(&WatchLine) -> bool + Send + Sync + 'static) -> Gate {
        let gate = Gate::default();
        self.relay.line_gates.lock().push((Arc::new(matching), gate.clone()));
        gate
    }

    /// Delays each line of those watches of `resource` that begin after this call.
    pub(crate) fn delay_lines(&self, resource: &str, delay: Duration) {
        self.relay.line_delays.lock().insert(resource.to_owned(), delay);
    }

    /// Breaks the connections of all watches, and ends the next watch of `resource` with 410, as if the API server no
    /// longer had the resourceVersion.
    pub(crate) fn expire_watches(&self, resource: &str) {
        self.relay.expired.lock().push(resource.to_owned());
        self.cut_watches();
    }

    /// Sends the watches of `resource` an event that does not come from the API server.
    pub(crate) fn inject_event(&self, resource: &str, event: &str, object: &Value) {
        let line = format!("{}\n", serde_json::json!({ "type": event, "object": object }));
        let injected = self.relay.injected.lock();
        let watches = injected.iter().filter(|(watched, _)| watched == resource);
        let sent = watches.filter(|(_, lines)| lines.unbounded_send(line.clone().into()).is_ok()).count();
        assert!(sent > 0, "there is no watch of {resource}");
    }

    /// Breaks the connections of all watches.
    pub(crate) fn cut_watches(&self) {
        self.relay.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Breaks or restores the connections of the clients.
    pub(crate) fn set_link(&self, condition: Condition) {
        self.link.set(condition);
    }

    /// The requests that the API server has answered so far, in order. Includes requests whose response is held, and
    /// watches that have begun.
    pub(crate) fn exchanges(&self) -> Vec<Exchange> {
        self.relay.exchanges.lock().clone()
    }

    /// The number of matching requests that the API server has answered.
    pub(crate) fn count_requests(&self, matching: impl Fn(&Request) -> bool) -> usize {
        self.relay.exchanges.lock().iter().filter(|exchange| matching(&exchange.request)).count()
    }

    /// The watch lines that were sent to clients so far, in order.
    pub(crate) fn delivered_lines(&self) -> Vec<WatchLine> {
        self.relay.delivered.lock().clone()
    }

    /// Waits until a matching watch line was sent to a client.
    pub(crate) async fn wait_for_line(&self, what: &str, matching: impl Fn(&WatchLine) -> bool) -> WatchLine {
        eventually(what, TIMEOUT, async || {
            self.relay.delivered.lock().iter().find(|line| matching(line)).cloned()
        })
        .await
    }

    /// Waits until the API server has answered a matching request, even if the response is held.
    pub(crate) async fn wait_for_request(&self, what: &str, matching: impl Fn(&Request) -> bool) -> Exchange {
        eventually(what, TIMEOUT, async || {
            self.relay.exchanges.lock().iter().find(|exchange| matching(&exchange.request)).cloned()
        })
        .await
    }

    /// Clears the recorded requests and lines, so that counting starts again.
    pub(crate) fn clear_records(&self) {
        self.relay.exchanges.lock().clear();
        self.relay.delivered.lock().clear();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accept_task.abort();
    }
}
