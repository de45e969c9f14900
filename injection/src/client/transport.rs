//! The transport: the service that sends the process's requests to the API server.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::{
    FutureExt, TryFutureExt,
    future::{BoxFuture, ready},
};
use http::{Request, Response, Uri, response::Parts};
use http_body_util::BodyExt;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Client,
    client::{Body, DynBody},
    core::{Status, response::reason},
};
use serde::{Deserialize, de::DeserializeOwned};
use tower::{BoxError, Service, ServiceExt};

use super::{resource_path::ResourcePath, retry_after::set_wait, utf8::with_utf8, warnings::log_warnings};
use crate::shallow::decode_object;

/// A response whose body has yet to be read.
pub type HttpResponse = Response<Box<DynBody>>;

type ResponseFuture = BoxFuture<'static, kube::Result<HttpResponse>>;

/// The service that sends the process's requests to the API server. It also creates [`Client`]s that send through it.
///
/// A kube `Client` has one task, through which it passes every request. That costs two switches between tasks for each
/// request, and four if the client wraps another client. A `Transport` calls its layers in the task that makes the
/// request.
///
/// Tests, for which that cost does not matter, create the transport of a [`Context`](crate::Context) from a client:
///
/// ```no_run
/// # async fn example() -> Result<(), kube::Error> {
/// use reknit_injection::{Context, internal::Transport};
///
/// let transport = Transport::from(kube::Client::try_default().await?);
/// let cx = Context::new("example", transport);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, derive_more::Debug)]
#[debug("Transport {{ default_namespace: {default_namespace:?}, .. }}")]
pub struct Transport {
    send: Arc<dyn Fn(Request<Body>) -> ResponseFuture + Send + Sync>,
    default_namespace: Arc<str>,
    valid_until: Option<Timestamp>,
}

impl Transport {
    /// Creates a transport from a service, which is cloned for each request. An error of the service becomes
    /// [`kube::Error::Service`], unless it is a [`kube::Error`] itself.
    pub fn new<S>(service: S, default_namespace: &str) -> Self
    where
        S: Service<Request<Body>, Response = HttpResponse, Error: Into<BoxError>, Future: Send>
            + Clone
            + Send
            + Sync
            + 'static,
    {
        // Not an async block, which would store the service's future twice.
        let send = move |request: Request<Body>| -> ResponseFuture {
            if let Err(error) = check_uri(request.uri()) {
                return ready(Err(error)).boxed();
            }
            let response = service.clone().oneshot(request).map_err(|error| into_kube_error(error.into()));
            response.map_ok(received).boxed()
        };
        Self { send: Arc::new(send), default_namespace: default_namespace.into(), valid_until: None }
    }

    /// Creates a client that sends through this transport. Each created client has a task of its own, so create one
    /// client and clone it. Must be called within a tokio runtime.
    pub fn client(&self) -> Client {
        let send = self.send.clone();
        Client::new(tower::service_fn(move |request| send(request)), &*self.default_namespace)
            .with_valid_until(self.valid_until)
    }

    /// Sends a request and returns the response, whatever its status.
    pub fn send(&self, request: Request<Body>) -> BoxFuture<'static, kube::Result<HttpResponse>> {
        (self.send)(request)
    }

    /// Sends a request and decodes the successful response, even an object that is nested too deep for serde_json.
    ///
    /// # Errors
    ///
    /// [`kube::Error::Api`] if the API server refuses the request, [`kube::Error::SerdeError`] if the response cannot
    /// be decoded as a `T`, or the error of the connection.
    pub fn request<T: DeserializeOwned>(
        &self,
        request: Request<Vec<u8>>,
    ) -> impl Future<Output = kube::Result<T>> + Send + use<T> {
        let answer = self.request_text(request);
        async { decode_object(&answer.await?).map_err(kube::Error::SerdeError) }
    }

    /// Sends a request and returns the text of its response. Fails as [`request`](Self::request) does.
    pub fn request_text(
        &self,
        request: Request<Vec<u8>>,
    ) -> impl Future<Output = kube::Result<String>> + Send + use<> {
        let response = self.send(request.map(Body::from));
        async {
            let (head, body) = response.await?.into_parts();
            let bytes = collect_body(body).await?;
            match head.status.is_success() {
                true => String::from_utf8(bytes.into()).map_err(kube::Error::FromUtf8),
                false => Err(kube::Error::Api(error_status(&head, &bytes).boxed())),
            }
        }
    }

    /// Returns a transport that sends requests through this function.
    pub(crate) fn with_send(
        &self,
        send: impl Fn(Request<Body>) -> ResponseFuture + Send + Sync + 'static,
    ) -> Self {
        Self { send: Arc::new(send), ..self.clone() }
    }
}

impl From<Client> for Transport {
    fn from(client: Client) -> Self {
        let (default_namespace, valid_until) = (client.default_namespace().into(), *client.valid_until());
        let send = move |request| -> ResponseFuture {
            let client = client.clone();
            Box::pin(async move {
                let response = client.send(request).await?;
                Ok(received(response.map(boxed_body)))
            })
        };
        Self { send: Arc::new(send), default_namespace, valid_until }
    }
}

fn received(response: HttpResponse) -> HttpResponse {
    log_warnings(response.headers());
    with_utf8(response)
}

/// Refuses a request that a name has changed: kube puts the names of objects into URLs as they are. So with the name
/// `../../secrets/x` or `x%2Fproxy`, which a user may have written, a request would address another object or a subresource,
/// and with the name `x?dryRun=All`, a write would have no effect.
fn check_uri(uri: &Uri) -> kube::Result<()> {
    let is_dots = |segment: &str| matches!(&*segment.to_ascii_lowercase().replace("%2e", "."), "." | "..");
    let is_proxied = ResourcePath::parse(uri.path()).is_some_and(|path| path.subresource() == Some("proxy"));
    let has_slash = !is_proxied && uri.path().to_ascii_lowercase().contains("%2f");
    let is_changed = has_slash
        || uri.path().split('/').any(is_dots)
        || uri.query().is_some_and(|query| query.contains('?'));
    match is_changed {
        true => Err(kube::Error::BuildRequest(kube::core::request::Error::Validation(format!(
            "the URL {uri} contains the name of an object with a slash or a question mark, or a name of dots"
        )))),
        false => Ok(()),
    }
}

/// A request [extension](http::Extensions): the layers of a [`Transport`] must not retry the request,
/// since the caller retries it and logs the failure.
#[derive(Clone, Copy, Debug)]
pub struct NoRetry;

/// The message of a 404 about a resource that the API server does not serve.
const NO_SUCH_RESOURCE: &str = "the server could not find the requested resource";

/// The beginning of the message of a write that an admission webhook has denied. The API server takes the code, the reason and
/// the details from the answer of the webhook.
const DENIED_BY_WEBHOOK: &str = "admission webhook ";

/// Returns true if the API server answered that the object does not exist.
///
/// Any other 404 says nothing about the object: the API server does not serve the resource, because it is starting or because
/// the version is disabled, a proxy has answered, or an admission webhook has denied the write since it did not find another
/// object.
pub fn is_absence(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let is_about_an_object =
        status.message != NO_SUCH_RESOURCE && !status.message.starts_with(DENIED_BY_WEBHOOK);
    status.code == 404 && status.reason == reason::NOT_FOUND && is_about_an_object
}

/// Returns true if the API server answered to a write that the object of this resource does not exist. It refuses writes with
/// a 404 about another object, too: about the namespace, if that is gone and the object is still stored, as after a namespace
/// was finalized by force.
pub fn is_absence_of(error: &kube::Error, plural: &str) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let about = status.details.as_ref().map_or("", |details| &details.kind);
    is_absence(error) && (about.is_empty() || about == plural)
}

/// The header in each response of an API server, which shows that a response without a `Status` is not from a proxy.
pub(crate) const AUDIT_ID: &str = "audit-id";

/// The reason of an error response that is not a `Status`, as in kube.
const NO_STATUS: &str = "Failed to parse error data";

/// Returns the `Status` in an error response of the API server, with the wait that its headers ask for. The error
/// response of a proxy contains no `Status`, so its text becomes the message. The API server answers without one, too, if
/// it does not know the group and the version of a resource.
pub(crate) fn error_status(head: &Parts, body: &[u8]) -> Status {
    let mut status = status_of(body);
    status.code = head.status.as_u16();
    if status.code == 404 && status.reason == NO_STATUS && head.headers.contains_key(AUDIT_ID) {
        status = Status { reason: reason::NOT_FOUND.into(), message: NO_SUCH_RESOURCE.into(), ..status };
    }
    set_wait(&mut status, &head.headers);
    if status.message.is_empty() {
        status.message = String::from_utf8_lossy(body).trim().chars().take(200).collect();
    }
    if status.message.is_empty() {
        status.message = head.status.to_string();
    }
    status
}

/// Returns the `Status` in a body. Other JSON, such as that of a gateway, gets the reason of a response without one.
fn status_of(body: &[u8]) -> Status {
    #[derive(Deserialize)]
    struct Typed {
        #[serde(default)]
        kind: String,
        #[serde(flatten)]
        status: Status,
    }
    match serde_json::from_slice(body) {
        Ok(Typed { kind, status }) if kind == "Status" || !status.reason.is_empty() => status,
        Ok(Typed { status, .. }) => Status { reason: NO_STATUS.into(), ..status },
        Err(_) => Status::failure("", NO_STATUS),
    }
}

/// Reads a whole body.
pub(crate) async fn collect_body(body: Box<DynBody>) -> kube::Result<Bytes> {
    Ok(body.collect().await.map_err(into_kube_error)?.to_bytes())
}

/// Reads a body, or returns `None` if it has more bytes than this.
pub(crate) async fn collect_up_to(max_bytes: usize, mut body: Box<DynBody>) -> kube::Result<Option<Bytes>> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(into_kube_error)?;
        let data = frame.data_ref().map_or(&[][..], |data| data);
        if bytes.len() + data.len() > max_bytes {
            return Ok(None);
        }
        bytes.extend_from_slice(data);
    }
    Ok(Some(bytes.freeze()))
}

/// Returns true if the error response was not a `Status`, so that something in place of the API server may have sent it.
pub(crate) fn is_without_status(status: &Status) -> bool {
    status.reason == NO_STATUS
}

/// Creates a body from bytes.
pub(crate) fn full_body(bytes: Bytes) -> Box<DynBody> {
    boxed_body(Body::from(bytes))
}

fn boxed_body(body: Body) -> Box<DynBody> {
    Box::new(body.map_err(BoxError::from))
}

/// Converts the error of a layer. A `kube::Error` stays as it is, and any other becomes `kube::Error::Service`.
pub(crate) fn into_kube_error(error: BoxError) -> kube::Error {
    error.downcast().map_or_else(kube::Error::Service, |error| *error)
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api,
        api::{DeleteParams, ListParams},
    };

    use super::*;
    use crate::testing::Log;

    #[derive(Debug, thiserror::Error)]
    #[error("a layer failed")]
    struct LayerError;

    /// Creates a transport that responds to every request with this code and body.
    fn responding(code: StatusCode, body: &'static str) -> Transport {
        let service = tower::service_fn(move |_: Request<Body>| async move {
            let mut response = Response::new(full_body(Bytes::from_static(body.as_bytes())));
            *response.status_mut() = code;
            Ok::<_, BoxError>(response)
        });
        Transport::new(service, "shop")
    }

    async fn request_config_map(transport: &Transport) -> kube::Result<ConfigMap> {
        transport.request(Request::new(Vec::new())).await
    }

    #[tokio::test]
    async fn a_success_is_decoded_and_an_error_has_the_status_of_the_response() {
        let config_map =
            request_config_map(&responding(StatusCode::OK, r#"{"data":{"a":"b"}}"#)).await.unwrap();
        assert_eq!(config_map.data.unwrap()["a"], "b");
        let not_found =
            r#"{"kind":"Status","status":"Failure","message":"gone","reason":"NotFound","code":404}"#;
        let error = request_config_map(&responding(StatusCode::NOT_FOUND, not_found)).await.unwrap_err();
        assert!(
            matches!(error, kube::Error::Api(status) if status.is_not_found() && status.message == "gone")
        );
        let error = request_config_map(&responding(StatusCode::BAD_GATEWAY, "<html>")).await.unwrap_err();
        assert!(
            matches!(error, kube::Error::Api(status) if status.code == 502 && status.message == "<html>")
        );
        let by_a_proxy = r#"{"error":"slow down"}"#;
        let error =
            request_config_map(&responding(StatusCode::TOO_MANY_REQUESTS, by_a_proxy)).await.unwrap_err();
        assert!(
            matches!(&error, kube::Error::Api(status) if status.code == 429 && status.message == by_a_proxy),
            "{error:?}"
        );
    }

    #[tokio::test]
    async fn only_a_404_about_the_object_shows_that_it_does_not_exist() {
        for (body, expected) in [
            (r#"{"kind":"Status","message":"lamps \"x\" not found","reason":"NotFound","code":404}"#, true),
            (
                r#"{"kind":"Status","message":"the server could not find the requested resource","reason":"NotFound"}"#,
                false,
            ),
            (
                r#"{"kind":"Status","message":"admission webhook \"a\" denied the request: lamps \"y\" not found",
                    "reason":"NotFound","details":{"name":"y","kind":"lamps"}}"#,
                false,
            ),
            ("404 page not found", false),
            (r#"{"error":"default backend"}"#, false),
        ] {
            let error = request_config_map(&responding(StatusCode::NOT_FOUND, body)).await.unwrap_err();
            assert_eq!(is_absence(&error), expected, "{body}");
        }
    }

    #[tokio::test]
    async fn a_404_about_another_object_than_that_of_a_write_does_not_show_its_absence() {
        let body = r#"{"kind":"Status","message":"namespaces \"shop\" not found","reason":"NotFound","code":404,
            "details":{"name":"shop","kind":"namespaces"}}"#;
        let error = request_config_map(&responding(StatusCode::NOT_FOUND, body)).await.unwrap_err();
        assert!(is_absence_of(&error, "namespaces") && !is_absence_of(&error, "configmaps"));
        let body = r#"{"kind":"Status","message":"gone","reason":"NotFound","code":404}"#;
        let error = request_config_map(&responding(StatusCode::NOT_FOUND, body)).await.unwrap_err();
        assert!(is_absence_of(&error, "configmaps"));
    }

    #[tokio::test]
    async fn errors_of_layers_and_of_kube_keep_their_type() {
        let failing = |error: fn() -> BoxError| {
            let service =
                tower::service_fn(move |_: Request<Body>| async move { Err::<HttpResponse, _>(error()) });
            Transport::new(service, "shop")
        };
        let error = request_config_map(&failing(|| LayerError.into())).await.unwrap_err();
        assert!(matches!(&error, kube::Error::Service(cause) if cause.is::<LayerError>()), "{error:?}");
        let kube_error: fn() -> BoxError = || kube::Error::LinesCodecMaxLineLengthExceeded.into();
        let error = request_config_map(&failing(kube_error)).await.unwrap_err();
        assert!(matches!(error, kube::Error::LinesCodecMaxLineLengthExceeded), "{error:?}");
        let error = request_config_map(&failing(kube_error).client().into()).await.unwrap_err();
        assert!(matches!(error, kube::Error::LinesCodecMaxLineLengthExceeded), "{error:?}");
    }

    #[tokio::test]
    async fn a_client_of_a_transport_keeps_the_default_namespace_and_expiry_of_the_wrapped_client() {
        let transport = responding(StatusCode::OK, r#"{"metadata":{"name":"a"}}"#);
        let valid_until = Some(Timestamp::UNIX_EPOCH);
        let client = Transport::from(transport.client().with_valid_until(valid_until)).client();
        assert_eq!((client.default_namespace(), *client.valid_until()), ("shop", valid_until));
        let maps: Api<ConfigMap> = Api::default_namespaced(transport.client());
        assert_eq!(maps.get("a").await.unwrap().metadata.name.as_deref(), Some("a"));
    }

    #[tokio::test]
    async fn a_request_that_a_name_has_changed_is_not_sent() {
        let transport = responding(StatusCode::OK, r#"{"metadata":{"name":"a"}}"#);
        let maps: Api<ConfigMap> = Api::namespaced(transport.client(), "shop");
        for name in ["..", "../../secrets/x", "a/./b", "%2E%2e", "x?dryRun=All", "x%2fproxy%2Fy"] {
            let error = maps.delete(name, &DeleteParams::default()).await.unwrap_err();
            assert!(matches!(error, kube::Error::BuildRequest(_)), "{name}: {error:?}");
        }
        maps.get("a..b").await.unwrap();
        let selected = ListParams::default().labels("a in (b, c)").fields("metadata.name=x?");
        // The response is not a list, but the request is sent.
        assert!(matches!(maps.list(&selected).await, Err(kube::Error::SerdeError(_))));
    }

    #[tokio::test]
    async fn a_warning_of_the_api_server_is_logged_once() {
        let log = Log::start();
        let service = tower::service_fn(move |_: Request<Body>| async move {
            let response = Response::builder().header("warning", r#"299 - "unknown field \"spec.volts\"""#);
            Ok::<_, BoxError>(response.body(full_body(Bytes::from_static(b"{}"))).unwrap())
        });
        let transport = Transport::new(service, "shop");
        for _ in 0..2 {
            request_config_map(&transport).await.unwrap();
        }
        let lines = log.lines("the API server warns");
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("spec.volts"), "{lines:?}");
    }
}
