//! The log of the process: events of tracing on standard error, filtered by level.
use std::{
    io::{IsTerminal, Write},
    sync::Arc,
};

use parking_lot::Mutex;
use reknit_injection::internal::now;
use tracing::{Event, Subscriber, level_filters::LevelFilter, span};
use tracing_subscriber::{
    EnvFilter, Registry,
    layer::{Context, Layer, SubscriberExt},
    registry::LookupSpan,
    reload,
};

use super::{
    log_line::{Fields, Line, Severity, caller},
    otlp::LateTracer,
};
use crate::process::failure::Failure;

/// The log, installed once for the process.
#[derive(Clone)]
pub(crate) struct Logging {
    style: Arc<Style>,
    filter: reload::Handle<EnvFilter, Registry>,
    level: Arc<Mutex<LevelFilter>>,
    /// True if RUST_LOG is set, which overrides the ConfigMap.
    has_rust_log: bool,
    /// The tracer of spans, which the log level does not affect.
    pub(crate) tracer: LateTracer,
}

/// The parts that all lines have in common.
struct Style {
    component: String,
    common: Fields,
    is_json: bool,
    has_colors: bool,
}

impl Logging {
    /// Installs the log for all events. If the program has already installed another subscriber, that one stays, and a
    /// warning is logged through it.
    pub(crate) fn install(component: &str, pod: Option<&str>, rust_log: Option<&str>) -> Self {
        let mut common = Fields::default();
        if let Some(pod) = pod {
            common.set("knative.dev/pod", pod);
        }
        let is_json = !std::io::stderr().is_terminal();
        let has_colors = std::env::var_os("NO_COLOR").is_none();
        let style = Arc::new(Style { component: component.to_owned(), common, is_json, has_colors });
        let filter = rust_log.map_or_else(|| level_filter(LevelFilter::INFO), rust_log_filter);
        let (filter, handle) = reload::Layer::new(filter);
        let tracer = LateTracer::default();
        let subscriber =
            Registry::default().with(Lines(style.clone()).with_filter(filter)).with(tracer.layer());
        if tracing::subscriber::set_global_default(subscriber).is_err() {
            tracing::warn!(
                "the program installed a tracing subscriber before main: RUST_LOG, config-logging and the traces of \
                 config-observability have no effect"
            );
        }
        let level = Arc::new(Mutex::new(LevelFilter::INFO));
        Self { style, filter: handle, level, has_rust_log: rust_log.is_some(), tracer }
    }

    /// Sets the level of config-logging, unless RUST_LOG is set.
    pub(crate) fn set_level(&self, level: LevelFilter) {
        let mut current = self.level.lock();
        if self.has_rust_log || *current == level {
            return;
        }
        tracing::info!("the log level changes from {current} to {level}");
        match self.filter.reload(level_filter(level)) {
            Ok(()) => *current = level,
            Err(error) => tracing::error!(%error, "failed to change the log level"),
        }
    }

    /// Writes the line that ends the process, whatever the log level is.
    pub(crate) fn fatal(&self, failure: &Failure) {
        let mut fields = Fields::default();
        fields.set("message", failure.to_string());
        self.style.write(Severity::EMERGENCY, None, fields);
    }
}

/// Turns off the events of kube's client: it logs responses that it cannot parse, which may be Secrets, and failed
/// requests without their URL.
const KUBE_CLIENT_OFF: &str = "kube_client::client=off";

/// Turns off the events of the HTTP/2 library, which warns at each connection that resets many streams: any client could
/// fill the log.
const HTTP2_OFF: &str = "h2=off";

/// Returns the filter for a level. The filter for debug leaves out the details of connections.
fn level_filter(level: LevelFilter) -> EnvFilter {
    let libraries = match level {
        LevelFilter::DEBUG => ",hyper=info,hyper_util=info,rustls=info,tower=info",
        _ => "",
    };
    EnvFilter::new(format!("{level},{KUBE_CLIENT_OFF},{HTTP2_OFF}{libraries}"))
}

/// Returns the filter for RUST_LOG. The events of kube's client are on only if RUST_LOG names their target: a level for
/// all targets must not log Secrets.
fn rust_log_filter(rust_log: &str) -> EnvFilter {
    let mut targets = rust_log.split(',').map(|directive| directive.split(['=', '[']).next().map(str::trim));
    if targets.any(|target| matches!(target, Some("kube_client" | "kube_client::client"))) {
        return EnvFilter::new(rust_log);
    }
    EnvFilter::new(format!("{rust_log},{KUBE_CLIENT_OFF}"))
}

impl Style {
    fn write(&self, severity: Severity, caller: Option<String>, mut fields: Fields) {
        if self.is_json {
            fields.extend(&self.common);
        }
        let line = Line { severity, time: now(), logger: &self.component, caller, fields };
        let line = if self.is_json { line.json() } else { line.text(self.has_colors) };
        // There is nowhere to report an error of the log.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }
}

/// Writes each event with the fields of its spans.
struct Lines(Arc<Style>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Lines {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, cx: Context<'_, S>) {
        let Some(span) = cx.span(id) else { return };
        let mut fields = Fields::with_capacity(attributes.fields().len());
        attributes.record(&mut fields);
        span.extensions_mut().replace(fields);
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, cx: Context<'_, S>) {
        let Some(span) = cx.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, cx: Context<'_, S>) {
        let mut fields = Fields::default();
        for span in cx.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(span_fields) = span.extensions().get::<Fields>() {
                fields.extend(span_fields);
            }
        }
        event.record(&mut fields);
        let metadata = event.metadata();
        self.0.write(metadata.level().into(), caller(metadata), fields);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_enables_itself_and_more_severe_levels() {
        use tracing::Level;

        let enabled_levels = |level| {
            tracing::subscriber::with_default(Registry::default().with(level_filter(level)), || {
                [
                    tracing::enabled!(target: "lamps", Level::ERROR),
                    tracing::enabled!(target: "lamps", Level::WARN),
                    tracing::enabled!(target: "lamps", Level::INFO),
                    tracing::enabled!(target: "lamps", Level::DEBUG),
                    tracing::enabled!(target: "lamps", Level::TRACE),
                ]
            })
        };
        for (level, enabled_count) in [
            (LevelFilter::DEBUG, 4),
            (LevelFilter::INFO, 3),
            (LevelFilter::WARN, 2),
            (LevelFilter::ERROR, 1),
            (LevelFilter::OFF, 0),
        ] {
            assert_eq!(enabled_levels(level), [0, 1, 2, 3, 4].map(|index| index < enabled_count), "{level}");
        }
    }

    #[test]
    fn a_client_of_http2_causes_no_warnings() {
        tracing::subscriber::with_default(Registry::default().with(level_filter(LevelFilter::INFO)), || {
            assert!(!tracing::enabled!(target: "h2::proto::streams::recv", tracing::Level::WARN));
        });
    }

    #[test]
    fn rust_log_enables_the_events_of_the_client_only_by_their_target() {
        for (rust_log, clients, others) in [
            ("info", false, true),
            ("trace", false, true),
            ("kube=debug,info", false, true),
            ("info,kube_client::api=debug", false, true),
            ("info,kube_client::client::builder=debug", false, true),
            ("error", false, false),
            ("info,kube_client=warn", true, true),
            ("info, kube_client::client=debug", true, true),
        ] {
            tracing::subscriber::with_default(Registry::default().with(rust_log_filter(rust_log)), || {
                let enabled = tracing::enabled!(target: "kube_client::client", tracing::Level::WARN);
                assert_eq!(enabled, clients, "{rust_log}");
                assert_eq!(tracing::enabled!(target: "lamps", tracing::Level::INFO), others, "{rust_log}");
            });
        }
    }
}
