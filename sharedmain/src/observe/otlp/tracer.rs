//! The conversion of tracing's spans to OpenTelemetry's, enabled once the configuration is read.
use std::sync::{Arc, OnceLock};

use opentelemetry::{
    Context as OtelContext,
    trace::{
        SpanBuilder, SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer,
        TracerProvider,
    },
};
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, Span};
use reknit_injection::internal::CurrentPass;
use tracing::{Level, Metadata, Subscriber, level_filters::LevelFilter, subscriber::Interest};
use tracing_opentelemetry::{OpenTelemetryLayer, OpenTelemetrySpanExt};
use tracing_subscriber::{
    Layer,
    layer::{Context, Filter},
    registry::LookupSpan,
};

/// Libraries that log each request and frame, including those that export the spans.
const NOISY_LIBRARIES: [&str; 8] =
    ["h2", "hyper", "hyper_rustls", "hyper_util", "opentelemetry", "rustls", "tonic", "tower"];

/// A tracer that is installed with the log, and enabled once the configuration is read. Until then it gets no spans and
/// no events.
#[derive(Clone, Default)]
pub(crate) struct LateTracer(Arc<OnceLock<SdkTracer>>);

impl LateTracer {
    /// Exports spans by this provider from now on.
    pub(super) fn enable(&self, provider: &SdkTracerProvider) {
        if self.0.set(provider.tracer(env!("CARGO_PKG_NAME"))).is_ok() {
            tracing::callsite::rebuild_interest_cache();
            CurrentPass::link_spans(link_span);
        }
    }

    /// Returns the layer that exports reconciles, the user's spans and their requests to the API server. The log level
    /// does not affect the layer.
    pub(crate) fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(&self) -> impl Layer<S> + use<S> {
        OpenTelemetryLayer::new(self.clone())
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_error_events_to_status(false)
            .with_filter(self.clone())
    }

    fn is_enabled(&self) -> bool {
        self.0.get().is_some()
    }
}

impl Tracer for LateTracer {
    type Span = Span;

    fn build_with_context(&self, builder: SpanBuilder, parent: &OtelContext) -> Span {
        self.0.get_or_init(disabled).build_with_context(builder, parent)
    }
}

/// Keeps the ids of the span of a pass, and links it with the spans of the passes that led to it, if they were exported.
fn link_span(span: &tracing::Span, pass: &CurrentPass, writers: &[Arc<CurrentPass>]) {
    for (trace, span_id) in writers.iter().filter_map(|writer| writer.span_ids.get()) {
        let (trace, span_id) = (TraceId::from_bytes(*trace), SpanId::from_bytes(*span_id));
        span.add_link(SpanContext::new(trace, span_id, TraceFlags::SAMPLED, false, TraceState::NONE));
    }
    let context = span.context();
    let context = context.span().span_context().clone();
    if context.is_sampled() {
        _ = pass.span_ids.set((context.trace_id().to_bytes(), context.span_id().to_bytes()));
    }
}

/// A tracer that samples nothing.
fn disabled() -> SdkTracer {
    SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOff).build().tracer("")
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Filter<S> for LateTracer {
    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        match metadata {
            _ if !self.is_enabled() => Interest::never(),
            metadata if is_request(metadata) => Interest::sometimes(),
            metadata if is_exported(metadata) => Interest::always(),
            _ => Interest::never(),
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>, cx: &Context<'_, S>) -> bool {
        // Requests of watches and leases have no parent span, so each would be a trace of its own.
        self.is_enabled() && (is_exported(metadata) || is_request(metadata) && cx.lookup_current().is_some())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(if self.is_enabled() { LevelFilter::DEBUG } else { LevelFilter::OFF })
    }
}

/// Returns true if the span or event is exported: its level is info or above, and it is not from a noisy library or
/// from kube's client, whose events may contain the body of a Secret.
fn is_exported(metadata: &Metadata<'_>) -> bool {
    let krate = metadata.target().split("::").next().unwrap_or_default();
    *metadata.level() <= Level::INFO && krate != "kube_client" && !NOISY_LIBRARIES.contains(&krate)
}

/// Returns whether this is the span of a request, by the transport of the process or by a client of the program.
fn is_request(metadata: &Metadata<'_>) -> bool {
    let krate = metadata.target().split("::").next().unwrap_or_default();
    metadata.is_span()
        && metadata.name() == "HTTP"
        && [env!("CARGO_CRATE_NAME"), "kube_client"].contains(&krate)
}

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::trace::{InMemorySpanExporter, SpanData};
    use reknit_apis::Key;
    use tracing_subscriber::{Registry, layer::SubscriberExt};

    use super::*;

    fn reconcile_once() {
        let reconcile = tracing::error_span!("reconcile", "knative.dev/key" = "shop/web");
        let _entered = reconcile.enter();
        tracing::info!("it happened");
        tracing::debug!("in detail");
        tracing::info!(target: "kube_client::client", "a body");
        tracing::info!(target: "h2::proto", "a frame");
        tracing::debug_span!(target: "kube_client::client::builder", "HTTP").in_scope(|| {});
    }

    const ENABLED: bool = true;
    const NOT_ENABLED: bool = false;

    fn exported(is_enabled: bool) -> Vec<SpanData> {
        let tracer = LateTracer::default();
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        tracing::subscriber::with_default(Registry::default().with(tracer.layer()), || {
            reconcile_once();
            if is_enabled {
                tracer.enable(&provider);
                reconcile_once();
                // Requests outside of a span are not exported.
                tracing::debug_span!(target: "kube_client::client::builder", "HTTP").in_scope(|| {});
                tracing::debug_span!("HTTP").in_scope(|| {});
            }
        });
        exporter.get_finished_spans().unwrap()
    }

    #[test]
    fn reconciles_and_their_requests_are_exported_once_enabled() {
        assert!(exported(NOT_ENABLED).is_empty());
        let spans = exported(ENABLED);
        let names: Vec<_> = spans.iter().map(|span| &*span.name).collect();
        assert_eq!(names, ["HTTP", "reconcile"]);
        let [request, reconcile] = &spans[..] else { panic!("{spans:#?}") };
        assert_eq!(request.parent_span_id, reconcile.span_context.span_id());
        assert!(reconcile.attributes.iter().any(|attribute| attribute.key.as_str() == "knative.dev/key"));
        let events: Vec<_> = reconcile.events.iter().map(|event| &*event.name).collect();
        assert_eq!(events, ["it happened"]);
    }

    #[test]
    fn the_span_of_a_pass_has_a_link_to_those_of_the_passes_that_led_to_it() {
        let (tracer, exporter) = (LateTracer::default(), InMemorySpanExporter::default());
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        tracing::subscriber::with_default(Registry::default().with(tracer.layer()), || {
            tracer.enable(&provider);
            let begin = || CurrentPass::begin(&"web".into(), &Key::new("shop", "a").into(), true);
            let (writer, other, led) = (begin(), begin(), begin());
            for (pass, writers) in [(&writer, vec![]), (&led, vec![writer.clone(), other])] {
                let span = tracing::error_span!("reconcile");
                pass.link_span(&span, || writers);
                span.in_scope(|| {});
            }
        });
        let spans = exporter.get_finished_spans().unwrap();
        let [writer, led] = &spans[..] else { panic!("{spans:#?}") };
        let links: Vec<_> = led.links.iter().map(|link| link.span_context.span_id()).collect();
        assert_eq!(links, [writer.span_context.span_id()], "a pass without a span has no link");
        assert!(writer.links.is_empty());
    }
}
