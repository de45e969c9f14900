//! Serves a webhook over TLS.

pub(crate) mod budget;
pub(crate) mod health;
pub(crate) mod limits;
pub(crate) mod metrics;
pub(crate) mod pace;
pub(crate) mod routes;

use std::{convert::Infallible, future::Future, io, pin::pin, sync::Arc};

use axum::{Router, body::Body};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::Registry;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::{
    certificates::identity::Identity,
    server::limits::Limits,
    server::metrics::Metrics,
    server::pace::{Pace, Paced},
    server::routes::Drain,
    webhook::Webhook,
};

/// A webhook that cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("the webhook cannot be served: {0}")]
pub struct ServeError(String);

impl Webhook {
    /// Serves until `stop`, and then until nobody has asked for a while ([`Limits::quiet`]): requests that came in are
    /// answered. Probes are told in the meantime, and connections closed after an answer. To be called within a tokio runtime.
    ///
    /// TLS 1.3 with HTTP/1.1. The answers are Knative's:
    ///
    /// | request | answer |
    /// | --- | --- |
    /// | user agent `kube-probe/…`, any path | 200; 503 `shutting down` once it is to end, and where code is [stuck](crate::Health::stuck) |
    /// | no `application/json` | 415 |
    /// | a path that nothing was added for: see below | 400 `no controller registered for: …` |
    /// | a body that is no review | 400 `could not decode body: …` |
    /// | a body of more than 7 MiB; of more than 32 MiB for a conversion, which may be of a whole list of such objects | 413 |
    /// | a body that does not come in time | 408 |
    /// | an answer that does not come in time | 504 |
    /// | a panic in code of a Kind | 500, counted in `reknit_webhook_panics_total{path}` |
    ///
    /// The paths are `/defaulting`, `/resource-validation`, `/config-validation` and `/resource-conversion`.
    ///
    /// Counted are also `reknit_webhook_requests_total{path,code,allowed}` and `reknit_webhook_request_seconds{path}`.
    ///
    /// # Errors
    ///
    /// At once, where the registry has these metrics already.
    pub fn serve<S: Future<Output = ()> + Send + 'static>(
        self,
        listener: TcpListener,
        identity: &Identity,
        registry: &Registry,
        stop: S,
    ) -> Result<impl Future<Output = ()> + Send + use<S>, ServeError> {
        let failed = |error: &dyn std::fmt::Display| ServeError(error.to_string());
        let metrics = Metrics::new(registry).map_err(|error| failed(&error))?;
        let tls = TlsAcceptor::from(Arc::new(identity.config().map_err(|error| failed(&error))?));
        let (drain, limits) = (Drain::default(), Arc::new(self.limits.clone()));
        let router = routes::router(Arc::new(self), metrics, drain.clone());
        let server = Server { tls, router, limits, ending: watch::Sender::default() };
        Ok(server.run(listener, drain, stop))
    }
}

struct Server {
    tls: TlsAcceptor,
    router: Router,
    limits: Arc<Limits>,
    /// Connections listen to it, and it is closed once there are none.
    ending: watch::Sender<bool>,
}

impl Server {
    async fn run(self, listener: TcpListener, drain: Drain, stop: impl Future<Output = ()> + Send) {
        let quiet = self.limits.quiet;
        let over = async move {
            stop.await;
            drain.quiet(quiet).await;
        };
        tokio::select! {
            () = self.accept(&listener) => {}
            () = over => {}
        }
        drop(listener);
        self.ending.send_replace(true);
        self.ending.closed().await;
    }

    /// Never ends.
    async fn accept(&self, listener: &TcpListener) {
        let room = Arc::new(Semaphore::new(self.limits.connections.min(Semaphore::MAX_PERMITS)));
        loop {
            let Ok(place) = room.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let connection = self.connection(stream);
                    tokio::spawn(async move {
                        connection.await;
                        drop(place);
                    });
                }
                // Out of files, most likely: there will be some once connections end.
                Err(error) => {
                    tracing::warn!(%error, "the webhook cannot accept a connection");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn connection(&self, stream: TcpStream) -> impl Future<Output = ()> + Send + use<> {
        let (tls, router, limits, mut ending) =
            (self.tls.clone(), self.router.clone(), self.limits.clone(), self.ending.subscribe());
        async move {
            let (paced, pace) = Paced::new(stream, limits.receive, limits.idle);
            let stream = match timeout(limits.receive, tls.accept(paced)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return broken_off(&error),
                Err(_) => return,
            };
            pace.idle();
            let paced = pace.clone();
            let service = service_fn(move |request| answer(router.clone(), paced.clone(), request));
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(64 * 1024);
            let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
            let end = async {
                let _ = ending.wait_for(|ending| *ending).await;
                // Who has just connected has not been answered at all, and hyper would close at once.
                let _ = timeout(limits.receive, pace.asked()).await;
            };
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = end => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection to the webhook ended");
            }
        }
    }
}

/// A client that does not accept the certificate says so: an API server that asks nothing any more. Others may only have
/// looked whether anybody listens.
fn broken_off(error: &io::Error) {
    match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(rustls::Error::AlertReceived(alert)) => {
            tracing::warn!(?alert, "a client broke off its TLS handshake with the webhook");
        }
        _ => tracing::debug!(%error, "a TLS handshake with the webhook failed"),
    }
}

async fn answer(
    router: Router,
    pace: Pace,
    request: hyper::Request<Incoming>,
) -> Result<axum::response::Response, Infallible> {
    pace.answering();
    let response = router.oneshot(request.map(Body::new)).await;
    pace.idle();
    response
}
