//! A reverse proxy in front of the API server that holds, delays, cuts and counts what passes.
//!
//! Plain HTTP towards the client, so that a kubeconfig needs nothing but its address; TLS towards the server. The
//! client's credentials go through.

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

/// Runs until it is dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Relay>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// In front of the server that `config` names.
    pub(crate) async fn start(config: &Config) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Relay::to(config));
        let accepting = tokio::spawn(accept(shared.clone(), listener));
        Self { address, shared, accepting }
    }

    /// `http://127.0.0.1:PORT`
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// `config` as a client behind the proxy uses it.
    pub(crate) fn config(&self, config: &Config) -> Config {
        let mut through = config.clone();
        through.cluster_url = self.url().parse().expect("a URL");
        through.root_cert = None;
        through
    }

    /// Holds the answers to the requests that match: the server has done what they ask, the client does not know yet.
    pub(crate) fn hold_answers(&self, matching: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Gate {
        let gate = Gate::default();
        self.shared.rules.lock().push(Rule::HoldAnswer(Arc::new(matching), gate.clone()));
        gate
    }

    /// Holds each line of a watch that matches, and so all that come after it in that watch.
    pub(crate) fn hold_lines(&self, matching: impl Fn(&Line) -> bool + Send + Sync + 'static) -> Gate {
        let gate = Gate::default();
        self.shared.rules.lock().push(Rule::HoldLine(Arc::new(matching), gate.clone()));
        gate
    }

    /// Each line of the watches of `resource` comes this much later, in the watches that begin from now on.
    pub(crate) fn delay_lines(&self, resource: &str, delay: Duration) {
        self.shared.rules.lock().push(Rule::DelayLines(resource.to_owned(), delay));
    }

    /// Ends each watch of `resource` and answers the next one as a server does that no longer has its resourceVersion.
    pub(crate) fn expire(&self, resource: &str) {
        self.shared.rules.lock().push(Rule::Expire(resource.to_owned()));
        self.cut_watches();
    }

    /// Tells the watches of `resource` what no server said.
    pub(crate) fn inject(&self, resource: &str, event: &str, object: &Value) {
        let line = serde_json::json!({ "type": event, "object": object });
        let told = self.shared.injected.send((resource.to_owned(), format!("{line}\n").into()));
        told.expect("there is a watch");
    }

    /// Breaks off the watches there are.
    pub(crate) fn cut_watches(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// From here on connections are refused, and those there are are gone.
    pub(crate) async fn refuse(&self) {
        self.set_open(false).await;
    }

    /// Listens again, at the same address.
    pub(crate) async fn accept(&self) {
        self.set_open(true).await;
    }

    async fn set_open(&self, open: bool) {
        self.shared.open.send_replace(open);
        let mut listening = self.shared.listening.subscribe();
        listening.wait_for(|listening| *listening == open).await.expect("the proxy runs");
    }

    /// What was answered until now, in order; a watch counts as answered when it begins.
    pub(crate) fn answered(&self) -> Vec<Answered> {
        self.shared.answered.lock().clone()
    }

    /// How many answered requests match.
    pub(crate) fn count(&self, matching: impl Fn(&Request) -> bool) -> usize {
        self.shared.answered.lock().iter().filter(|a| matching(&a.request)).count()
    }

    /// The lines that the client was sent until now, in order.
    pub(crate) fn delivered(&self) -> Vec<Line> {
        self.shared.delivered.lock().clone()
    }

    /// Waits until a line that matches was sent to the client.
    pub(crate) async fn sent(&self, what: &str, matching: impl Fn(&Line) -> bool) -> Line {
        eventually(what, SOON, async || {
            self.shared.delivered.lock().iter().find(|line| matching(line)).cloned()
        })
        .await
    }

    /// Waits until a request that matches was answered.
    pub(crate) async fn asked(&self, what: &str, matching: impl Fn(&Request) -> bool) -> Answered {
        eventually(what, SOON, async || {
            self.shared.answered.lock().iter().find(|a| matching(&a.request)).cloned()
        })
        .await
    }

    /// Forgets what was answered and delivered, so that counts begin anew.
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
