//! Applies YAML as `kubectl apply --server-side --force-conflicts` does.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
    discovery::{Scope, pinned_kind},
};
use serde_json::Value;

use super::{ControlPlane, Error, crds};

pub(super) const FIELD_MANAGER: &str = "reknit-testing";

impl ControlPlane {
    /// Applies every document of the text, in order, by server-side apply. After a CustomResourceDefinition, waits
    /// until the API server serves it. A namespaced object without a namespace goes to `default`.
    pub async fn apply_yaml(&self, text: &str) -> Result<(), Error> {
        self.apply("text", text).await
    }

    /// Applies a file, or the `.yaml` and `.yml` files of a folder in the order of their names, as
    /// [`apply_yaml`](Self::apply_yaml) does.
    pub async fn apply_path(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        for file in yaml_files(path.as_ref())? {
            let text =
                fs::read_to_string(&file).map_err(Error::cannot(format!("read {}", file.display())))?;
            self.apply(&file.display().to_string(), &text).await?;
        }
        Ok(())
    }

    pub(super) async fn apply(&self, origin: &str, text: &str) -> Result<(), Error> {
        let client = self.client()?;
        let mut text = text.as_bytes();
        // kubectl reads 0644 as an octal number too.
        let options = serde_saphyr::options! { legacy_octal_numbers: true };
        let documents = serde_saphyr::read_with_options::<_, Value>(&mut text, options);
        for (document, number) in documents.zip(1..) {
            let origin = format!("{origin}, document {number}");
            let yaml_error = |problem: String| Error::new(format!("{origin}: {problem}"));
            let value = document.map_err(|error| yaml_error(error.without_snippet().to_string()))?;
            let object: DynamicObject =
                serde_json::from_value(value).map_err(|error| yaml_error(error.to_string()))?;
            apply_object(&client, &object, yaml_error).await?;
            match object.types.as_ref().map(|types| &*types.kind) {
                Some("CustomResourceDefinition") => {
                    let definition = object.try_parse().map_err(|error| yaml_error(error.to_string()))?;
                    crds::wait_until_served(&client, &definition).await?;
                }
                Some("ClusterRole") => self.aggregate_cluster_roles().await?,
                _ => {}
            }
        }
        Ok(())
    }
}

async fn apply_object(
    client: &Client,
    object: &DynamicObject,
    yaml_error: impl Fn(String) -> Error,
) -> Result<(), Error> {
    let types = object.types.as_ref().ok_or_else(|| yaml_error("no apiVersion and kind".into()))?;
    let name = object
        .metadata
        .name
        .as_deref()
        .ok_or_else(|| yaml_error(format!("a {} without a name", types.kind)))?;
    let kind = GroupVersionKind::try_from(types).map_err(|error| yaml_error(error.to_string()))?;
    let (resource, capabilities) = pinned_kind(client, &kind)
        .await
        .map_err(Error::cannot(format!("find the Kind {} {}", types.api_version, types.kind)))?;
    let api: Api<DynamicObject> = match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => {
            let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
            Api::namespaced_with(client.clone(), namespace, &resource)
        }
    };
    api.patch(name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(object))
        .await
        .map_err(Error::cannot(format!("apply {} {name}", types.kind)))?;
    Ok(())
}

fn yaml_files(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let is_yaml = |file: &PathBuf| matches!(file.extension().and_then(OsStr::to_str), Some("yaml" | "yml"));
    let entries = fs::read_dir(path).map_err(Error::cannot(format!("read {}", path.display())))?;
    let paths: Result<Vec<PathBuf>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut files = paths.map_err(Error::cannot(format!("read {}", path.display())))?;
    files.retain(is_yaml);
    files.sort();
    Ok(files)
}
