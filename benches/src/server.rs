//! An API server within the process that costs almost no time, because it sends prepared bytes.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use futures::{SinkExt, StreamExt, channel::mpsc};
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::{Client, client::Body};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tokio::sync::watch;

use crate::{addressable_service, service};

type ServerResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

const PAGE: usize = 500;
pub(crate) const NAMESPACES: usize = 10;
/// The number of chunks that a watch buffers for its reader.
const WATCH_BUFFER: usize = 16;
/// The increment of the resourceVersion by each change, so that the new version is higher than all versions before.
const CHANGE_STEP: usize = 10_000_000;

/// A server with AddressableServices and the Services that they name. It accepts status writes and sends them to its
/// watches.
#[derive(Clone)]
pub struct Server(Arc<State>);

struct State {
    services: Collection,
    addressable_services: Collection,
    version: AtomicU64,
    /// The number of chunks that watches have sent: without other events, one for each status write.
    echoed: watch::Sender<usize>,
}

/// The objects of one Kind, as pages of their list, and the open watches.
struct Collection {
    pages: RwLock<Vec<Bytes>>,
    /// The part of each object's JSON that a status write does not change, by the path of the status.
    unchanged_fields: HashMap<String, String>,
    watches: watch::Sender<Vec<mpsc::Sender<Bytes>>>,
}

#[derive(Deserialize)]
struct Patch<'a> {
    #[serde(borrow)]
    status: &'a RawValue,
}

/// Returns the namespace and the name of the object with this number.
pub(crate) fn namespace_and_name(number: usize) -> (String, String) {
    (format!("bench-{}", number % NAMESPACES), format!("web-{number:07}"))
}

/// Adds the metadata that the API server sets. The version derives from the number.
pub(crate) fn with_server_fields(mut object: Value, number: usize) -> Value {
    let metadata = &mut object["metadata"];
    metadata["uid"] = format!("00000000-0000-4000-8000-{number:012}").into();
    metadata["resourceVersion"] = (number + 1).to_string().into();
    metadata["generation"] = 1.into();
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    object
}

impl Server {
    /// Creates a server with this many objects of each Kind, without a status.
    pub fn with_objects(pairs: usize) -> Self {
        let version = 1 + pairs as u64;
        let (mut services, mut addressable_services) = (Vec::new(), Vec::new());
        for number in 0..pairs {
            let (namespace, name) = namespace_and_name(number);
            services.push(with_server_fields(service(&namespace, &name), number));
            addressable_services.push(with_server_fields(addressable_service(&namespace, &name), number));
        }
        Self(Arc::new(State {
            services: Collection::of(&services, version),
            addressable_services: Collection::of(&addressable_services, version),
            version: AtomicU64::new(version),
            echoed: watch::Sender::new(0),
        }))
    }

    /// Returns a client of this server.
    pub fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request| {
            let server = server.clone();
            async move { Ok::<_, kube::Error>(server.handle(request).await) }
        });
        Client::new(service, "default")
    }

    /// Waits until this many status writes were sent to a watch.
    pub async fn wait_for_echoes(&self, writes: usize) {
        let mut echoed = self.0.echoed.subscribe();
        // Cannot fail: the sender is a field of this server.
        let _ = echoed.wait_for(|echoed| *echoed >= writes).await;
    }

    /// Waits until both Kinds are watched.
    pub async fn wait_until_watched(&self) {
        self.wait_for_service_watches(1).await;
        let mut watches = self.0.addressable_services.watches.subscribe();
        let _ = watches.wait_for(|watches| !watches.is_empty()).await;
    }

    /// Waits until this many watches of Services have been opened.
    pub async fn wait_for_service_watches(&self, times: usize) {
        let mut watches = self.0.services.watches.subscribe();
        let _ = watches.wait_for(|watches| watches.len() >= times).await;
    }

    /// Changes one in `one_in` Services. Lists show the change, watches do not.
    pub fn change_services(&self, one_in: usize) {
        let mut pages = self.0.services.pages.write().unwrap_or_else(PoisonError::into_inner);
        for page in pages.iter_mut() {
            *page = with_changes(page, one_in);
        }
    }

    /// Sends lines to the watches of Services. Waits while their buffers are full.
    pub async fn send_service_events(&self, lines: Bytes) {
        self.0.services.send_to_watches(lines).await;
    }

    /// Sends lines to the watches of AddressableServices.
    pub async fn send_addressable_service_events(&self, lines: Bytes) {
        self.0.addressable_services.send_to_watches(lines).await;
    }

    async fn handle(&self, request: Request<Body>) -> ServerResponse {
        let (head, body) = request.into_parts();
        let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
        let collection = match path.ends_with("/services") {
            true => &self.0.services,
            false => &self.0.addressable_services,
        };
        match (head.method == Method::PATCH, query.contains("watch=true")) {
            (true, _) => match body.collect().await {
                Ok(body) => self.write(path, &body.to_bytes()).await,
                Err(_) => bad_request(),
            },
            (_, true) => self.watch(collection),
            _ => collection.page(query),
        }
    }

    async fn write(&self, path: &str, body: &[u8]) -> ServerResponse {
        let collection = &self.0.addressable_services;
        let (Some(unchanged), Ok(patch)) =
            (collection.unchanged_fields.get(path), serde_json::from_slice::<Patch<'_>>(body))
        else {
            return bad_request();
        };
        let version = self.0.version.fetch_add(1, Ordering::Relaxed) + 1;
        let status = patch.status;
        let object = format!(r#"{{"status":{status},"metadata":{{"resourceVersion":"{version}",{unchanged}"#);
        collection.send_to_watches(format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n").into()).await;
        response(200, object.into())
    }

    fn watch(&self, collection: &Collection) -> ServerResponse {
        let (sender, lines) = mpsc::channel(WATCH_BUFFER);
        collection.watches.send_modify(|watches| watches.push(sender));
        let state = self.0.clone();
        let frames = lines.map(move |line| {
            state.echoed.send_modify(|echoed| *echoed += 1);
            Ok(Frame::data(line))
        });
        Response::new(StreamBody::new(frames).boxed_unsync())
    }
}

impl Collection {
    fn of(objects: &[Value], version: u64) -> Self {
        let pages = objects.len().div_ceil(PAGE).max(1);
        let page = |index: usize| {
            let next = if index + 1 < pages { (index + 1).to_string() } else { String::new() };
            let items = &objects[index * PAGE..objects.len().min((index + 1) * PAGE)];
            let list = json!({
                "metadata": {"resourceVersion": version.to_string(), "continue": next},
                "items": items,
            });
            Bytes::from(list.to_string())
        };
        Self {
            pages: RwLock::new((0..pages).map(page).collect()),
            unchanged_fields: objects
                .iter()
                .map(|object| (status_path(object), unchanged_fields(object)))
                .collect(),
            watches: watch::Sender::default(),
        }
    }

    fn page(&self, query: &str) -> ServerResponse {
        let token = query.split('&').find_map(|pair| pair.strip_prefix("continue="));
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        let page = pages.get(token.and_then(|token| token.parse().ok()).unwrap_or(0));
        page.map_or_else(bad_request, |page| response(200, page.clone()))
    }

    async fn send_to_watches(&self, lines: Bytes) {
        let watches = self.watches.borrow().clone();
        for mut watch in watches {
            let _ = watch.send(lines.clone()).await; // fails if the watch is closed
        }
    }
}

/// Returns the page with one in `one_in` items changed. A page that cannot be decoded is returned unchanged.
fn with_changes(page: &Bytes, one_in: usize) -> Bytes {
    let Ok(mut list) = serde_json::from_slice::<Value>(page) else { return page.clone() };
    for item in list["items"].as_array_mut().into_iter().flatten().step_by(one_in) {
        let version: usize =
            item["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok()).unwrap_or(0);
        item["metadata"]["resourceVersion"] = (version + CHANGE_STEP).to_string().into();
        item["metadata"]["labels"]["bench.reknit.dev/changed"] = "yes".into();
    }
    let version: usize =
        list["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok()).unwrap_or(0);
    list["metadata"]["resourceVersion"] = (version + CHANGE_STEP).to_string().into();
    list.to_string().into()
}

fn status_path(object: &Value) -> String {
    let field = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (field("namespace"), field("name"));
    format!("/apis/samples.knative.dev/v1alpha1/namespaces/{namespace}/addressableservices/{name}/status")
}

/// Returns the JSON that `Server::write` appends to the status and the resourceVersion: the other fields of the
/// metadata, and then those of the object.
fn unchanged_fields(object: &Value) -> String {
    let mut object = object.clone();
    let mut metadata = object["metadata"].take();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("metadata");
        fields.remove("status");
    }
    if let Some(fields) = metadata.as_object_mut() {
        fields.remove("resourceVersion");
    }
    let (metadata, object) = (metadata.to_string(), object.to_string());
    format!("{},{}", &metadata[1..], &object[1..])
}

fn bad_request() -> ServerResponse {
    response(400, Bytes::from_static(br#"{"kind":"Status","status":"Failure","code":400}"#))
}

fn response(code: u16, body: Bytes) -> ServerResponse {
    let mut response = Response::new(Full::new(body).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or_default();
    response
}
