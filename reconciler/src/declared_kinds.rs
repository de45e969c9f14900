//! The declared permissions on Kinds that are known only at run time.

use reknit_injection::{Declared, Permission, Selection, Verb};

/// The permissions of one tracker or owner of children whose Kinds are chosen at run time. The developer lists the
/// resources in advance, so that the roles can be generated.
#[derive(Clone)]
pub(crate) struct DeclaredKinds {
    /// The place of these permissions among those of the controller.
    declared: Declared,
    /// All namespaces if empty.
    namespaces: Vec<String>,
    verbs: Vec<Verb>,
    /// API group and plural name.
    resources: Vec<(String, String)>,
}

impl DeclaredKinds {
    pub(crate) fn new(declared: Declared, selection: &Selection, verbs: &[Verb]) -> Self {
        let namespaces = selection.selected_namespaces().to_vec();
        Self { declared, namespaces, verbs: verbs.to_vec(), resources: Vec::new() }
    }

    /// Declares the resources, by API group and plural name.
    pub(crate) fn set_resources<G: Into<String>, R: Into<String>>(
        &mut self,
        resources: impl IntoIterator<Item = (G, R)>,
    ) {
        self.resources =
            resources.into_iter().map(|(group, resource)| (group.into(), resource.into())).collect();
        self.declare();
    }

    /// Replaces the verbs by list and watch, which informers always need, and these verbs of writes.
    pub(crate) fn set_write_verbs(&mut self, write_verbs: &[Verb]) {
        self.verbs = [&[Verb::List, Verb::Watch], write_verbs].concat();
        if !self.resources.is_empty() {
            self.declare();
        }
    }

    fn declare(&self) {
        let permission = |(group, resource): &(String, String)| {
            Permission::new(group, resource, self.verbs.iter().copied()).or_namespaces(&self.namespaces)
        };
        self.declared.set(self.resources.iter().map(permission).collect());
    }
}
