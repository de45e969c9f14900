//! The log of the process: what tracing's events become, on standard error, and at which level.
use std::{
    fmt,
    io::{IsTerminal, Write},
    sync::Arc,
};

use parking_lot::Mutex;
use tracing::{Event, Subscriber, span};
use tracing_subscriber::{
    EnvFilter, Registry,
    layer::{Context, Layer, SubscriberExt},
    registry::LookupSpan,
    reload,
};

use crate::{
    observe::log_line::{Fields, Line, Severity, caller},
    observe::traces::LateTracer,
    process::failure::Failure,
};

/// The log, set up once for the process.
#[derive(Clone)]
pub(crate) struct Logging {
    style: Arc<Style>,
    filter: reload::Handle<EnvFilter, Registry>,
    level: Arc<Mutex<LogLevel>>,
    /// RUST_LOG is set, and wins over the ConfigMap.
    fixed: bool,
    /// Sees what the level of the log leaves out, too.
    tracer: LateTracer,
}

/// What stays the same from line to line.
struct Style {
    component: String,
    always: Fields,
    json: bool,
    colors: bool,
}

impl Logging {
    /// From now on events are written. Where another subscriber is installed already, that one stays, and is told.
    pub(crate) fn install(component: &str, pod: Option<&str>, rust_log: Option<&str>) -> Self {
        let mut always = Fields::default();
        if let Some(pod) = pod {
            always.set("knative.dev/pod", pod);
        }
        let json = !std::io::stderr().is_terminal();
        let colors = std::env::var_os("NO_COLOR").is_none();
        let style = Arc::new(Style { component: component.to_owned(), always, json, colors });
        let filter = rust_log.map_or_else(|| filter(LogLevel::default()), asked_for);
        let (filter, handle) = reload::Layer::new(filter);
        let tracer = LateTracer::default();
        let lines = Registry::default().with(Lines(style.clone()).with_filter(filter)).with(tracer.layer());
        if tracing::subscriber::set_global_default(lines).is_err() {
            tracing::warn!(
                "this program has set up a log of its own before main: RUST_LOG, config-logging and the traces of \
                 config-observability have no effect"
            );
        }
        Self { style, filter: handle, level: Arc::default(), fixed: rust_log.is_some(), tracer }
    }

    /// What config-logging says. RUST_LOG wins over it.
    pub(crate) fn set_level(&self, level: LogLevel) {
        let mut held = self.level.lock();
        if self.fixed || *held == level {
            return;
        }
        tracing::info!("the level of the log changes from {held} to {level}");
        match self.filter.reload(filter(level)) {
            Ok(()) => *held = level,
            Err(error) => tracing::error!(%error, "the level of the log cannot be changed any more"),
        }
    }

    /// What makes spans of OpenTelemetry's of those that are logged from.
    pub(crate) fn tracer(&self) -> &LateTracer {
        &self.tracer
    }

    /// Writes the line that ends the process, whatever the level.
    pub(crate) fn fatal(&self, failure: &Failure) {
        let mut fields = Fields::default();
        fields.set("message", failure.to_string());
        self.style.write(Severity::Emergency, None, fields);
    }
}

/// As zap's levels go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum LogLevel {
    Debug,
    #[default]
    Info,
    Warn,
    Error,
    /// Only the line that ends the process.
    Fatal,
}

impl std::str::FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "debug" => Ok(Self::Debug),
            "info" | "" => Ok(Self::Info),
            "warn" => Ok(Self::Warn),
            "error" => Ok(Self::Error),
            "dpanic" | "panic" | "fatal" => Ok(Self::Fatal),
            _ => Err("not one of debug, info, warn, error, dpanic, panic, fatal".into()),
        }
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
            Self::Fatal => "off",
        })
    }
}

/// The client's own events are left out: it logs a body it cannot read as it stands, which may be a Secret, and each
/// failed request without saying which. Whoever made the request says more.
const NO_BODIES: &str = "kube_client::client=off";

/// Below, connections and their bytes are noise even to who debugs a controller.
fn filter(level: LogLevel) -> EnvFilter {
    let below = match level {
        LogLevel::Debug => ",hyper=info,hyper_util=info,rustls=info,tower=info",
        _ => "",
    };
    EnvFilter::new(format!("{level},{NO_BODIES}{below}"))
}

/// As RUST_LOG says. The client's events have to be asked for by name: who asks for all at a level does not ask for
/// Secrets.
fn asked_for(rust_log: &str) -> EnvFilter {
    let target = |directive: &str| directive.split(['=', '[']).next().unwrap_or_default().trim().to_owned();
    let by_name = |target: String| target == "kube_client" || target == "kube_client::client";
    if rust_log.split(',').map(target).any(by_name) {
        return EnvFilter::new(rust_log);
    }
    EnvFilter::new(format!("{rust_log},{NO_BODIES}"))
}

impl Style {
    fn write(&self, severity: Severity, caller: Option<String>, mut fields: Fields) {
        if self.json {
            fields.extend(&self.always);
        }
        let line = Line { severity, time: jiff::Timestamp::now(), logger: &self.component, caller, fields };
        let line = if self.json { line.json() } else { line.text(self.colors) };
        // There is nowhere to report that reporting failed.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }
}

/// Writes every event with the fields of the spans around it.
struct Lines(Arc<Style>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Lines {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, cx: Context<'_, S>) {
        let Some(span) = cx.span(id) else { return };
        let mut fields = Fields::with_room_for(attributes.fields().len());
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
            if let Some(of_span) = span.extensions().get::<Fields>() {
                fields.extend(of_span);
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
    fn levels_are_zaps() {
        for (text, level) in [
            ("debug", LogLevel::Debug),
            ("INFO", LogLevel::Info),
            ("warn", LogLevel::Warn),
            ("error", LogLevel::Error),
            ("fatal", LogLevel::Fatal),
        ] {
            assert_eq!(text.parse(), Ok(level));
        }
        assert!("verbose".parse::<LogLevel>().is_err());
    }

    #[test]
    fn each_level_is_a_filter() {
        use tracing::Level;

        let lets_through = |level| {
            tracing::subscriber::with_default(Registry::default().with(filter(level)), || {
                [
                    tracing::enabled!(target: "lamps", Level::ERROR),
                    tracing::enabled!(target: "lamps", Level::WARN),
                    tracing::enabled!(target: "lamps", Level::INFO),
                    tracing::enabled!(target: "lamps", Level::DEBUG),
                    tracing::enabled!(target: "lamps", Level::TRACE),
                ]
            })
        };
        for (level, of_five) in [
            (LogLevel::Debug, 4),
            (LogLevel::Info, 3),
            (LogLevel::Warn, 2),
            (LogLevel::Error, 1),
            (LogLevel::Fatal, 0),
        ] {
            assert_eq!(lets_through(level), [0, 1, 2, 3, 4].map(|at| at < of_five), "{level}");
        }
    }

    #[test]
    fn rust_log_gets_the_clients_events_only_by_name() {
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
            tracing::subscriber::with_default(Registry::default().with(asked_for(rust_log)), || {
                let heard = tracing::enabled!(target: "kube_client::client", tracing::Level::WARN);
                assert_eq!(heard, clients, "{rust_log}");
                assert_eq!(tracing::enabled!(target: "lamps", tracing::Level::INFO), others, "{rust_log}");
            });
        }
    }
}
