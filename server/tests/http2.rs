//! The server of HTTP/2: connections that do nothing, and requests that stay open.
#![cfg(test)]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, routing::get};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use reknit_server::{Limits, Plain, Server};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpSocket, TcpStream},
    sync::Semaphore,
    task::JoinHandle,
};

type Client = SendRequest<Empty<Bytes>>;
type Call = JoinHandle<hyper::Result<StatusCode>>;

/// A server of a path that answers at once, and of one that answers once it is released.
struct Example {
    address: SocketAddr,
    release: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl Example {
    async fn start(limits: Limits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (release, waiting) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (released, begun) = (release.clone(), waiting.clone());
        let wait = move || {
            begun.add_permits(1);
            let released = released.clone();
            async move {
                released.acquire().await.unwrap().forget();
                "released"
            }
        };
        let router = Router::new().route("/", get(async || "hello")).route("/wait", get(wait));
        let server = Server::new("tests", Plain, router, limits).http2(10);
        tokio::spawn(server.run(listener, std::future::pending()));
        Self { address, release, waiting }
    }

    /// Connects from this address of the loopback network.
    async fn connect_from(&self, ip: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{ip}:0").parse().unwrap()).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    async fn client_at(&self, ip: &str) -> Client {
        let stream = TokioIo::new(self.connect_from(ip).await);
        let (client, connection) = handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// Sends a request that stays open, and waits until it has arrived.
    async fn open_call(&self, client: &Client) -> Call {
        let call = tokio::spawn(get_path(client.clone(), "/wait"));
        self.waiting.acquire().await.unwrap().forget();
        call
    }
}

async fn get_path(mut client: Client, path: &str) -> hyper::Result<StatusCode> {
    let request = Request::get(format!("http://tests{path}")).body(Empty::new()).unwrap();
    Ok(client.send_request(request).await?.status())
}

fn limits(connections: usize) -> Limits {
    let long = Duration::from_secs(3600);
    Limits { connections, receive_timeout: long, idle_timeout: long, ..Limits::default() }
}

#[tokio::test]
async fn a_connection_without_requests_makes_room_for_another() {
    let example = Example::start(limits(1)).await;
    let mut silent = example.connect_from("127.0.0.1").await;
    let client = example.client_at("127.0.0.1").await;
    assert_eq!(get_path(client, "/").await.unwrap(), StatusCode::OK);
    let mut rest = Vec::new();
    let _ = silent.read_to_end(&mut rest).await; // until the server has closed it
}

/// A call of gRPC may stay open for any time, so waiting for one of them to end could take forever.
#[tokio::test]
async fn the_client_with_most_open_requests_makes_room_for_another() {
    let example = Example::start(limits(3)).await;
    let (one, two) = (example.client_at("127.0.0.1").await, example.client_at("127.0.0.2").await);
    let (only, oldest) = (example.open_call(&one).await, example.open_call(&two).await);
    let second = example.client_at("127.0.0.2").await;
    let newest = example.open_call(&second).await;
    let stranger = example.client_at("127.0.0.3").await;
    assert_eq!(get_path(stranger, "/").await.unwrap(), StatusCode::OK);
    assert!(oldest.await.unwrap().is_err());
    example.release.add_permits(2);
    assert_eq!(
        (only.await.unwrap().unwrap(), newest.await.unwrap().unwrap()),
        (StatusCode::OK, StatusCode::OK)
    );
}

#[tokio::test]
async fn a_connection_is_not_idle_while_any_of_its_requests_is_open() {
    let idle_timeout = Duration::from_millis(10);
    let example = Example::start(Limits { idle_timeout, ..limits(10) }).await;
    let client = example.client_at("127.0.0.1").await;
    let open = example.open_call(&client).await;
    assert_eq!(get_path(client, "/").await.unwrap(), StatusCode::OK);
    tokio::time::sleep(5 * idle_timeout).await;
    example.release.add_permits(1);
    assert_eq!(open.await.unwrap().unwrap(), StatusCode::OK);
}
