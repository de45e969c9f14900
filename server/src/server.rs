//! Accepts connections within the limits, and serves their requests.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use axum::{Router, body::Body};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tower::ServiceExt;

use crate::{
    Handshake, Limits,
    connection::{Activity, Phase},
};

/// The server of one port.
#[derive(Debug)]
pub struct Server<H> {
    purpose: &'static str,
    handshake: H,
    router: Router,
    limits: Limits,
    /// True once each connection is to close after its answer. Each connection has a receiver, so the channel is closed
    /// once there are no connections.
    closing: watch::Sender<bool>,
    /// Notified when a connection ends or enters another phase.
    phase_changed: Arc<Notify>,
}

/// The activity and the task of an open connection.
type Connection = (Activity, JoinHandle<()>);

impl<H: Handshake> Server<H> {
    /// Creates a server. Log lines name its purpose, such as `probes`. Each request has its [`Activity`] and the peer of
    /// its [`Handshake`] as extensions.
    pub fn new(purpose: &'static str, handshake: H, router: Router, limits: Limits) -> Self {
        let closing = watch::Sender::default();
        Self { purpose, handshake, router, limits, closing, phase_changed: Arc::default() }
    }

    /// Serves until `stop` completes, and then until each connection has its answer.
    pub async fn run(self, listener: TcpListener, stop: impl Future<Output = ()> + Send) {
        let server = Arc::new(self);
        tokio::select! {
            biased;
            () = stop => {}
            () = server.accept(&listener) => {}
        }
        drop(listener);
        server.closing.send_replace(true);
        server.closing.closed().await;
    }

    /// Accepts connections and never returns.
    async fn accept(self: &Arc<Self>, listener: &TcpListener) {
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
                    tracing::warn!(%error, "failed to accept a connection to {}", self.purpose);
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
            let _ = timeout(self.limits.closing_timeout, activity.wait_until_opened()).await;
        });
        let stream = tokio::select! {
            accepted = self.handshake.accept(stream) => accepted,
            () = &mut stop_opening => return,
        };
        let Some((stream, peer)) = stream else { return };
        let service = service_fn(|request: Request<Incoming>| {
            activity.enter(Phase::Answering);
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(activity.clone());
            request.extensions_mut().insert(peer.clone());
            let response = self.router.clone().oneshot(request);
            async { Ok::<_, Infallible>(activity.track_sending(response.await?)) }
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(self.limits.head);
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = stop_opening => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = result {
            tracing::debug!(%error, "a connection to {} failed", self.purpose);
        }
    }
}
