//! An API server within the process that costs almost nothing: it sends prepared bytes.

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

use crate::{addressable_service, ready_status, service};

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

const PAGE: usize = 500;
const NAMESPACES: usize = 10;
/// The number of chunks that wait for the reader of a watch.
const QUEUED: usize = 16;
/// The step between versions, above all versions so far.
const CHANGED: usize = 10_000_000;

/// A server with AddressableServices and the Services that they name. It accepts status writes and sends them to its
/// watches.
#[derive(Clone)]
pub struct Server(Arc<State>);

struct State {
    services: Kind,
    addressable_services: Kind,
    version: AtomicU64,
    /// The number of status writes that were sent to watches.
    echoed: watch::Sender<usize>,
}

struct Kind {
    pages: RwLock<Vec<Bytes>>,
    /// Each object without the fields that a status write changes, by the path of its status.
    rests: HashMap<String, String>,
    watches: watch::Sender<Vec<mpsc::Sender<Bytes>>>,
}

#[derive(Deserialize)]
struct Patch<'a> {
    #[serde(borrow)]
    status: &'a RawValue,
}

/// The namespace and name of the object of this number.
pub(crate) fn place(number: usize) -> (String, String) {
    (format!("bench-{}", number % NAMESPACES), format!("web-{number:07}"))
}

/// The object as the API server stores it, with its number as its version.
pub(crate) fn stored(mut object: Value, number: usize) -> Value {
    let metadata = &mut object["metadata"];
    metadata["uid"] = format!("00000000-0000-4000-8000-{number:012}").into();
    metadata["resourceVersion"] = (number + 1).to_string().into();
    metadata["generation"] = 1.into();
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    object
}

impl Server {
    /// A server with this many objects of each Kind, Ready or without a status.
    pub fn holding(pairs: usize, ready: bool) -> Self {
        let version = 1 + pairs as u64;
        let (mut services, mut addressable_services) = (Vec::new(), Vec::new());
        for number in 0..pairs {
            let (namespace, name) = place(number);
            services.push(stored(service(&namespace, &name), number));
            let mut object = stored(addressable_service(&namespace, &name), number);
            if ready {
                object["status"] = ready_status(&namespace, &name)["status"].take();
            }
            addressable_services.push(object);
        }
        Self(Arc::new(State {
            services: Kind::of(&services, version),
            addressable_services: Kind::of(&addressable_services, version),
            version: AtomicU64::new(version),
            echoed: watch::Sender::new(0),
        }))
    }

    /// Returns a client of this server.
    pub fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request| {
            let server = server.clone();
            async move { Ok::<_, kube::Error>(server.answer(request).await) }
        });
        Client::new(service, "default")
    }

    /// Waits until this many status writes were sent to a watch.
    pub async fn echoed(&self, writes: usize) {
        let mut echoed = self.0.echoed.subscribe();
        // The sender is a field of this server, so this cannot fail.
        let _ = echoed.wait_for(|echoed| *echoed >= writes).await;
    }

    /// Waits until both Kinds are watched.
    pub async fn watched(&self) {
        self.watched_services(1).await;
        let mut watches = self.0.addressable_services.watches.subscribe();
        let _ = watches.wait_for(|watches| !watches.is_empty()).await;
    }

    /// Waits until Services have been watched this many times.
    pub async fn watched_services(&self, times: usize) {
        let mut watches = self.0.services.watches.subscribe();
        let _ = watches.wait_for(|watches| watches.len() >= times).await;
    }

    /// Changes one in `one_in` Services, which lists show and watches do not.
    pub fn change_services(&self, one_in: usize) {
        let mut pages = self.0.services.pages.write().unwrap_or_else(PoisonError::into_inner);
        for page in pages.iter_mut() {
            *page = changed(page, one_in);
        }
    }

    /// Sends lines to the watches of Services. Waits while their queues are full.
    pub async fn tell_of_services(&self, lines: Bytes) {
        self.0.services.tell(lines).await;
    }

    /// Sends lines to the watches of AddressableServices.
    pub async fn tell_of_addressable_services(&self, lines: Bytes) {
        self.0.addressable_services.tell(lines).await;
    }

    async fn answer(&self, request: Request<Body>) -> Answer {
        let (head, body) = request.into_parts();
        let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
        let kind = match path.ends_with("/services") {
            true => &self.0.services,
            false => &self.0.addressable_services,
        };
        match (head.method == Method::PATCH, query.contains("watch=true")) {
            (true, _) => match body.collect().await {
                Ok(body) => self.write(path, &body.to_bytes()).await,
                Err(_) => refused(),
            },
            (_, true) => self.watch(kind),
            _ => kind.page(query),
        }
    }

    async fn write(&self, path: &str, body: &[u8]) -> Answer {
        let kind = &self.0.addressable_services;
        let (Some(rest), Ok(patch)) = (kind.rests.get(path), serde_json::from_slice::<Patch<'_>>(body))
        else {
            return refused();
        };
        let version = self.0.version.fetch_add(1, Ordering::Relaxed) + 1;
        let status = patch.status;
        let object = format!(r#"{{"status":{status},"metadata":{{"resourceVersion":"{version}",{rest}"#);
        kind.tell(format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n").into()).await;
        answered(200, object.into())
    }

    fn watch(&self, kind: &Kind) -> Answer {
        let (tell, told) = mpsc::channel(QUEUED);
        kind.watches.send_modify(|watches| watches.push(tell));
        let state = self.0.clone();
        let frames = told.map(move |line| {
            state.echoed.send_modify(|echoed| *echoed += 1);
            Ok(Frame::data(line))
        });
        Response::new(StreamBody::new(frames).boxed_unsync())
    }
}

impl Kind {
    fn of(objects: &[Value], version: u64) -> Self {
        let pages = objects.len().div_ceil(PAGE).max(1);
        let page = |at: usize| {
            let next = if at + 1 < pages { (at + 1).to_string() } else { String::new() };
            let items = &objects[at * PAGE..objects.len().min((at + 1) * PAGE)];
            let list = json!({
                "metadata": {"resourceVersion": version.to_string(), "continue": next},
                "items": items,
            });
            Bytes::from(list.to_string())
        };
        Self {
            pages: RwLock::new((0..pages).map(page).collect()),
            rests: objects.iter().map(|object| (status_path(object), rest_of(object))).collect(),
            watches: watch::Sender::default(),
        }
    }

    fn page(&self, query: &str) -> Answer {
        let token = query.split('&').find_map(|pair| pair.strip_prefix("continue="));
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        let page = pages.get(token.and_then(|token| token.parse().ok()).unwrap_or(0));
        page.map_or_else(refused, |page| answered(200, page.clone()))
    }

    async fn tell(&self, lines: Bytes) {
        let watches = self.watches.borrow().clone();
        for mut watch in watches {
            let _ = watch.send(lines.clone()).await; // who has hung up need not know
        }
    }
}

fn changed(page: &Bytes, one_in: usize) -> Bytes {
    let Ok(mut list) = serde_json::from_slice::<Value>(page) else { return page.clone() };
    for item in list["items"].as_array_mut().into_iter().flatten().step_by(one_in) {
        let version: usize =
            item["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok()).unwrap_or(0);
        item["metadata"]["resourceVersion"] = (version + CHANGED).to_string().into();
        item["metadata"]["labels"]["bench.reknit.dev/changed"] = "yes".into();
    }
    let version: usize =
        list["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok()).unwrap_or(0);
    list["metadata"]["resourceVersion"] = (version + CHANGED).to_string().into();
    list.to_string().into()
}

fn status_path(object: &Value) -> String {
    let field = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (field("namespace"), field("name"));
    format!("/apis/samples.knative.dev/v1alpha1/namespaces/{namespace}/addressableservices/{name}/status")
}

/// The part after the resourceVersion, in the order in which `write` writes the fields.
fn rest_of(object: &Value) -> String {
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

fn refused() -> Answer {
    answered(400, Bytes::from_static(br#"{"kind":"Status","status":"Failure","code":400}"#))
}

fn answered(code: u16, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body).boxed_unsync());
    *answer.status_mut() = StatusCode::from_u16(code).unwrap_or_default();
    answer
}
