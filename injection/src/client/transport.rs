//! The transport: the service that sends the process's requests to the API server.

use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt, TryFutureExt, future::BoxFuture};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Client,
    client::{Body, DynBody},
    core::Status,
};
use serde::de::{DeserializeOwned, Error};
use tower::{BoxError, Service, ServiceExt};

/// A response whose body has yet to be read.
pub type Answer = Response<Box<DynBody>>;

type Answering = BoxFuture<'static, kube::Result<Answer>>;

/// The service that sends the process's requests to the API server. Its [`Client`]s are made of it.
///
/// A kube `Client` hands each request to a task, which calls the service below: two switches between tasks, and two more
/// for a client that is made of another. A `Transport` calls its layers in the task that makes the request. Tests make
/// the transport of a [`Context`](crate::Context) from a client.
///
/// ```no_run
/// # async fn example() -> Result<(), kube::Error> {
/// use reknit_injection::{Context, Transport};
///
/// let transport = Transport::from(kube::Client::try_default().await?);
/// let cx = Context::new("example", transport);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, derive_more::Debug)]
#[debug("Transport {{ default_namespace: {default_namespace:?}, .. }}")]
pub struct Transport {
    send: Arc<dyn Fn(Request<Body>) -> Answering + Send + Sync>,
    default_namespace: Arc<str>,
    valid_until: Option<Timestamp>,
}

impl Transport {
    /// Creates a transport from a service, which is cloned for each request. An error of the service becomes
    /// [`kube::Error::Service`], unless it is a [`kube::Error`] itself.
    pub fn new<S>(service: S, default_namespace: &str) -> Self
    where
        S: Service<Request<Body>, Response = Answer, Error: Into<BoxError>, Future: Send>
            + Clone
            + Send
            + Sync
            + 'static,
    {
        // An async block would hold the future twice.
        let send = move |request| -> Answering {
            service.clone().oneshot(request).map_err(|error| as_kube(error.into())).boxed()
        };
        Self { send: Arc::new(send), default_namespace: default_namespace.into(), valid_until: None }
    }

    /// Creates a client of this transport, with the task that a client has. Create one and clone it. Must be called
    /// within a tokio runtime.
    pub fn client(&self) -> Client {
        let send = self.send.clone();
        Client::new(tower::service_fn(move |request| send(request)), &*self.default_namespace)
            .with_valid_until(self.valid_until)
    }

    /// Sends a request and returns the response, whatever its status.
    pub fn send(&self, request: Request<Body>) -> BoxFuture<'static, kube::Result<Answer>> {
        (self.send)(request)
    }

    /// Sends a request and decodes the successful response.
    ///
    /// # Errors
    ///
    /// [`kube::Error::Api`] if the API server refuses the request, [`kube::Error::SerdeError`] if the response is not a
    /// `T`, and the errors of the connection.
    pub fn request<T: DeserializeOwned>(
        &self,
        request: Request<Vec<u8>>,
    ) -> impl Future<Output = kube::Result<T>> + Send + use<T> {
        let answer = self.send(request.map(Body::from));
        async {
            let (head, body) = answer.await?.into_parts();
            let bytes = collect(body).await?;
            match head.status.is_success() {
                true => decoded(&bytes).map_err(kube::Error::SerdeError),
                false => Err(kube::Error::Api(refusal(head.status, &bytes).boxed())),
            }
        }
    }

    /// Returns a transport that sends requests through this function.
    pub(crate) fn with(&self, send: impl Fn(Request<Body>) -> Answering + Send + Sync + 'static) -> Self {
        Self { send: Arc::new(send), ..self.clone() }
    }
}

impl From<Client> for Transport {
    fn from(client: Client) -> Self {
        let (default_namespace, valid_until) = (client.default_namespace().into(), *client.valid_until());
        let send = move |request| -> Answering {
            let client = client.clone();
            Box::pin(async move { Ok(client.send(request).await?.map(streamed)) })
        };
        Self { send: Arc::new(send), default_namespace, valid_until }
    }
}

/// An [extension](http::Extensions) of a request that no layer of a [`Transport`](crate::Transport) may retry. The caller
/// retries it, and logs the reason.
#[derive(Clone, Copy, Debug)]
pub struct NoRetry;

/// The status in a refusal by the API server, or one made of the text if a proxy refused the request.
pub(crate) fn refusal(code: StatusCode, body: &[u8]) -> Status {
    let mut said: Status =
        serde_json::from_slice(body).unwrap_or_else(|_| Status::failure("", "Failed to parse error data"));
    said.code = code.as_u16();
    if said.message.is_empty() {
        said.message = String::from_utf8_lossy(body).trim().chars().take(200).collect();
    }
    if said.message.is_empty() {
        said.message = code.to_string();
    }
    said
}

/// Checks the encoding of the whole text at once: for a slice serde_json checks each string by itself.
/// Checks the encoding of the whole text at once: for a slice serde_json checks each string by itself.
pub(crate) fn decoded<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    serde_json::from_str(std::str::from_utf8(bytes).map_err(serde_json::Error::custom)?)
}

/// Reads a whole body.
pub(crate) async fn collect(body: Box<DynBody>) -> kube::Result<Bytes> {
    Ok(body.collect().await.map_err(as_kube)?.to_bytes())
}

/// A body of these bytes.
pub(crate) fn whole(bytes: Bytes) -> Box<DynBody> {
    streamed(Body::from(bytes))
}

fn streamed(body: Body) -> Box<DynBody> {
    Box::new(body.map_err(BoxError::from))
}

/// Turns the error of a layer into kube's, unless it is one already.
pub(crate) fn as_kube(error: BoxError) -> kube::Error {
    error.downcast().map_or_else(kube::Error::Service, |error| *error)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the cable is cut")]
    struct Cut;

    /// A transport that answers every request with this code and body.
    fn answering(code: StatusCode, body: &'static str) -> Transport {
        let service = tower::service_fn(move |_: Request<Body>| async move {
            let mut answer = Response::new(whole(Bytes::from_static(body.as_bytes())));
            *answer.status_mut() = code;
            Ok::<_, BoxError>(answer)
        });
        Transport::new(service, "shop")
    }

    async fn asked(transport: &Transport) -> kube::Result<ConfigMap> {
        transport.request(Request::new(Vec::new())).await
    }

    #[tokio::test]
    async fn an_answer_is_decoded_and_a_refusal_keeps_the_servers_status() {
        let answer = asked(&answering(StatusCode::OK, r#"{"data":{"a":"b"}}"#)).await.unwrap();
        assert_eq!(answer.data.unwrap()["a"], "b");
        let refused =
            r#"{"kind":"Status","status":"Failure","message":"gone","reason":"NotFound","code":404}"#;
        let error = asked(&answering(StatusCode::NOT_FOUND, refused)).await.unwrap_err();
        assert!(
            matches!(error, kube::Error::Api(status) if status.is_not_found() && status.message == "gone")
        );
        let error = asked(&answering(StatusCode::BAD_GATEWAY, "<html>")).await.unwrap_err();
        assert!(
            matches!(error, kube::Error::Api(status) if status.code == 502 && status.message == "<html>")
        );
        let by_a_proxy = r#"{"error":"slow down"}"#;
        let error = asked(&answering(StatusCode::TOO_MANY_REQUESTS, by_a_proxy)).await.unwrap_err();
        assert!(
            matches!(&error, kube::Error::Api(status) if status.code == 429 && status.message == by_a_proxy),
            "{error:?}"
        );
    }

    #[tokio::test]
    async fn errors_of_layers_and_of_kube_keep_their_type() {
        let failing = |error: fn() -> BoxError| {
            let service = tower::service_fn(move |_: Request<Body>| async move { Err::<Answer, _>(error()) });
            Transport::new(service, "shop")
        };
        let error = asked(&failing(|| Cut.into())).await.unwrap_err();
        assert!(matches!(&error, kube::Error::Service(cause) if cause.is::<Cut>()), "{error:?}");
        let known: fn() -> BoxError = || kube::Error::LinesCodecMaxLineLengthExceeded.into();
        let error = asked(&failing(known)).await.unwrap_err();
        assert!(matches!(error, kube::Error::LinesCodecMaxLineLengthExceeded), "{error:?}");
        let error = asked(&failing(known).client().into()).await.unwrap_err();
        assert!(matches!(error, kube::Error::LinesCodecMaxLineLengthExceeded), "{error:?}");
    }

    #[tokio::test]
    async fn its_client_keeps_namespace_and_expiry_of_the_client_below() {
        let transport = answering(StatusCode::OK, r#"{"metadata":{"name":"a"}}"#);
        let ends = Some(Timestamp::UNIX_EPOCH);
        let client = Transport::from(transport.client().with_valid_until(ends)).client();
        assert_eq!((client.default_namespace(), *client.valid_until()), ("shop", ends));
        let maps: Api<ConfigMap> = Api::default_namespaced(transport.client());
        assert_eq!(maps.get("a").await.unwrap().metadata.name.as_deref(), Some("a"));
    }
}
