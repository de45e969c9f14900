//! Accepts connections within the limits, and serves their requests.

use std::{
    cmp::Reverse,
    collections::HashMap,
    convert::Infallible,
    net::IpAddr,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use axum::{Router, body::Body};
#[cfg(feature = "http2")]
use hyper::server::conn::http2;
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
#[cfg(feature = "http2")]
use hyper_util::rt::TokioExecutor;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    task::{JoinHandle, yield_now},
    time::{Instant, sleep, timeout},
};
use tower::ServiceExt;

use crate::{
    Handshake, Limits,
    connection::{Activity, Phase},
};

/// The interval of pings on connections of HTTP/2. A client that does not answer for as long is disconnected.
#[cfg(feature = "http2")]
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// The interval at which failed accepts are logged.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The server of one port.
#[derive(Debug)]
pub struct Server<H> {
    purpose: &'static str,
    handshake: H,
    router: Router,
    limits: Limits,
    /// The limit of requests at once on a connection of HTTP/2. `None` for HTTP/1.
    streams: Option<u32>,
    /// True once each connection is to close after its answer. Each connection has a receiver, so the channel is closed
    /// once there are no connections.
    closing: watch::Sender<bool>,
    /// Notified when a connection ends or enters another phase.
    phase_changed: Arc<Notify>,
}

/// An open connection.
struct Connection {
    activity: Activity,
    task: JoinHandle<()>,
}

impl<H: Handshake> Server<H> {
    /// Creates a server. Log lines name its purpose, such as `probes`. Each request has its [`Activity`] and the peer of
    /// its [`Handshake`] as extensions.
    pub fn new(purpose: &'static str, handshake: H, router: Router, limits: Limits) -> Self {
        let closing = watch::Sender::default();
        Self { purpose, handshake, router, limits, streams: None, closing, phase_changed: Arc::default() }
    }

    /// Serves HTTP/2 instead of HTTP/1, such as a gRPC service, with a limit of requests at once on each connection. A
    /// request may be open for any time, so neither its body nor the reading of its answer has a time limit. If the limit
    /// of [connections](Limits::connections) is reached and each has an open request, the server closes the oldest one of
    /// the client that has the most.
    ///
    /// ```
    /// use axum::{Router, routing::get};
    /// use reknit_server::{Limits, Plain, Server};
    ///
    /// # async fn serve(listener: tokio::net::TcpListener, shutdown: impl Future<Output = ()> + Send) {
    /// let routes = Router::new().route("/", get(async || "hello")); // or tonic's Routes::into_axum_router
    /// Server::new("greetings", Plain, routes, Limits::default()).http2(200).run(listener, shutdown).await;
    /// # }
    /// ```
    #[cfg(feature = "http2")]
    #[must_use]
    pub fn http2(self, streams: u32) -> Self {
        Self { streams: Some(streams), ..self }
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
        let mut warned: Option<Instant> = None;
        loop {
            match listener.accept().await {
                Ok((stream, address)) => {
                    let client = address.ip().to_canonical();
                    if self.make_room(&mut connections, client).await {
                        connections.push(self.spawn_connection(stream, client));
                    }
                }
                // Most likely, the process has too many open files. The accept is repeated, since the end of a
                // connection closes one.
                Err(error) => {
                    if warned.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
                        warned = Some(Instant::now());
                        tracing::warn!(%error, "failed to accept a connection to {}", self.purpose);
                    }
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Makes room for another connection of this client. At the limit, it closes the connection that
    /// [`to_close`](Self::to_close) returns. If there is none, it returns false, so that the client does not hold up others;
    /// without others, it waits until the client has one of its answers.
    async fn make_room(&self, connections: &mut Vec<Connection>, client: IpAddr) -> bool {
        loop {
            connections.retain(|connection| !connection.task.is_finished());
            if connections.len() < self.limits.connections {
                return true;
            }
            match self.to_close(connections, client) {
                Some(index) => {
                    let Connection { task, .. } = connections.remove(index);
                    task.abort();
                    let _ = task.await;
                }
                None if connections.iter().any(|connection| connection.activity.client() != client) => {
                    return false;
                }
                None => self.phase_changed.notified().await,
            }
        }
    }

    /// The connection that makes room for another one of the newcomer: of the clients that have at least as many, the one
    /// that has most makes room by the connection that has waited longest for it. If they all wait for answers, it is the
    /// oldest connection of the client that has most, unless that is the newcomer. Over HTTP/2 it is in any case, since
    /// answers may take any time.
    fn to_close(&self, connections: &[Connection], newcomer: IpAddr) -> Option<usize> {
        let mut counts = HashMap::from([(newcomer, 1)]);
        connections
            .iter()
            .for_each(|connection| *counts.entry(connection.activity.client()).or_default() += 1);
        let own_count = counts[&newcomer];
        let counted = connections
            .iter()
            .enumerate()
            .map(|(index, Connection { activity, .. })| (counts[&activity.client()], index, activity));
        let waiting = counted.clone().filter_map(|(count, index, activity)| {
            (count >= own_count).then_some((count, Reverse(activity.waiting_since()?), index))
        });
        let oldest = counted.filter(|(count, ..)| self.streams.is_some() || *count > own_count);
        let oldest = oldest.map(|(count, index, _)| (count, Reverse(index)));
        waiting.max().map(|(.., index)| index).or_else(|| oldest.max().map(|(_, Reverse(index))| index))
    }

    fn spawn_connection(self: &Arc<Self>, stream: TcpStream, client: IpAddr) -> Connection {
        let (server, closing) = (self.clone(), self.closing.subscribe());
        let activity = Activity::new(client, &self.phase_changed);
        let task_activity = activity.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                () = server.serve_connection(stream, &task_activity, closing) => {}
                () = task_activity.wait_until_overdue(&server.limits) => {}
            }
            task_activity.enter(Phase::Idle);
        });
        Connection { activity, task }
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
        let (activity, router, is_multiplexed) =
            (activity.clone(), self.router.clone(), self.streams.is_some());
        let service = service_fn(move |request: Request<Incoming>| {
            let open = activity.open_request();
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(activity.clone());
            request.extensions_mut().insert(peer.clone());
            let (activity, response) = (activity.clone(), router.clone().oneshot(request));
            async move {
                // A client may have sent hundreds of requests at once. Other connections have their turn between them.
                yield_now().await;
                let response = response.await?;
                // Other requests of the connection may be open.
                if !is_multiplexed {
                    activity.enter(Phase::Sending);
                }
                Ok::<_, Infallible>(open.until_sent(response))
            }
        });
        let (io, head) = (TokioIo::new(stream), self.limits.head);
        #[cfg(feature = "http2")]
        if let Some(streams) = self.streams {
            let mut http = http2::Builder::new(TokioExecutor::new());
            http.timer(TokioTimer::new())
                .keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_INTERVAL);
            http.max_concurrent_streams(streams).max_header_list_size(head.try_into().unwrap_or(u32::MAX));
            let connection = http.serve_connection(io, service);
            return self.until_closed(connection, http2::Connection::graceful_shutdown, stop_opening).await;
        }
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(head);
        let connection = http.serve_connection(io, service);
        self.until_closed(connection, http1::Connection::graceful_shutdown, stop_opening).await;
    }

    /// Serves a connection until it ends, or after `stop` until its requests are answered.
    async fn until_closed<C: Future<Output = hyper::Result<()>>>(
        &self,
        connection: C,
        close: fn(Pin<&mut C>),
        stop: Pin<&mut impl Future<Output = ()>>,
    ) {
        let mut connection = pin!(connection);
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = stop => {
                close(connection.as_mut());
                connection.await
            }
        };
        if let Err(error) = result {
            tracing::debug!(%error, "a connection to {} failed", self.purpose);
        }
    }
}
