//! The record of one simulation: requests, passes, faults and steps.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use bytes::Bytes;
use http::Method;
use reknit_apiserver::RequestInfo;

use crate::{observer::PassId, time::Time};

#[derive(Default)]
pub(crate) struct Trace {
    pub(crate) requests: Vec<Sent>,
    pub(crate) passes: BTreeMap<PassId, Pass>,
    /// Faults and steps, in order.
    pub(crate) notes: Vec<Note>,
}

/// The index of a request in its trace.
pub(crate) type RequestId = usize;

pub(crate) struct Sent {
    pub(crate) at: Time,
    pub(crate) replica: usize,
    /// The number of the start of the replica's process.
    pub(crate) incarnation: u32,
    pub(crate) pass: Option<PassId>,
    pub(crate) method: Method,
    pub(crate) uri: String,
    pub(crate) body: Bytes,
    /// `None` for a request of no resource.
    pub(crate) info: Option<RequestInfo>,
    /// The time at which the API server handled it.
    pub(crate) handled: Option<Time>,
    /// The time of the response, and its code or the reason that there was none.
    pub(crate) answered: Option<(Time, String)>,
    /// The state that a successful write stored.
    pub(crate) stored: Option<Stored>,
}

/// A state of an object.
pub(crate) struct Stored {
    /// Its Kind and key.
    pub(crate) name: String,
    pub(crate) uid: String,
    /// A hash of its content.
    pub(crate) content: u64,
}

pub(crate) struct Pass {
    pub(crate) replica: usize,
    pub(crate) controller: String,
    pub(crate) key: String,
    pub(crate) begun: Time,
    pub(crate) ended: Option<Time>,
    pub(crate) result: Option<String>,
    /// The error that the pass logged last. A pass that succeeds may have warned of one.
    pub(crate) error: Option<String>,
}

pub(crate) struct Note {
    pub(crate) at: Time,
    /// The replica concerned.
    pub(crate) replica: Option<usize>,
    pub(crate) text: String,
}

impl Pass {
    /// The result, with the error if the pass failed.
    pub(crate) fn outcome(&self) -> String {
        let result = self.result.as_deref().unwrap_or("dropped");
        let error = self.error.as_ref().filter(|_| self.has_failed());
        error.map_or_else(|| result.to_owned(), |error| format!("{result}: {error}"))
    }

    pub(crate) fn has_succeeded(&self) -> bool {
        matches!(self.result.as_deref(), Some("success" | "requeue_after"))
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.error.is_some() && !self.has_succeeded()
    }
}

impl Sent {
    pub(crate) fn resource(&self) -> &str {
        self.info.as_ref().map_or("", |info| &info.resource)
    }

    fn group(&self) -> &str {
        self.info.as_ref().map_or("", |info| &info.group)
    }

    pub(crate) fn is_write(&self) -> bool {
        self.method != Method::GET
    }

    /// The parts of a request that are the same in two runs of a seed.
    pub(crate) fn identity(&self) -> (Time, usize, &str, &str, &[u8]) {
        (self.at, self.replica, self.method.as_str(), &self.uri, &self.body)
    }

    /// Returns true for the traffic of leader election.
    pub(crate) fn is_of_leases(&self) -> bool {
        self.group() == "coordination.k8s.io"
    }

    pub(crate) fn is_of_events(&self) -> bool {
        self.resource() == "events"
    }

    /// Returns true for a write that changes what a controller is responsible for.
    pub(crate) fn is_effect(&self) -> bool {
        self.is_write() && !self.is_of_leases() && !self.is_of_events()
    }

    /// The namespace and the name in the path, as `shop/a`.
    pub(crate) fn key(&self) -> String {
        let Some(info) = &self.info else { return String::new() };
        let name = info.name.as_deref().unwrap_or_default();
        info.namespace.as_ref().map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
    }

    /// The verb, the resource and the key, as `patch configmaps shop/a`.
    pub(crate) fn summary(&self) -> String {
        let verb = match &self.info {
            Some(info) if info.verb == "patch" && self.uri.contains("fieldManager=") && self.is_apply() => {
                "apply"
            }
            Some(info) => info.verb,
            None => return format!("{} {}", self.method, self.uri),
        };
        format!("{verb} {} {}", self.resource(), self.key())
    }

    fn is_apply(&self) -> bool {
        self.method == Method::PATCH && self.body.starts_with(b"{\"apiVersion\"")
    }
}

impl Trace {
    pub(crate) fn note(&mut self, at: Time, replica: Option<usize>, text: impl Into<String>) {
        self.notes.push(Note { at, replica, text: text.into() });
    }

    pub(crate) fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.requests.iter().for_each(|sent| sent.identity().hash(&mut hasher));
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_warning_is_not_that_of_a_pass_that_succeeds() {
        let mut pass = Pass {
            replica: 0,
            controller: "widgets".into(),
            key: "shop/a".into(),
            begun: Time::default(),
            ended: Some(Time::default()),
            result: Some("success".into()),
            error: Some("no size".into()),
        };
        assert_eq!(pass.outcome(), "success");
        assert!(!pass.has_failed());
        pass.result = Some("error".into());
        assert_eq!(pass.outcome(), "error: no size");
        assert!(pass.has_failed());
    }
}
