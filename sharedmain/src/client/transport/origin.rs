//! The origin of a response: an API server, or something in its place, such as a web site or a proxy.

use http::{
    HeaderMap, HeaderName, HeaderValue, Request,
    header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE},
};
use kube::client::Body;
use reknit_injection::internal::{HttpResponse, ResourcePath};

const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// The error of a successful response that no API server sends. Without it, the error would be that of the decoder, which
/// looks as if an object could not be decoded.
#[derive(Debug, thiserror::Error)]
#[error(
    "the response is not from a Kubernetes API server: it {0}; check the address of the server and the proxies in between"
)]
pub(crate) struct NotFromApiServer(String);

/// The responses to a request that only an API server sends.
pub(super) struct Origin {
    /// True if a web page is not an answer. A workload behind the API server may answer with one.
    is_api: bool,
    /// True if the request allows no compression.
    is_plain: bool,
}

impl Origin {
    /// Returns the origin of the response to a request, and asks for a response without compression unless the request
    /// has a preference: a request without this header allows any.
    pub(super) fn of(request: &mut Request<Body>) -> Self {
        let is_api =
            ResourcePath::parse(request.uri().path()).is_some_and(|path| path.subresource() != Some("proxy"));
        let accepted = request.headers_mut().entry(ACCEPT_ENCODING).or_insert(IDENTITY);
        Self { is_api, is_plain: *accepted == IDENTITY }
    }

    /// Fails for a successful response that is not from an API server.
    pub(super) fn check(&self, response: &HttpResponse) -> Result<(), NotFromApiServer> {
        let headers = response.headers();
        let (media_type, encoding) = (text(headers, CONTENT_TYPE), text(headers, CONTENT_ENCODING));
        match response.status().is_success() && self.is_api {
            true if media_type.starts_with("text/html") => Err(NotFromApiServer("is a web page".into())),
            true if self.is_plain && !matches!(&*encoding, "" | "identity") => {
                Err(NotFromApiServer(format!("is compressed ({encoding})")))
            }
            _ => Ok(()),
        }
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> String {
    let value =
        headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).trim().to_lowercase());
    value.unwrap_or_default()
}
