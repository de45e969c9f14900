//! Reads back what a write changed if its answer does not show it.
//!
//! The deletion of a collection answers with the state before the deletion, and an eviction with a `Status`.

use std::collections::BTreeSet;

use kube::core::{Request, params::ListParams};
use reknit_apis::Key;

use super::{own_writes::Answered, resource_path::ResourcePath, transport::Transport};
use crate::{
    informer::Informers,
    object::ResourceVersion,
    reflector::{Failure, PAGE, Page, fetch},
};

/// Delivers the present state of these objects, or their absence, to the informers. If it cannot be read, the watch
/// reports it later.
pub(super) async fn read_back(
    transport: &Transport,
    informers: &Informers,
    path: &ResourcePath<'_>,
    keys: Vec<Key>,
) {
    if let Err(error) = try_read_back(transport, informers, path, &keys).await {
        let resource = path.collection();
        tracing::warn!(resource, %error, "failed to read back the objects that a write changed, waiting for the watch");
    }
}

/// Lists page by page. All pages show the state at one resourceVersion, so objects that are not listed do not exist then.
async fn try_read_back(
    transport: &Transport,
    informers: &Informers,
    path: &ResourcePath<'_>,
    keys: &[Key],
) -> Result<(), Failure> {
    let fields = match keys {
        [] => return Ok(()),
        [key] => Some(format!("metadata.name={}", key.name)),
        _ => None,
    };
    let mut params = ListParams { field_selector: fields, limit: Some(PAGE), ..ListParams::default() };
    let (mut absent, list): (BTreeSet<_>, _) = (keys.iter().collect(), Request::new(path.collection()));
    loop {
        let request = list.list(&params).map_err(kube::Error::BuildRequest)?;
        let answer = fetch(transport, request).await?;
        let mut unreadable = None;
        let page = Page::read(&answer, |item, text| match item {
            Ok(raw) if absent.remove(&raw.key()) => {
                informers.apply_answer(path, &Answered::Item { raw: &raw, text });
            }
            Ok(_) => {}
            Err(error) => unreadable = Some(error),
        })?;
        if let Some(error) = unreadable {
            return Err(Failure::malformed(error)); // it may be one of the keys, which must not count as absent
        }
        params.continue_token = page.continue_token;
        if params.continue_token.is_none() {
            let version = ResourceVersion::parse(&page.resource_version);
            for key in absent {
                informers.apply_answer(path, &Answered::Absent { key, version });
            }
            return Ok(());
        }
    }
}
