//! A reverse proxy in front of the API server that records requests and watch lines, holds or delays them, and breaks
//! connections.
//!
//! The proxy serves plain HTTP, so that a kubeconfig needs only its address. It connects to the API server by TLS and
//! forwards the credentials of its client.

pub(crate) mod gate;
mod relay;
pub(crate) mod request;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use kube::{Client, Config};
use reknit::testing::eventually;
use serde_json::Value;
use tokio::net::TcpListener;

pub(crate) use self::relay::Exchange;
use self::{
    gate::Gate,
    relay::{Relay, Rule, accept},
    request::{Request, WatchLine},
};
use super::wait::TIMEOUT;

/// A running proxy. It stops when it is dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    relay: Arc<Relay>,
    accept_task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy in front of the server of `config`.
    pub(crate) async fn start(config: &Config) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let relay = Arc::new(Relay::new(config));
        let accept_task = tokio::spawn(accept(relay.clone(), listener));
        Self { address, relay, accept_task }
    }

    /// The address, `http://127.0.0.1:PORT`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
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
        self.relay.rules.lock().push(Rule::HoldResponse(Arc::new(matching), gate.clone()));
        gate
    }

    /// Holds each matching watch line at the returned gate, and with it all later lines of that watch.
    pub(crate) fn hold_lines(&self, matching: impl Fn(&WatchLine) -> bool + Send + Sync + 'static) -> Gate {
        let gate = Gate::default();
        self.relay.rules.lock().push(Rule::HoldLine(Arc::new(matching), gate.clone()));
        gate
    }

    /// Delays each line of those watches of `resource` that begin after this call.
    pub(crate) fn delay_lines(&self, resource: &str, delay: Duration) {
        self.relay.rules.lock().push(Rule::DelayLines(resource.to_owned(), delay));
    }

    /// Breaks the connections of all watches, and ends the next watch of `resource` with 410, as if the API server no
    /// longer had the resourceVersion.
    pub(crate) fn expire_watches(&self, resource: &str) {
        self.relay.rules.lock().push(Rule::Expire(resource.to_owned()));
        self.cut_watches();
    }

    /// Sends the watches of `resource` an event that does not come from the API server.
    pub(crate) fn inject_event(&self, resource: &str, event: &str, object: &Value) {
        let line = serde_json::json!({ "type": event, "object": object });
        let sent = self.relay.injected.send((resource.to_owned(), format!("{line}\n").into()));
        sent.expect("there is a watch");
    }

    /// Breaks the connections of all watches.
    pub(crate) fn cut_watches(&self) {
        self.relay.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Refuses connections from now on, and breaks the existing ones.
    pub(crate) async fn refuse_connections(&self) {
        self.set_open(false).await;
    }

    /// Accepts connections again, at the same address.
    pub(crate) async fn accept_connections(&self) {
        self.set_open(true).await;
    }

    async fn set_open(&self, open: bool) {
        self.relay.open.send_replace(open);
        let mut listening = self.relay.listening.subscribe();
        listening.wait_for(|listening| *listening == open).await.expect("the proxy runs");
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
