//! A reverse proxy in front of the API server that holds, delays, cuts and counts requests and watches.
//!
//! It serves plain HTTP, so that a kubeconfig needs only its address, and connects to the API server by TLS. It
//! forwards the credentials of its client.

pub(crate) mod gate;
mod relay;
pub(crate) mod request;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use kube::Config;
use reknit::testing::eventually;
use serde_json::Value;
use tokio::net::TcpListener;

use self::{
    gate::Gate,
    relay::{Answered, Relay, Rule, accept},
    request::{Line, Request},
};
use super::wait::SOON;

/// A running proxy. It stops when it is dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Relay>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy in front of the server of `config`.
    pub(crate) async fn start(config: &Config) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Relay::to(config));
        let accepting = tokio::spawn(accept(shared.clone(), listener));
        Self { address, shared, accepting }
    }

    /// The address, `http://127.0.0.1:PORT`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns `config` with the address of the proxy.
    pub(crate) fn config(&self, config: &Config) -> Config {
        let mut through = config.clone();
        through.cluster_url = self.url().parse().expect("a URL");
        through.root_cert = None;
        through
    }

    /// Holds the responses to matching requests: the server has processed them, and the client does not know yet.
    pub(crate) fn hold_answers(&self, matching: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Gate {
        let gate = Gate::default();
        self.shared.rules.lock().push(Rule::HoldAnswer(Arc::new(matching), gate.clone()));
        gate
    }

    /// Holds each matching line of a watch, and with it all later lines of that watch.
    pub(crate) fn hold_lines(&self, matching: impl Fn(&Line) -> bool + Send + Sync + 'static) -> Gate {
        let gate = Gate::default();
        self.shared.rules.lock().push(Rule::HoldLine(Arc::new(matching), gate.clone()));
        gate
    }

    /// Delays each line of the watches of `resource` that begin from now on.
    pub(crate) fn delay_lines(&self, resource: &str, delay: Duration) {
        self.shared.rules.lock().push(Rule::DelayLines(resource.to_owned(), delay));
    }

    /// Ends all watches of `resource`, and answers the next one with 410, as a server does that no longer has the
    /// resourceVersion.
    pub(crate) fn expire(&self, resource: &str) {
        self.shared.rules.lock().push(Rule::Expire(resource.to_owned()));
        self.cut_watches();
    }

    /// Sends an event to the watches of `resource` that the server did not send.
    pub(crate) fn inject(&self, resource: &str, event: &str, object: &Value) {
        let line = serde_json::json!({ "type": event, "object": object });
        let told = self.shared.injected.send((resource.to_owned(), format!("{line}\n").into()));
        told.expect("there is a watch");
    }

    /// Breaks the connections of all watches.
    pub(crate) fn cut_watches(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Refuses connections from now on, and breaks the existing ones.
    pub(crate) async fn refuse(&self) {
        self.set_open(false).await;
    }

    /// Listens again at the same address.
    pub(crate) async fn accept(&self) {
        self.set_open(true).await;
    }

    async fn set_open(&self, open: bool) {
        self.shared.open.send_replace(open);
        let mut listening = self.shared.listening.subscribe();
        listening.wait_for(|listening| *listening == open).await.expect("the proxy runs");
    }

    /// The responses so far, in order. A watch counts when it begins.
    pub(crate) fn answered(&self) -> Vec<Answered> {
        self.shared.answered.lock().clone()
    }

    /// The number of matching requests with a response.
    pub(crate) fn count(&self, matching: impl Fn(&Request) -> bool) -> usize {
        self.shared.answered.lock().iter().filter(|a| matching(&a.request)).count()
    }

    /// The watch lines that the client was sent so far, in order.
    pub(crate) fn delivered(&self) -> Vec<Line> {
        self.shared.delivered.lock().clone()
    }

    /// Waits until the client was sent a matching line.
    pub(crate) async fn sent(&self, what: &str, matching: impl Fn(&Line) -> bool) -> Line {
        eventually(what, SOON, async || {
            self.shared.delivered.lock().iter().find(|line| matching(line)).cloned()
        })
        .await
    }

    /// Waits until a matching request has a response.
    pub(crate) async fn asked(&self, what: &str, matching: impl Fn(&Request) -> bool) -> Answered {
        eventually(what, SOON, async || {
            self.shared.answered.lock().iter().find(|a| matching(&a.request)).cloned()
        })
        .await
    }

    /// Clears the responses and lines, so that counting starts again.
    pub(crate) fn forget(&self) {
        self.shared.answered.lock().clear();
        self.shared.delivered.lock().clear();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
