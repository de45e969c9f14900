//! The TLS server of a webhook.

mod budget;
mod connection;
mod drain;
pub(crate) mod health;
pub(crate) mod limits;
mod metrics;
pub(crate) mod routes;

use std::{convert::Infallible, future::Future, io, pin::pin, sync::Arc, time::Duration};

use axum::{Router, body::Body};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    task::JoinHandle,
    time::{Instant, sleep},
};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use self::{
    connection::{Activity, Phase},
    drain::Drain,
    limits::Limits,
    metrics::Metrics,
};
use crate::{admission::config_values::ConfigValues, certificates::identity::Identity, webhook::Webhook};

/// The minimum time between two warnings of TLS alerts.
const ALERT_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The error of a webhook that cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("failed to serve the webhook: {0}")]
pub struct ServeError(String);

impl Webhook {
    /// Serves until `stop` completes, and then until no request has come for a while ([`Limits::quiet_period`]). In the
    /// meantime, the webhook answers requests, fails probes, and closes each connection after an answer. Must be called
    /// within a tokio runtime.
    ///
    /// The server speaks TLS 1.3 and HTTP/1.1. The answers are Knative's:
    ///
    /// | request | answer |
    /// | --- | --- |
    /// | user agent `kube-probe/…`, any path | 200; 503 `shutting down` after `stop`; 503 while code is [stuck](crate::Health::stuck_for) |
    /// | another content type than `application/json` | 415 |
    /// | a path for which the webhook has no Kind or ConfigMap | 400 `no controller registered for: …` |
    /// | a body that is not a review | 400 `could not decode body: …` |
    /// | a body of more than 7 MiB, or of more than 32 MiB for a conversion, which may hold a list (see [`Limits`]) | 413 |
    /// | a body that does not arrive in time | 408 |
    /// | a review that takes too long | 504 |
    /// | a panic in the code of a Kind | 500, counted in `reknit_webhook_panics_total{path}` |
    ///
    /// The paths are `/defaulting`, `/resource-validation`, `/config-validation`, `/resource-conversion`, and those of
    /// the [mutators](crate::Mutator).
    ///
    /// Further metrics are `reknit_webhook_requests_total{path,code,allowed}`, `reknit_webhook_request_seconds{path}`
    /// and `reknit_webhook_handshake_failures_total`.
    ///
    /// # Errors
    ///
    /// Fails at once if the registry has these metrics already.
    pub fn serve<S: Future<Output = ()> + Send + 'static>(
        self,
        listener: TcpListener,
        identity: &Identity,
        registry: &Registry,
        stop: S,
    ) -> Result<impl Future<Output = ()> + Send + use<S>, ServeError> {
        let serve_error = |error: &dyn std::fmt::Display| ServeError(error.to_string());
        let metrics = Metrics::new(registry).map_err(|error| serve_error(&error))?;
        let tls = TlsAcceptor::from(Arc::new(identity.config().map_err(|error| serve_error(&error))?));
        let (drain, limits) = (Drain::default(), self.limits.clone());
        let config_values = self.config_values.clone();
        let router = routes::router(Arc::new(self), metrics.clone(), drain.clone());
        let server = Server {
            tls,
            router,
            limits,
            metrics,
            closing: watch::Sender::default(),
            phase_changed: Arc::default(),
            last_alert_warning: Mutex::default(),
            config_values,
        };
        Ok(Arc::new(server).run(listener, drain, stop))
    }
}

/// The server of one webhook.
struct Server {
    tls: TlsAcceptor,
    router: Router,
    limits: Limits,
    metrics: Metrics,
    /// True once each connection is to close after its answer. Each connection has a receiver, so the channel is closed
    /// once there are no connections.
    closing: watch::Sender<bool>,
    /// Notified when a connection ends or enters another phase.
    phase_changed: Arc<Notify>,
    last_alert_warning: Mutex<Option<Instant>>,
    config_values: ConfigValues,
}

/// The activity and the task of an open connection.
type Connection = (Activity, JoinHandle<()>);

impl Server {
    async fn run(
        self: Arc<Self>,
        listener: TcpListener,
        drain: Drain,
        stop: impl Future<Output = ()> + Send,
    ) {
        let drained = async {
            stop.await;
            drain.drain(self.limits.quiet_period).await;
        };
        tokio::select! {
            () = self.accept(&listener) => {}
            () = drained => {}
        }
        drop(listener);
        self.closing.send_replace(true);
        self.closing.closed().await;
    }

    /// Accepts connections and never returns. Waits for the ConfigMaps first, but only for some seconds.
    async fn accept(self: &Arc<Self>, listener: &TcpListener) {
        self.config_values.wait_until_read().await;
        let mut connections = Vec::new();
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    self.make_room(&mut connections).await;
                    connections.push(self.spawn_connection(stream));
                }
                // Most likely, the process has too many open files. The accept is repeated, since the end of a
                // connection closes one.
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection to the webhook");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Returns once there is room for another connection. At the limit, it closes the connection that has waited
    /// longest for its client. If all clients wait for answers, it waits until one of them has its answer.
    async fn make_room(&self, connections: &mut Vec<Connection>) {
        loop {
            connections.retain(|(_, task)| !task.is_finished());
            if connections.len() < self.limits.connections {
                return;
            }
            let waiting = connections
                .iter()
                .enumerate()
                .filter_map(|(index, (activity, _))| Some((activity.waiting_since()?, index)));
            match waiting.min() {
                Some((_, index)) => {
                    let (_, task) = connections.swap_remove(index);
                    task.abort();
                    let _ = task.await;
                }
                None => self.phase_changed.notified().await,
            }
        }
    }

    fn spawn_connection(self: &Arc<Self>, stream: TcpStream) -> Connection {
        let (server, closing) = (self.clone(), self.closing.subscribe());
        let activity = Activity::new(&self.phase_changed);
        let task_activity = activity.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                () = server.serve_connection(stream, &task_activity, closing) => {}
                () = task_activity.wait_until_overdue(&server.limits) => {}
            }
            task_activity.enter(Phase::Idle);
        });
        (activity, task)
    }

    async fn serve_connection(
        &self,
        stream: TcpStream,
        activity: &Activity,
        mut closing: watch::Receiver<bool>,
    ) {
        let stream = match self.tls.accept(stream).await {
            Ok(stream) => stream,
            Err(error) => return self.report_handshake_failure(&error),
        };
        let service = service_fn(|request: Request<Incoming>| {
            activity.enter(Phase::Receiving);
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(activity.clone());
            let response = self.router.clone().oneshot(request);
            async { Ok::<_, Infallible>(activity.track_sending(response.await?)) }
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(64 * 1024);
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        let shutdown = async {
            let _ = closing.wait_for(|closing| *closing).await;
            // Before the head of the first request, hyper would close the connection without an answer.
            activity.wait_until_opened().await;
        };
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = shutdown => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = result {
            tracing::debug!(%error, "a connection to the webhook failed");
        }
    }

    /// Counts and logs a failed handshake. A client that rejects the certificate sends an alert. If that client is the
    /// API server, it cannot call the webhook, so an alert is logged as a warning. Any client can send alerts, so only
    /// one warning a minute is logged.
    fn report_handshake_failure(&self, error: &io::Error) {
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
