//! Whom a changed object wakes, in the ways that are common: for [`Watch::keys`](crate::Watch::keys).
//!
//! An object that wakes its own key is `|object| [Key::of(object)]`; one that wakes its controller,
//! [`Builder::owns`](crate::Builder::owns).

use kube::Resource;
use reknit_apis::Key;

/// The namespace that the object is in, as a cluster-scoped key.
pub fn namespace<T: Resource>(object: &T) -> Option<Key> {
    object.meta().namespace.as_deref().map(|name| Key::new(None, name))
}

/// The parent that a label names, in the object's own namespace.
pub fn label<T: Resource>(name: &str) -> impl Fn(&T) -> Option<Key> + Send + Sync + 'static + use<T> {
    let name = name.to_owned();
    move |object| Some(Key::new(object.meta().namespace.as_deref(), value(object, &name)?))
}

/// The parent that two labels name: one its namespace, one its name.
pub fn labels<T: Resource>(
    namespace: &str,
    name: &str,
) -> impl Fn(&T) -> Option<Key> + Send + Sync + 'static + use<T> {
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    move |object| Some(Key::new(value(object, &namespace)?, value(object, &name)?))
}

/// The cluster-scoped parent that a label names.
pub fn cluster_label<T: Resource>(name: &str) -> impl Fn(&T) -> Option<Key> + Send + Sync + 'static + use<T> {
    let name = name.to_owned();
    move |object| Some(Key::new(None, value(object, &name)?))
}

fn value<'a, T: Resource>(object: &'a T, label: &str) -> Option<&'a str> {
    object.meta().labels.as_ref()?.get(label).map(String::as_str).filter(|value| !value.is_empty())
}
