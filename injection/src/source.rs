//! How a selection of a resource is listed and watched: requests, pages and lines.

use std::{borrow::Cow, ops::Range, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, header::ACCEPT};
use http_body_util::BodyExt;
use kube::{
    Resource,
    api::DynamicObject,
    client::DynBody,
    core::{
        Request, Status,
        discovery::ApiResource,
        params::{ListParams, WatchParams},
    },
};
use tokio::time::timeout;

use crate::{
    answer::{Failure, PATIENCE, fetch, open},
    extensions::NotRepeated,
    raw::Raw,
    scan::{self, Scanner},
    selection::Selection,
    transport::{Transport, as_kube},
};

/// Items a page: fewer cost more requests and save no memory.
pub(crate) const PAGE: u32 = 500;

/// A line of a watch is one object, and etcd holds none larger than a few MiB.
const LONGEST_LINE: usize = 64 << 20;

const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// A selection of a resource at the API server.
pub(crate) struct Source {
    transport: Transport,
    path: Request,
    labels: Option<String>,
    fields: Option<String>,
    metadata: bool,
}

/// What a page of a list says of the whole of it.
#[derive(Default)]
pub(crate) struct Page<'a> {
    pub(crate) resource_version: Cow<'a, str>,
    /// What asks for the next page; none on the last.
    pub(crate) continue_token: Option<String>,
}

/// A line of a watch.
pub(crate) struct Line<'a> {
    pub(crate) event: Cow<'a, str>,
    pub(crate) object: Item<'a>,
    /// The object as it is written.
    text: &'a str,
}

/// An object, or why not even its metadata can be read.
pub(crate) type Item<'a> = scan::Result<Raw<'a>>;

impl Source {
    pub(crate) fn new(
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

    /// A page of at most `limit` items, or all of them; `after` is what the page before said.
    pub(crate) async fn page(&self, limit: Option<u32>, after: Option<String>) -> Result<Bytes, Failure> {
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
            request.extensions_mut().remove::<NotRepeated>(); // the whole list would have to begin again
        }
        fetch(&self.transport, request).await
    }

    /// The events after version `from`; the server ends it after `lasting`.
    pub(crate) async fn watch(&self, from: &str, lasting: Duration) -> Result<Lines, Failure> {
        let params = WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            timeout: u32::try_from(lasting.as_secs()).ok(),
            bookmarks: true,
            ..WatchParams::default()
        };
        let request = self.path.watch(&params, from).map_err(kube::Error::BuildRequest)?;
        let opening = open(&self.transport, self.prepared(request, METADATA));
        let body = timeout(PATIENCE, opening).await.unwrap_or(Err(Failure::Silence(PATIENCE)))?;
        Ok(Lines { body, buffer: Vec::new(), line: 0..0 })
    }

    fn prepared(&self, mut request: http::Request<Vec<u8>>, what: &'static str) -> http::Request<Vec<u8>> {
        request.extensions_mut().insert(NotRepeated);
        if self.metadata {
            request.headers_mut().insert(ACCEPT, HeaderValue::from_static(what));
        }
        request
    }
}

impl<'a> Page<'a> {
    /// Hands out the items on the way, each with its text, also of what turns out to be no list further on. One whose
    /// metadata cannot be read must not fail the others.
    pub(crate) fn read(bytes: &'a [u8], mut item: impl FnMut(Item<'a>, &'a str)) -> Result<Self, Failure> {
        let (mut page, mut has_items) = (None, false);
        let read = |scanner: &mut Scanner<'a>| {
            scanner.object(|name, scanner| {
                match &*name {
                    "metadata" => page = Some(Self::scan(scanner)?),
                    "items" => {
                        has_items = true;
                        if !scanner.accepts_null() {
                            scanner.array(|scanner| {
                                scanner.attempt(Raw::scan).map(|(raw, text)| item(raw, text))
                            })?;
                        }
                    }
                    _ => drop(scanner.value()?),
                }
                Ok(())
            })
        };
        Scanner::over(text(bytes)?, read).map_err(Failure::malformed)?;
        // What has no items is no list, and must not be taken for an empty one.
        page.filter(|_| has_items).ok_or_else(|| Failure::malformed("it is no list"))
    }

    fn scan(scanner: &mut Scanner<'a>) -> scan::Result<Self> {
        let mut page = Self::default();
        scanner.object(|name, scanner| {
            match &*name {
                "resourceVersion" => page.resource_version = scanner.string()?,
                "continue" => {
                    page.continue_token =
                        scanner.string_or_null()?.filter(|token| !token.is_empty()).map(Into::into)
                }
                _ => drop(scanner.value()?),
            }
            Ok(())
        })?;
        Ok(page)
    }
}

impl<'a> Line<'a> {
    pub(crate) fn read(line: &'a [u8]) -> Result<Self, Failure> {
        let (mut event, mut object) = (None, None);
        let read = |scanner: &mut Scanner<'a>| {
            scanner.object(|name, scanner| {
                match &*name {
                    "type" => event = Some(scanner.string()?),
                    "object" => object = Some(scanner.attempt(Raw::scan)?),
                    _ => drop(scanner.value()?),
                }
                Ok(())
            })
        };
        Scanner::over(text(line)?, read).map_err(Failure::malformed)?;
        match (event, object) {
            (Some(event), Some((object, text))) => Ok(Self { event, object, text }),
            _ => Err(Failure::malformed("it is no event")),
        }
    }

    /// What an `ERROR` event says.
    pub(crate) fn error(&self) -> Failure {
        match serde_json::from_str::<Status>(self.text) {
            Ok(status) => Failure::of_event(&status),
            Err(_) => Failure::Watch("it does not say why".into()),
        }
    }
}

/// All of it is looked at once, which serde_json would do string by string.
fn text(bytes: &[u8]) -> Result<&str, Failure> {
    std::str::from_utf8(bytes).map_err(Failure::malformed)
}

/// The lines of an answer that goes on.
pub(crate) struct Lines {
    body: Box<DynBody>,
    buffer: Vec<u8>,
    /// The one handed out last; what follows it has not been looked at.
    line: Range<usize>,
}

impl Lines {
    /// The next line; none once the server has ended the answer. What is cut off in the middle is no line.
    pub(crate) async fn next(&mut self) -> Result<Option<&[u8]>, Failure> {
        let mut start = self.line.end;
        let mut looked = start;
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.buffer[looked..]) {
                let end = looked + end;
                self.line = start..end + 1;
                return Ok(Some(&self.buffer[start..end]));
            }
            self.buffer.drain(..start);
            (start, self.line) = (0, 0..0);
            looked = self.buffer.len();
            if !self.read_more().await? {
                return Ok(None);
            }
        }
    }

    async fn read_more(&mut self) -> Result<bool, Failure> {
        tokio::task::consume_budget().await;
        let Some(frame) = self.body.frame().await else { return Ok(false) };
        if let Some(data) = frame.map_err(as_kube)?.data_ref() {
            self.buffer.extend_from_slice(data);
        }
        if self.buffer.len() > LONGEST_LINE {
            return Err(Failure::Broken(format!("an event is longer than {LONGEST_LINE} bytes")));
        }
        Ok(true)
    }
}
