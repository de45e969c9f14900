//! Takes the place of `otlp` in a build without that feature: exports nothing, and logs which settings have no effect.

use std::time::Duration;

use prometheus::Registry;
use reknit_injection::Shutdown;
use tracing_subscriber::layer::Identity;

use crate::{
    config::observability::{Metrics, ObservabilityConfig, Tracing},
    process::failure::Failure,
};

/// A tracer that gets no spans.
#[derive(Clone, Default)]
pub(crate) struct LateTracer;

impl LateTracer {
    pub(super) fn layer(&self) -> Identity {
        Identity::new()
    }
}

/// Exports that do nothing.
pub(crate) struct Exports;

impl Exports {
    pub(crate) fn none() -> Self {
        Self
    }

    pub(crate) fn start(
        config: &ObservabilityConfig,
        _: &[(&'static str, Option<&str>)],
        _: Registry,
        _: &LateTracer,
        _: Shutdown,
    ) -> Result<Self, Failure> {
        if matches!(config.metrics, Metrics::Push { .. }) {
            warn("metrics-protocol");
        }
        if config.tracing != Tracing::None {
            warn("tracing-protocol");
        }
        Ok(Self)
    }

    pub(crate) async fn flush(self, _: Duration) {}
}

fn warn(key: &str) {
    tracing::warn!(
        "config-observability: {key} has no effect: the program is built without the feature otlp of reknit"
    );
}
