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

use super::{Failure, lines::Lines, page_size::MAX_PAGE};
use crate::{
    client::{NoRetry, Transport, collect_body, collect_up_to, error_status},
    informer::selection::Selection,
};

/// The time limit of a request. A healthy server needs less. kube's client sets no limit.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The media types of metadata, and of whole objects for an aggregated API server that knows no others. Only the metadata
/// of whole objects is cached.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// The list and watch requests of one part of a selection.
pub(super) struct Requests {
    transport: Transport,
    path: Request,
    labels: Option<String>,
    fields: Option<String>,
    is_metadata_only: bool,
}

impl Requests {
    pub(super) fn new(
        transport: Transport,
        kind: &ApiResource,
        selection: &Selection,
        is_metadata_only: bool,
    ) -> Self {
        Self {
            transport,
            path: Request::new(DynamicObject::url_path(kind, selection.namespace_of_part())),
            labels: selection.label_selector(),
            fields: selection.field_selector(),
            is_metadata_only,
        }
    }

    /// Requests a page of at most `limit` items, or the whole list without a limit. The first page has no
    /// `continue_token`. Fails if several items have more than [`MAX_PAGE`] bytes.
    pub(super) async fn page(
        &self,
        limit: Option<u32>,
        continue_token: Option<String>,
    ) -> Result<Bytes, Failure> {
        let params = ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            limit,
            continue_token,
            ..ListParams::default()
        };
        let request = self.path.list(&params).map_err(kube::Error::BuildRequest)?;
        let max_bytes = limit.filter(|items| *items > 1).map_or(usize::MAX, |_| MAX_PAGE);
        fetch_up_to(max_bytes, &self.transport, self.prepare(request, METADATA_LIST)).await
    }

    /// Opens a watch of the events after this version. The server ends the watch after this duration.
    pub(super) async fn watch(&self, version: &str, duration: Duration) -> Result<Lines, Failure> {
        let params = WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            timeout: u32::try_from(duration.as_secs()).ok(),
            bookmarks: true,
            ..WatchParams::default()
        };
        let request = self.path.watch(&params, version).map_err(kube::Error::BuildRequest)?;
        let opening = open(&self.transport, self.prepare(request, METADATA));
        let body = timeout(TIMEOUT, opening).await.unwrap_or(Err(Failure::Timeout(TIMEOUT)))?;
        Ok(Lines::of(body))
    }

    /// Forbids retries. If the informer caches only metadata, asks for these media types.
    fn prepare(
        &self,
        mut request: http::Request<Vec<u8>>,
        metadata_types: &'static str,
    ) -> http::Request<Vec<u8>> {
        request.extensions_mut().insert(NoRetry);
        if self.is_metadata_only {
            request.headers_mut().insert(ACCEPT, HeaderValue::from_static(metadata_types));
        }
        request
    }
}

/// Sends a request and returns the body of a successful response as a stream.
///
/// kube's `Client::request` would copy each body twice, and log each error response that is not a `Status`.
async fn open(transport: &Transport, request: http::Request<Vec<u8>>) -> Result<Box<DynBody>, Failure> {
    let (head, body) = transport.send(request.map(Body::from)).await?.into_parts();
    if head.status.is_success() {
        return Ok(body);
    }
    let bytes = collect_body(body).await?;
    Err(Failure::from_status(error_status(&head, &bytes)))
}

/// Sends a request and returns the body of a successful response.
pub(crate) async fn fetch(transport: &Transport, request: http::Request<Vec<u8>>) -> Result<Bytes, Failure> {
    fetch_up_to(usize::MAX, transport, request).await
}

/// Does the same as [`fetch`], unless the body has more bytes than this.
async fn fetch_up_to(
    max_bytes: usize,
    transport: &Transport,
    request: http::Request<Vec<u8>>,
) -> Result<Bytes, Failure> {
    let body =
        async { collect_up_to(max_bytes, open(transport, request).await?).await?.ok_or(Failure::TooLarge) };
    timeout(TIMEOUT, body).await.unwrap_or(Err(Failure::Timeout(TIMEOUT)))
}
