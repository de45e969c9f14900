//! Reads back the objects that a write changed, if its response does not contain their new state.
//!
//! The response to the deletion of a collection contains the states before the deletion. The response to an eviction
//! contains a `Status`.

use std::collections::BTreeSet;

use kube::core::{Request, params::ListParams};
use reknit_apis::Key;

use super::{resource_path::ResourcePath, transport::Transport};
use crate::{
    informer::{Informers, selection::field_term},
    object::{ResourceVersion, ResponseState},
    reflector::{Failure, PAGE_SIZE, Page, fetch},
};

/// Delivers the current state of these objects, or their absence, to the informers. If the objects cannot be read, the
/// caches change only when the watch reports the changes.
pub(super) async fn read_back(
    transport: &Transport,
    informers: &Informers,
    path: &ResourcePath<'_>,
    keys: Vec<Key>,
) {
    if let Err(error) = try_read_back(transport, informers, path, &keys).await {
        let resource = path.collection_path();
        tracing::warn!(resource, %error, "failed to read back the objects that a write changed, waiting for the watch");
    }
}

/// Lists page by page. All pages show the same resourceVersion, so an object that no page contains did not exist at
/// that version.
async fn try_read_back(
    transport: &Transport,
    informers: &Informers,
    path: &ResourcePath<'_>,
    keys: &[Key],
) -> Result<(), Failure> {
    let field_selector = match keys {
        [] => return Ok(()),
        [key] => Some(field_term("metadata.name", &key.name)),
        _ => None,
    };
    let mut params = ListParams { field_selector, limit: Some(PAGE_SIZE), ..ListParams::default() };
    let collection = Request::new(path.collection_path());
    let mut absent: BTreeSet<_> = keys.iter().collect();
    loop {
        let request = collection.list(&params).map_err(kube::Error::BuildRequest)?;
        let response = fetch(transport, request).await?;
        let mut unreadable = None;
        let page = Page::read(&response, |item, text| match item {
            Ok(raw) if absent.remove(&raw.key()) => {
                informers.apply_response(path, &ResponseState::Item { raw: &raw, text });
            }
            Ok(_) => {}
            Err(error) => unreadable = Some(error),
        })?;
        if let Some(error) = unreadable {
            // The item may be an object of `keys`, which must not count as absent.
            return Err(Failure::malformed(error));
        }
        params.continue_token = page.continue_token;
        if params.continue_token.is_none() {
            let version = ResourceVersion::parse(&page.resource_version);
            for key in absent {
                informers.apply_response(path, &ResponseState::Absent { key, version });
            }
            return Ok(());
        }
    }
}
