//! Common mappings from a changed object to the keys to enqueue, for [`Watch::keys`](crate::Watch::keys).
//!
//! To enqueue the object's own key, use `|object| [Key::of(object)]`. To enqueue the key of its controller, use
//! [`Builder::owns`](crate::Builder::owns).

use kube::Resource;
use reknit_apis::Key;

/// Maps an object to its namespace, as a cluster-scoped key.
pub fn namespace<T: Resource>(object: &T) -> Option<Key> {
    object.meta().namespace.as_deref().map(|name| Key::new(None, name))
}

/// Maps an object to the parent that a label names, in the object's own namespace.
pub fn label<T: Resource>(name: &str) -> impl Fn(&T) -> Option<Key> + Send + Sync + 'static + use<T> {
    let name = name.to_owned();
    move |object| Some(Key::new(object.meta().namespace.as_deref(), value(object, &name)?))
}

/// Maps an object to the parent whose namespace and name two labels hold.
pub fn labels<T: Resource>(
    namespace: &str,
    name: &str,
) -> impl Fn(&T) -> Option<Key> + Send + Sync + 'static + use<T> {
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    move |object| Some(Key::new(value(object, &namespace)?, value(object, &name)?))
}

/// Maps an object to the cluster-scoped parent that a label names.
pub fn cluster_label<T: Resource>(name: &str) -> impl Fn(&T) -> Option<Key> + Send + Sync + 'static + use<T> {
    let name = name.to_owned();
    move |object| Some(Key::new(None, value(object, &name)?))
}

fn value<'a, T: Resource>(object: &'a T, label: &str) -> Option<&'a str> {
    object.meta().labels.as_ref()?.get(label).map(String::as_str).filter(|value| !value.is_empty())
}
