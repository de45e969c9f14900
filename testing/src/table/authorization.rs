//! The check that the declared permissions cover each request of a reconcile.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use reknit_apiserver::RequestInfo;
use reknit_injection::internal::{Permissions, RequestAttributes};

use crate::{ApiServer, Verb};

const VERBS: [Verb; 8] = [
    Verb::Get,
    Verb::List,
    Verb::Watch,
    Verb::Create,
    Verb::Update,
    Verb::Patch,
    Verb::Delete,
    Verb::DeleteCollection,
];

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
        let is_denied =
            denied.iter().any(|(verb, resource)| *verb == request.verb && resource == request.resource);
        if !is_denied && permissions.declared().iter().any(|permission| permission.covers(&request)) {
            return Ok(());
        }
        let remedy = match is_denied {
            true => "the test takes this permission away".to_owned(),
            false => permissions.suggest(&request),
        };
        record.lock().insert(format!("{request}: {remedy}"));
        Err(format!("the declared permissions do not cover {request}"))
    });
    refused
}

fn attributes(info: &RequestInfo) -> Option<RequestAttributes<'_>> {
    let RequestInfo { verb, group, resource, namespace, name } = info;
    let verb = VERBS.into_iter().find(|known| known.to_string() == *verb)?;
    let (namespace, name) = (namespace.as_deref(), name.as_deref());
    Some(RequestAttributes { verb, group, resource, namespace, name })
}
