//! What a webhook counts.

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, core::Collector};

/// The metrics of one webhook.
#[derive(Clone)]
pub(crate) struct Metrics {
    requests: IntCounterVec,
    seconds: HistogramVec,
    panics: IntCounterVec,
}

impl Metrics {
    /// In a registry where nothing else has these names.
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self {
            requests: IntCounterVec::new(
                Opts::new("reknit_webhook_requests_total", "Requests answered by the webhook"),
                &["path", "code", "allowed"],
            )?,
            seconds: HistogramVec::new(
                HistogramOpts::new(
                    "reknit_webhook_request_seconds",
                    "How long an answer took, from the whole body on",
                )
                .buckets(vec![
                    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
                ]),
                &["path"],
            )?,
            panics: IntCounterVec::new(
                Opts::new("reknit_webhook_panics_total", "Requests in which code of a Kind panicked"),
                &["path"],
            )?,
        };
        let all: [Box<dyn Collector>; 3] = [
            Box::new(metrics.requests.clone()),
            Box::new(metrics.seconds.clone()),
            Box::new(metrics.panics.clone()),
        ];
        all.into_iter().try_for_each(|family| registry.register(family))?;
        Ok(metrics)
    }

    pub(crate) fn answered(&self, path: &str, code: u16, allowed: &str, took: Option<Duration>) {
        self.requests.with_label_values(&[path, &code.to_string(), allowed]).inc();
        if let Some(took) = took {
            self.seconds.with_label_values(&[path]).observe(took.as_secs_f64());
        }
    }

    pub(crate) fn panicked(&self, path: &str) {
        self.panics.with_label_values(&[path]).inc();
    }
}
