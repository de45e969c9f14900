//! The check that the declared permissions cover each request of a reconcile.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use reknit_apiserver::RequestInfo;
use reknit_injection::internal::{Permissions, RequestAttributes};
use serde_json::Value;

use crate::{ApiServer, Verb};

/// The requests that were refused, each with the declaration that would allow it.
pub(super) type Refused = Arc<Mutex<BTreeSet<String>>>;

/// Makes the server refuse requests that these permissions do not cover, and requests of the denied verbs and resources.
pub(super) fn authorize(
    server: &ApiServer,
    permissions: Permissions,
    denied: Vec<(Verb, String)>,
) -> Refused {
    let refused = Refused::default();
    let record = refused.clone();
    server.authorize(move |info| {
        let Some(request) = attributes(info) else { return Ok(()) };
        let is_denied = |request: &RequestAttributes<'_>| {
            denied.iter().any(|(verb, resource)| *verb == request.verb && resource == request.resource)
        };
        let declared = permissions.declared();
        let is_held = |request: &RequestAttributes<'_>| {
            !is_denied(request) && declared.iter().any(|permission| permission.covers(request))
        };
        if is_held(&request) {
            return Ok(());
        }
        // Who holds what it grants needs no right to grant it.
        if info.grants.as_ref().is_some_and(|rules| are_held(rules, info.namespace.as_deref(), &is_held)) {
            return Ok(());
        }
        let remedy = match is_denied(&request) {
            true => "the test takes this permission away".to_owned(),
            false => permissions.suggest(&request),
        };
        record.lock().insert(format!("{request}: {remedy}"));
        Err(format!("the declared permissions do not cover {request}"))
    });
    refused
}

fn attributes(info: &RequestInfo) -> Option<RequestAttributes<'_>> {
    let RequestInfo { verb, group, resource, namespace, name, .. } = info;
    let verb = Verb::parse(verb)?;
    let (namespace, name) = (namespace.as_deref(), name.as_deref());
    Some(RequestAttributes { verb, group, resource, namespace, name })
}

/// Returns true if all rights that the rules of a role grant in this namespace are held.
fn are_held(
    rules: &Value,
    namespace: Option<&str>,
    is_held: &impl Fn(&RequestAttributes<'_>) -> bool,
) -> bool {
    rules.as_array().into_iter().flatten().all(|rule| is_rule_held(rule, namespace, is_held))
}

fn is_rule_held(
    rule: &Value,
    namespace: Option<&str>,
    is_held: &impl Fn(&RequestAttributes<'_>) -> bool,
) -> bool {
    let texts = |field: &str| -> Vec<&str> {
        rule[field].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    };
    let names: Vec<Option<&str>> = match texts("resourceNames") {
        names if names.is_empty() => vec![None],
        names => names.into_iter().map(Some).collect(),
    };
    let (groups, resources) = (texts("apiGroups"), texts("resources"));
    let is_held = |verb: &str, group, resource, name| {
        Verb::parse(verb)
            .is_some_and(|verb| is_held(&RequestAttributes { verb, group, resource, namespace, name }))
    };
    texts("nonResourceURLs").is_empty()
        && texts("verbs").into_iter().all(|verb| {
            groups.iter().all(|group| {
                resources
                    .iter()
                    .all(|resource| names.iter().all(|name| is_held(verb, *group, *resource, *name)))
            })
        })
}
