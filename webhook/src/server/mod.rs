//! The TLS server of a webhook.

mod budget;
mod connection;
mod drain;
mod metrics;
pub(crate) mod routes;

use std::{convert::Infallible, io, pin::pin, sync::Arc, time::Duration};

use axum::{Router, body::Body};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use prometheus::Registry;
use reknit_reconciler::{Result, ResultExt};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use self::{
    connection::{Activity, Phase},
    drain::Drain,
    metrics::Metrics,
};
use crate::{
    admission::{request_values::RequestValues, rules::Caches},
    certificates::identity::Identity,
    limits::Limits,
    webhook::Webhook,
};

/// The minimum time between two warnings of TLS alerts.
const ALERT_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Serves until `stop` completes, and then until no request has come for a while ([`Limits::quiet_period`]). In the
/// meantime, the webhook answers requests, fails probes, and closes each connection after an answer. Must be called
/// within a tokio runtime.
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
    let tls = TlsAcceptor::from(Arc::new(identity.config().context(FAILED)?));
    let (drain, limits) = (Drain::default(), webhook.limits.clone());
    let shutdown_timeout = webhook.shutdown_timeout;
    let (request_values, caches) = (webhook.request_values.clone(), webhook.validation.caches.clone());
    let router = routes::router(Arc::new(webhook), metrics.clone(), drain.clone());
    let server = Server {
        tls,
        router,
        // Draining takes twice the quiet period at most.
        quiet_period: limits.quiet_period.min(shutdown_timeout.saturating_mul(2) / 5),
        open_timeout: shutdown_timeout / 10,
        limits,
        metrics,
        closing: watch::Sender::default(),
        phase_changed: Arc::default(),
        last_alert_warning: Mutex::default(),
        request_values,
        caches,
    };
    Ok(Arc::new(server).run(listener, drain, stop))
}

/// The server of one webhook.
struct Server {
    tls: TlsAcceptor,
    router: Router,
    limits: Limits,
    quiet_period: Duration,
    /// The time that a connection has for its first request once the others are closed.
    open_timeout: Duration,
    metrics: Metrics,
    /// True once each connection is to close after its answer. Each connection has a receiver, so the channel is closed
    /// once there are no connections.
    closing: watch::Sender<bool>,
    /// Notified when a connection ends or enters another phase.
    phase_changed: Arc<Notify>,
    last_alert_warning: Mutex<Option<Instant>>,
    request_values: RequestValues,
    caches: Caches,
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
            drain.drain(self.quiet_period).await;
        };
        tokio::select! {
            () = self.accept(&listener) => {}
            () = drained => {}
        }
        drop(listener);
        self.closing.send_replace(true);
        self.closing.closed().await;
    }

    /// Accepts connections and never returns. Waits for the ConfigMaps and the caches of validators first, but only for some
    /// seconds.
    async fn accept(self: &Arc<Self>, listener: &TcpListener) {
        tokio::join!(self.request_values.wait_until_read(), self.caches.wait_until_synced());
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
        let mut stop_opening = pin!(async {
            let _ = closing.wait_for(|closing| *closing).await;
            // Before the head of the first request, hyper would close the connection without an answer.
            let _ = timeout(self.open_timeout, activity.wait_until_opened()).await;
        });
        let stream = tokio::select! {
            accepted = self.tls.accept(stream) => accepted,
            () = &mut stop_opening => return,
        };
        let stream = match stream {
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
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = stop_opening => {
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
