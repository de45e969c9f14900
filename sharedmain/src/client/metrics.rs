//! The metrics of requests to the API server: those of client-go, and a count by resource.

use std::{hash::BuildHasher, sync::Arc, time::Duration};

use http::{Method, Request, StatusCode};
use kube::client::Body;
use parking_lot::Mutex;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, Opts, Registry};
use reknit_apis::internal::HashMap;
use reknit_injection::internal::{
    CurrentPass, ResourcePath, is_apply, is_dry_run, register_durations, register_metric, request_verb,
    resource_name,
};
use tokio::time::Instant;

/// The maximum number of series of requests by resource. The paths of requests may come from users, so more are counted
/// as resource `other`.
const MAX_SERIES: usize = 2_000;
/// The subresources that are labels. A path may have anything in their place.
const SUBRESOURCES: [&str; 14] = [
    "approval",
    "attach",
    "binding",
    "ephemeralcontainers",
    "eviction",
    "exec",
    "finalize",
    "log",
    "portforward",
    "proxy",
    "resize",
    "scale",
    "status",
    "token",
];
/// client-go's `code` of a request without a response.
const NO_RESPONSE: &str = "<error>";

/// The metrics of the requests of one process.
pub(crate) struct RequestMetrics {
    /// The host of the API server, with its port.
    host: String,
    requests: IntCounterVec,
    duration: HistogramVec,
    by_resource: IntCounterVec,
    unprompted: IntCounterVec,
    /// The series of each kind of request, by a hash of its labels, so that counting allocates nothing.
    series: Mutex<HashMap<u64, Series>>,
}

#[derive(Clone)]
struct Series {
    requests: IntCounter,
    by_resource: IntCounter,
    /// `None` for a watch.
    duration: Option<Histogram>,
}

/// The labels of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Labels<'a> {
    method: &'a str,
    verb: &'a str,
    group: &'a str,
    resource: &'a str,
    subresource: &'a str,
}

impl RequestMetrics {
    pub(crate) fn new(registry: &Registry, server: &http::Uri) -> Self {
        let counter = |name, help, labels: &[&str]| {
            register_metric(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let host = server.authority().map_or("", http::uri::Authority::as_str);
        Self {
            host: host.rsplit('@').next().unwrap_or_default().into(),
            requests: counter(
                "rest_client_requests_total",
                "Number of HTTP requests, partitioned by status code, method, and host.",
                &["code", "method", "host"],
            ),
            duration: register_durations(
                registry,
                "rest_client_request_duration_seconds",
                "Request latency in seconds, until the head of the response. Broken down by verb, and host.",
                &["verb", "host"],
            ),
            by_resource: counter(
                "reknit_api_requests_total",
                "Number of requests to the API server by verb, resource and status code",
                &["verb", "group", "resource", "subresource", "code"],
            ),
            unprompted: counter(
                "reknit_unprompted_writes_total",
                "Number of changes by passes that no cause from outside and no new generation prompted, by controller \
                 and resource",
                &["controller", "resource"],
            ),
            series: Mutex::default(),
        }
    }

    /// Measures a request, and records it by the labels that it has before it is sent.
    pub(super) fn measure(self: Arc<Self>, request: &Request<Body>) -> Measured {
        Measured {
            method: request.method().clone(),
            uri: request.uri().clone(),
            is_apply: is_apply(request),
            unprompted: unprompted_writer(request),
            start: Instant::now(),
            status: None,
            metrics: self,
        }
    }

    fn record(&self, labels: Labels<'_>, status: Option<StatusCode>, took: Duration) {
        let series = self.series_of(labels, status);
        series.requests.inc();
        series.by_resource.inc();
        if let Some(duration) = series.duration {
            duration.observe(took.as_secs_f64());
        }
    }

    fn series_of(&self, labels: Labels<'_>, status: Option<StatusCode>) -> Series {
        let mut series = self.series.lock();
        let hash = series.hasher().hash_one((labels, status.map(|status| status.as_u16())));
        if let Some(known) = series.get(&hash) {
            return known.clone();
        }
        if series.len() < MAX_SERIES {
            let new = self.new_series(labels, status);
            series.insert(hash, new.clone());
            return new;
        }
        self.new_series(Labels { group: "", resource: "other", subresource: "", ..labels }, status)
    }

    fn new_series(&self, labels: Labels<'_>, status: Option<StatusCode>) -> Series {
        let Labels { method, verb, group, resource, subresource } = labels;
        let code = status.as_ref().map_or(NO_RESPONSE, StatusCode::as_str);
        let duration = || self.duration.with_label_values(&[method, &self.host]);
        Series {
            requests: self.requests.with_label_values(&[code, method, &self.host]),
            by_resource: self.by_resource.with_label_values(&[verb, group, resource, subresource, code]),
            duration: (verb != "watch").then(duration),
        }
    }
}

/// A request that is being sent. It counts once, when it is dropped: also if it fails, or the caller gives it up.
pub(super) struct Measured {
    metrics: Arc<RequestMetrics>,
    method: Method,
    uri: http::Uri,
    is_apply: bool,
    /// The pass that makes the request, if it is a change that was not prompted.
    unprompted: Option<Arc<CurrentPass>>,
    start: Instant,
    /// The status of the response, if there is one.
    status: Option<StatusCode>,
}

impl Measured {
    /// Ends the measurement with the status of the response.
    pub(super) fn answered(mut self, status: StatusCode) {
        self.status = Some(status);
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        let Self { metrics, method, uri, is_apply, unprompted, start, status } = self;
        let labels = Labels::of(method, uri, *is_apply);
        metrics.record(labels, *status, start.elapsed());
        // A refused request changes nothing, and may name a resource that does not exist.
        if let Some(pass) = unprompted.as_ref().filter(|_| status.is_some_and(|status| status.is_success())) {
            pass.count_change();
            let resource = resource_name(labels.group, labels.resource, labels.subresource);
            metrics.unprompted.with_label_values(&[&*pass.controller, &resource]).inc();
        }
    }
}

/// The pass that makes this request, if the request is a change and the pass was not prompted. Leases, events and reviews
/// are no changes.
fn unprompted_writer(request: &Request<Body>) -> Option<Arc<CurrentPass>> {
    let pass = CurrentPass::get().filter(|pass| !pass.is_prompted())?;
    let path = ResourcePath::parse(request.uri().path())?;
    let is_write = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE].contains(request.method());
    let is_change = match (path.group, path.plural) {
        ("coordination.k8s.io", "leases") | ("" | "events.k8s.io", "events") => false,
        (group, _) => !["authorization.k8s.io", "authentication.k8s.io"].contains(&group),
    };
    (is_write && is_change && !is_dry_run(request)).then_some(pass)
}

impl<'a> Labels<'a> {
    fn of(method: &'a Method, uri: &'a http::Uri, is_apply: bool) -> Self {
        let path = ResourcePath::parse(uri.path());
        let verb = request_verb(method, uri, is_apply);
        let subresource = path.and_then(|path| path.subresource()).unwrap_or_default();
        let is_known = subresource.is_empty() || SUBRESOURCES.contains(&subresource);
        Self {
            method: method.as_str(),
            verb,
            group: path.map_or("", |path| path.group),
            resource: path.map_or("", |path| path.plural),
            subresource: if is_known { subresource } else { "other" },
        }
    }
}

#[cfg(test)]
mod tests {
    use reknit_apis::Key;

    use super::*;

    fn labels(method: &Method, uri: &str, is_apply: bool) -> String {
        let uri = uri.parse().unwrap();
        let Labels { verb, group, resource, subresource, .. } = Labels::of(method, &uri, is_apply);
        [verb, group, resource, subresource].join(" ").trim_end().to_owned()
    }

    #[test]
    fn requests_are_labelled_by_verb_and_resource_and_never_by_object() {
        for (method, uri, is_apply, expected) in [
            (Method::GET, "/api/v1/pods?limit=500", false, "list  pods"),
            (Method::GET, "/api/v1/pods?watch=true", false, "watch  pods"),
            (Method::GET, "/api/v1/namespaces/shop/pods/web", false, "get  pods"),
            (Method::POST, "/apis/apps/v1/namespaces/shop/deployments", false, "create apps deployments"),
            (Method::PATCH, "/apis/apps/v1/namespaces/shop/deployments/web", true, "apply apps deployments"),
            (
                Method::PATCH,
                "/apis/apps/v1/namespaces/shop/deployments/web/status",
                false,
                "patch apps deployments status",
            ),
            (Method::DELETE, "/api/v1/namespaces/shop/pods", false, "deletecollection  pods"),
            (Method::DELETE, "/api/v1/namespaces/shop", false, "delete  namespaces"),
            (Method::GET, "/api/v1/namespaces/shop/configmaps/a/b", false, "get  configmaps other"),
            (Method::GET, "/version", false, "get"),
        ] {
            assert_eq!(labels(&method, uri, is_apply), expected, "{method} {uri}");
        }
    }

    #[tokio::test]
    async fn changes_by_passes_that_were_not_prompted_are_counted() {
        let registry = Registry::new();
        let metrics = Arc::new(RequestMetrics::new(&registry, &"https://10.0.0.1:6443".parse().unwrap()));
        let send = |method, uri: &str, body: &str| {
            let request = Request::builder().method(method).uri(uri).body(body.as_bytes().to_vec());
            metrics.clone().measure(&request.unwrap().map(Body::from)).answered(StatusCode::OK);
        };
        let send_all = || async {
            send(Method::PATCH, "/apis/apps/v1/namespaces/shop/deployments/web/status", "");
            send(Method::DELETE, "/api/v1/namespaces/shop/pods/web", "{}");
            send(Method::DELETE, "/api/v1/namespaces/shop/pods/web", r#"{"dryRun":["All"]}"#);
            send(Method::POST, "/api/v1/namespaces/shop/pods?dryRun=All", "");
            send(Method::POST, "/api/v1/namespaces/shop/events", "");
            send(Method::PUT, "/apis/coordination.k8s.io/v1/namespaces/shop/leases/a", "");
            send(Method::POST, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "");
            send(Method::GET, "/api/v1/namespaces/shop/pods/web", "");
            drop(metrics.clone().measure(&Request::delete("/api/v1/pods").body(Body::empty()).unwrap()));
        };
        send_all().await;
        for prompted in [true, false] {
            let pass = CurrentPass::begin(&"web".into(), &Key::new("shop", "a").into(), prompted);
            pass.scope(send_all()).await;
        }
        let families = registry.gather();
        let family =
            families.iter().find(|family| family.name() == "reknit_unprompted_writes_total").unwrap();
        let label = |metric: &prometheus::proto::Metric| metric.get_label()[1].value().to_owned();
        let counted: Vec<_> =
            family.get_metric().iter().map(|m| (label(m), m.get_counter().get_value())).collect();
        assert_eq!(counted, [("deployments.apps/status".into(), 1.0), ("pods".into(), 1.0)]);
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let registry = Registry::new();
        let metrics = RequestMetrics::new(&registry, &"https://user:pass@10.0.0.1:6443".parse().unwrap());
        for n in 0..MAX_SERIES + 10 {
            let uri = format!("/api/v1/invented{n}").parse().unwrap();
            let labels = Labels::of(&Method::GET, &uri, false);
            metrics.record(labels, Some(StatusCode::NOT_FOUND), Duration::ZERO);
        }
        metrics.record(Labels::of(&Method::GET, &"/version".parse().unwrap(), false), None, Duration::ZERO);
        let families = registry.gather();
        let family = |name| families.iter().find(|family| family.name() == name).unwrap();
        assert_eq!(family("reknit_api_requests_total").get_metric().len(), MAX_SERIES + 2);
        let totals: Vec<_> = family("rest_client_requests_total").get_metric().iter().collect();
        let label =
            |index: usize| totals[index].get_label().iter().map(|label| label.value()).collect::<Vec<_>>();
        assert_eq!(label(0), ["404", "10.0.0.1:6443", "GET"]);
        assert_eq!(label(1), ["<error>", "10.0.0.1:6443", "GET"]);
        assert_eq!(totals[0].get_counter().get_value(), (MAX_SERIES + 10) as f64);
    }
}
