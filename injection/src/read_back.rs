//! Reads what a write changed where its answer does not say: a deletion of a collection answers what was there before
//! it, and an eviction that all went well.

use std::collections::BTreeSet;

use kube::core::{Request, params::ListParams};
use reknit_apis::Key;

use crate::{
    answer::{Failure, fetch},
    registry::Informers,
    resource_path::ResourcePath,
    source::{PAGE, Page},
    transport::Transport,
};

/// Tells the informers how these objects are now, or that they are no more. Where that cannot be read, the watch will
/// tell it.
pub(crate) async fn read_back(
    transport: &Transport,
    informers: &Informers,
    path: &ResourcePath<'_>,
    keys: Vec<Key>,
) {
    if let Err(error) = read(transport, informers, path, &keys).await {
        tracing::warn!(resource = path.collection(), %error, "cannot read back what a write changed: the watch will tell it");
    }
}

/// One list, page by page, so that there is one version by which what it lacks is gone.
async fn read(
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
    let (mut gone, list): (BTreeSet<_>, _) = (keys.iter().collect(), Request::new(path.collection()));
    loop {
        let request = list.list(&params).map_err(kube::Error::BuildRequest)?;
        let answer = fetch(transport, request).await?;
        let mut unreadable = None;
        let page = Page::read(&answer, |item, text| match item {
            Ok(raw) if gone.remove(&raw.key()) => informers.found(path, &raw, text),
            Ok(_) => {}
            Err(error) => unreadable = Some(error),
        })?;
        if let Some(error) = unreadable {
            return Err(Failure::malformed(error)); // it may be one that would be taken for gone
        }
        params.continue_token = page.continue_token;
        if params.continue_token.is_none() {
            gone.into_iter().for_each(|key| informers.gone_by(path, key, &page.resource_version));
            return Ok(());
        }
    }
}
