//! Requests to one server, each on a connection of its own.
use std::sync::Arc;

use http::{HeaderValue, Request, Response, Uri, Version, header::HOST};
use hyper::{
    body::Incoming,
    rt::{Read, Write},
};
use kube::client::Body;
use reknit_injection::Answer;
use tower::{BoxError, Service, ServiceExt};

use super::{arriving::Arriving, connection::Connection, idle::Idle};

/// The connections to one server: one for each answer that is awaited or arrives, and those that wait for the next.
pub(super) struct Pool<C> {
    connector: C,
    server: Uri,
    host: HeaderValue,
    idle: Idle,
}

impl<C> Pool<C>
where
    C: Service<Uri, Response: Read + Write + Send + Unpin + 'static, Future: Send, Error: Into<BoxError>>
        + Clone,
{
    /// # Errors
    ///
    /// An address without a host.
    pub(super) fn new(connector: C, server: &Uri) -> Result<Self, BoxError> {
        let authority = server.authority().ok_or("the address of a server names its host")?.as_str();
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        Ok(Self { connector, server: server.clone(), host: host.try_into()?, idle: Idle::default() })
    }

    /// Of the request's address path and query are what counts. One that meets a connection which the server has closed
    /// meanwhile is sent on the next.
    pub(super) async fn send(self: Arc<Self>, mut request: Request<Body>) -> Result<Answer, BoxError> {
        *request.uri_mut() = request.uri().path_and_query().cloned().map(Uri::from).unwrap_or_default();
        *request.version_mut() = Version::HTTP_11;
        request.headers_mut().entry(HOST).or_insert_with(|| self.host.clone());
        while let Some(mut connection) = self.idle.take() {
            match connection.send(request).await {
                Ok(answer) => return Ok(self.arriving(answer, connection)),
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(failed.into_error().into()),
                },
            }
        }
        let mut connection = Box::pin(self.connect()).await?; // seldom, and large
        let answer = connection.send(request).await.map_err(|failed| failed.into_error())?;
        Ok(self.arriving(answer, connection))
    }

    async fn connect(&self) -> Result<Connection, BoxError> {
        let stream = self.connector.clone().oneshot(self.server.clone()).await.map_err(Into::into)?;
        Ok(Connection::on(stream).await?)
    }

    fn arriving(&self, answer: Response<Incoming>, connection: Connection) -> Answer {
        answer.map(|body| Box::new(Arriving::new(body, connection, self.idle.clone())) as _)
    }
}
