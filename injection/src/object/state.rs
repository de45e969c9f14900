//! The identity of an object and the version of one of its states.

use reknit_apis::Key;

use super::ResourceVersion;

/// The identity of an object and the version of one of its states, borrowed from the object.
#[derive(Clone, Copy)]
pub(crate) struct ObjectState<'a> {
    pub(crate) namespace: Option<&'a str>,
    pub(crate) name: &'a str,
    pub(crate) uid: Option<&'a str>,
    /// The resourceVersion as it is written, whether or not it can be ordered.
    pub(crate) resource_version: &'a str,
}

impl<'a> ObjectState<'a> {
    pub(crate) fn key(&self) -> Key {
        Key::new(self.namespace, self.name)
    }

    pub(crate) fn version(&self) -> Option<ResourceVersion<'a>> {
        ResourceVersion::parse(self.resource_version)
    }
}
