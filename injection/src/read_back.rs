//! Reads what a write changed where its answer does not say: a deletion of a collection answers what was there before
//! it, and an eviction that all went well.

use kube::core::{Request, params::ListParams};
use reknit_apis::Key;

use crate::{
    answer::{Failure, fetch},
    registry::Informers,
    resource_path::ResourcePath,
    source::Page,
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

/// One list, so that there is one version by which what it lacks is gone.
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
    let params = ListParams { field_selector: fields, ..ListParams::default() };
    let request = Request::new(path.collection()).list(&params).map_err(kube::Error::BuildRequest)?;
    let answer = fetch(transport, request).await?;
    let page = Page::read_values(&answer)?;
    let mut gone: Vec<_> = keys.iter().collect();
    for mut object in page.items.into_iter().flatten() {
        let meta = &object["metadata"];
        let key = Key::new(meta["namespace"].as_str(), meta["name"].as_str().unwrap_or_default());
        if keys.contains(&key) {
            gone.retain(|gone| **gone != key);
            informers.found(path, &mut object);
        }
    }
    gone.into_iter().for_each(|key| informers.gone_by(path, key, &page.metadata.resource_version));
    Ok(())
}
