//! The list and watch requests of a reflector.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, header::ACCEPT};
use kube::{
    Resource,
    api::DynamicObject,
    client::{Body, DynBody},
    core::{
        Request,
        discovery::ApiResource,
        params::{ListParams, WatchParams},
    },
};
use tokio::time::timeout;

use super::{Failure, watch::Lines};
use crate::{
    client::{NoRetry, Transport, collect, refusal},
    informer::selection::Selection,
};

/// The number of items in a page. Smaller pages need more requests and save no memory.
pub(crate) const PAGE: u32 = 500;

/// The time limit of a request, longer than any healthy one takes. kube's client sets no limit.
const TIMEOUT: Duration = Duration::from_secs(60);

const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// The list and watch requests of one selection of a resource.
pub(super) struct Requests {
    transport: Transport,
    path: Request,
    labels: Option<String>,
    fields: Option<String>,
    metadata: bool,
}

impl Requests {
    pub(super) fn new(
        transport: Transport,
        kind: &ApiResource,
        selection: &Selection,
        metadata: bool,
    ) -> Self {
        Self {
            transport,
            path: Request::new(DynamicObject::url_path(kind, selection.in_namespace())),
            labels: selection.label_selector(),
            fields: selection.field_selector(),
            metadata,
        }
    }

    /// Requests a page of at most `limit` items, or the whole list. `after` is the token of the page before.
    pub(super) async fn page(&self, limit: Option<u32>, after: Option<String>) -> Result<Bytes, Failure> {
        let params = ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            limit,
            continue_token: after,
            ..ListParams::default()
        };
        let request = self.path.list(&params).map_err(kube::Error::BuildRequest)?;
        let mut request = self.prepared(request, METADATA_LIST);
        if params.continue_token.is_some() {
            request.extensions_mut().remove::<NoRetry>(); // The transport may retry a page: after a failure the whole list would start over.
        }
        fetch(&self.transport, request).await
    }

    /// Opens a watch of the events after the version `from`. The server ends it after `lasting`.
    pub(super) async fn watch(&self, from: &str, lasting: Duration) -> Result<Lines, Failure> {
        let params = WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            timeout: u32::try_from(lasting.as_secs()).ok(),
            bookmarks: true,
            ..WatchParams::default()
        };
        let request = self.path.watch(&params, from).map_err(kube::Error::BuildRequest)?;
        let opening = open(&self.transport, self.prepared(request, METADATA));
        let body = timeout(TIMEOUT, opening).await.unwrap_or(Err(Failure::Timeout(TIMEOUT)))?;
        Ok(Lines::of(body))
    }

    fn prepared(&self, mut request: http::Request<Vec<u8>>, what: &'static str) -> http::Request<Vec<u8>> {
        request.extensions_mut().insert(NoRetry);
        if self.metadata {
            request.headers_mut().insert(ACCEPT, HeaderValue::from_static(what));
        }
        request
    }
}

/// Sends a request and returns the body of a successful answer as a stream.
///
/// kube's `Client::request` copies each body twice, and logs each answer that is not a `Status`.
async fn open(transport: &Transport, request: http::Request<Vec<u8>>) -> Result<Box<DynBody>, Failure> {
    let answer = transport.send(request.map(Body::from)).await?;
    let code = answer.status();
    let body = answer.into_body();
    if code.is_success() {
        return Ok(body);
    }
    let bytes = collect(body).await?;
    Err(Failure::of_code(code.as_u16(), refusal(code, &bytes).message))
}

/// Sends a request and returns the body of a successful answer.
pub(crate) async fn fetch(transport: &Transport, request: http::Request<Vec<u8>>) -> Result<Bytes, Failure> {
    let whole = async { Ok(collect(open(transport, request).await?).await?) };
    timeout(TIMEOUT, whole).await.unwrap_or(Err(Failure::Timeout(TIMEOUT)))
}
