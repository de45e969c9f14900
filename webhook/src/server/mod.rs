//! The TLS server of a webhook.

mod budget;
pub(crate) mod clients;
mod drain;
mod metrics;
mod pending;
pub(crate) mod routes;

use std::{io, pin::pin, sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus::Registry;
use reknit_reconciler::{Result, ResultExt};
use reknit_server::{self as server, Handshake, Server};
use tokio::{
    net::{TcpListener, TcpStream},
    time::Instant,
};
use tokio_rustls::server::TlsStream;

use self::{
    clients::{Acceptors, Client},
    drain::Drain,
    metrics::Metrics,
};
use crate::{certificates::identity::Identity, webhook::Webhook};

/// The minimum time between two warnings of TLS alerts.
const ALERT_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Serves until `stop` completes, and then until no request has come for a while
/// ([`quiet_period`](crate::Limits::quiet_period)). In the meantime, the webhook answers requests, fails probes, and closes
/// each connection after an answer. Must be called within a tokio runtime.
///
/// # Errors
///
/// Fails at once if the registry has the metrics of a webhook already.
pub fn serve<S: Future<Output = ()> + Send + 'static>(
    webhook: Webhook,
    listener: TcpListener,
    identity: &Identity,
    registry: &Registry,
    stop: S,
) -> Result<impl Future<Output = ()> + Send + use<S>> {
    const FAILED: &str = "failed to serve the webhook";
    let metrics = Metrics::new(registry);
    let acceptors = Acceptors::new(identity, webhook.client_authority.clone()).context(FAILED)?;
    let (drain, limits) = (Drain::default(), webhook.limits.clone());
    let shutdown_timeout = webhook.shutdown_timeout;
    let (values, rules) = (webhook.request_values.caches.clone(), webhook.validation.caches.clone());
    let router = routes::router(Arc::new(webhook), metrics.clone(), drain.clone());
    // Draining takes twice the quiet period at most.
    let quiet_period = limits.quiet_period.min(shutdown_timeout.saturating_mul(2) / 5);
    let limits = server::Limits {
        connections: limits.connections,
        head: 64 * 1024,
        receive_timeout: limits.receive_timeout,
        idle_timeout: limits.idle_timeout,
        closing_timeout: shutdown_timeout / 10,
    };
    let tls = Tls { acceptors, metrics, last_alert_warning: Mutex::default() };
    let server = Server::new("the webhook", tls, router, limits);
    Ok(async move {
        let mut drained = pin!(async {
            stop.await;
            drain.drain(quiet_period).await;
        });
        // Not for long if nothing can be read: the objects may need this webhook.
        let is_prepared = async { tokio::join!(values.wait_until_synced(), rules.wait_until_synced()) };
        tokio::select! {
            biased;
            () = &mut drained => {}
            _ = is_prepared => server.run(listener, drained).await,
        }
    })
}

/// The TLS handshake with the API server.
struct Tls {
    acceptors: Acceptors,
    metrics: Metrics,
    last_alert_warning: Mutex<Option<Instant>>,
}

impl Handshake for Tls {
    type Stream = TlsStream<TcpStream>;
    type Peer = Client;

    async fn accept(&self, stream: TcpStream) -> Option<(Self::Stream, Client)> {
        let accepted = self.acceptors.current().accept(stream).await;
        let stream = accepted.inspect_err(|error| self.report_failure(error)).ok()?;
        let client = self.acceptors.client(stream.get_ref().1.peer_certificates());
        Some((stream, client))
    }
}

impl Tls {
    /// Counts and logs a failed handshake. A client that rejects the certificate sends an alert. If that client is the
    /// API server, it cannot call the webhook, so an alert is logged as a warning. Any client can send alerts, so only
    /// one warning a minute is logged.
    fn report_failure(&self, error: &io::Error) {
        self.metrics.handshake_failures.inc();
        let reason = error.get_ref().and_then(|error| error.downcast_ref());
        let mut last_warning = self.last_alert_warning.lock();
        match reason {
            Some(rustls::Error::AlertReceived(alert))
                if last_warning.is_none_or(|last| last.elapsed() > ALERT_LOG_INTERVAL) =>
            {
                *last_warning = Some(Instant::now());
                tracing::warn!(?alert, "a client aborted its TLS handshake with the webhook");
            }
            _ => tracing::debug!(%error, "a TLS handshake with the webhook failed"),
        }
    }
}
