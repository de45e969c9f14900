//! What makes OpenTelemetry's spans of tracing's, once the configuration asks for it.
use std::sync::{Arc, OnceLock};

use opentelemetry::{
    Context as OtelContext,
    trace::{SpanBuilder, Tracer, TracerProvider},
};
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, Span};
use tracing::{Level, Metadata, Subscriber, level_filters::LevelFilter, subscriber::Interest};
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::{
    Layer,
    layer::{Context, Filter},
    registry::LookupSpan,
};

/// Libraries that speak of each request and frame, those that send spans among them.
const NOISE: [&str; 8] =
    ["h2", "hyper", "hyper_rustls", "hyper_util", "opentelemetry", "rustls", "tonic", "tower"];

/// A tracer that there may be later: the log is set up before any configuration is read. Until then, and where no
/// traces are asked for, no span or event reaches it.
#[derive(Clone, Default)]
pub(crate) struct LateTracer(Arc<OnceLock<SdkTracer>>);

impl LateTracer {
    /// From now on spans are made.
    pub(crate) fn turn_on(&self, provider: &SdkTracerProvider) {
        if self.0.set(provider.tracer(env!("CARGO_PKG_NAME"))).is_ok() {
            tracing::callsite::rebuild_interest_cache();
        }
    }

    /// Spans of passes and of what users do in them, whatever the level of the log, their requests to the API server
    /// among them.
    pub(crate) fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(&self) -> impl Layer<S> + use<S> {
        OpenTelemetryLayer::new(self.clone())
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_error_events_to_status(false)
            .with_filter(self.clone())
    }

    fn is_on(&self) -> bool {
        self.0.get().is_some()
    }
}

impl Tracer for LateTracer {
    type Span = Span;

    fn build_with_context(&self, builder: SpanBuilder, parent: &OtelContext) -> Span {
        self.0.get_or_init(silent).build_with_context(builder, parent)
    }
}

/// Of what never exports.
fn silent() -> SdkTracer {
    SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOff).build().tracer("")
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Filter<S> for LateTracer {
    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if !self.is_on() {
            Interest::never()
        } else if is_request(metadata) {
            Interest::sometimes()
        } else if is_told(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>, cx: &Context<'_, S>) -> bool {
        // Watches and leases, which belong to no pass, would be a trace each.
        self.is_on() && (is_told(metadata) || is_request(metadata) && cx.lookup_current().is_some())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(if self.is_on() { LevelFilter::DEBUG } else { LevelFilter::OFF })
    }
}

/// The client's events are left out: they may hold the body of a Secret.
fn is_told(metadata: &Metadata<'_>) -> bool {
    let krate = metadata.target().split("::").next().unwrap_or_default();
    *metadata.level() <= Level::INFO && krate != "kube_client" && !NOISE.contains(&krate)
}

/// A span of one request: of ours, or of a client that a program makes for itself.
fn is_request(metadata: &Metadata<'_>) -> bool {
    let krate = metadata.target().split("::").next().unwrap_or_default();
    metadata.is_span()
        && metadata.name() == "HTTP"
        && [env!("CARGO_CRATE_NAME"), "kube_client"].contains(&krate)
}

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::trace::{InMemorySpanExporter, SpanData};
    use tracing_subscriber::{Registry, layer::SubscriberExt};

    use super::*;

    fn work() {
        let pass = tracing::error_span!("reconcile", "knative.dev/key" = "shop/web");
        let _pass = pass.enter();
        tracing::info!("it happened");
        tracing::debug!("in detail");
        tracing::info!(target: "kube_client::client", "a body");
        tracing::info!(target: "h2::proto", "a frame");
        tracing::debug_span!(target: "kube_client::client::builder", "HTTP").in_scope(|| {});
    }

    fn exported(on: bool) -> Vec<SpanData> {
        let tracer = LateTracer::default();
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        tracing::subscriber::with_default(Registry::default().with(tracer.layer()), || {
            work();
            if on {
                tracer.turn_on(&provider);
                work();
                tracing::debug_span!(target: "kube_client::client::builder", "HTTP").in_scope(|| {});
                tracing::debug_span!("HTTP").in_scope(|| {});
            }
        });
        exporter.get_finished_spans().unwrap()
    }

    #[test]
    fn nothing_is_made_until_it_is_turned_on_and_then_passes_and_their_requests() {
        assert!(exported(false).is_empty());
        let spans = exported(true);
        let names: Vec<_> = spans.iter().map(|span| &*span.name).collect();
        assert_eq!(names, ["HTTP", "reconcile"]);
        let [request, pass] = &spans[..] else { panic!("{spans:#?}") };
        assert_eq!(request.parent_span_id, pass.span_context.span_id());
        assert!(pass.attributes.iter().any(|at| at.key.as_str() == "knative.dev/key"));
        let told: Vec<_> = pass.events.iter().map(|event| &*event.name).collect();
        assert_eq!(told, ["it happened"]);
    }
}
