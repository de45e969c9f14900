//! The permissions that the constructors of a process need, from which its RBAC rules are generated.

mod permission;
mod verb;

use std::{fmt, sync::Arc};

use parking_lot::Mutex;

pub use self::{
    permission::{Permission, RequestAttributes},
    verb::Verb,
};

/// The permissions that constructors have declared. All clones share one list.
#[derive(Clone, Default)]
pub struct Permissions(Arc<Mutex<Vec<Declaration>>>);

/// The permissions of one builder call.
struct Declaration {
    permissions: Vec<Permission>,
    /// The builder call, such as `build.owns()`. Empty if its permissions cannot be changed.
    call: &'static str,
    /// The error if the call needs Kinds that were not declared.
    undeclared: Option<Undeclared>,
}

/// The error of a builder call whose Kinds are known only at run time and were not declared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the Kinds of {call} in the controller {controller} are known only at run time: name their resources by \
     {call}.resources([(group, plural), …])"
)]
pub struct Undeclared {
    /// The name of the controller.
    pub controller: String,
    /// The builder call, such as `build.track_any()`.
    pub call: &'static str,
}

/// A handle to the permissions of one builder call. The value that the call returned changes them through it.
#[derive(Clone)]
pub struct Declared {
    list: Permissions,
    index: usize,
}

impl Permissions {
    /// Adds a permission.
    pub fn add(&self, permission: Permission) {
        self.declare("", vec![permission]);
    }

    /// Adds the permissions of a builder call, which the returned handle can change.
    pub fn declare(&self, call: &'static str, permissions: Vec<Permission>) -> Declared {
        self.push(Declaration { permissions, call, undeclared: None })
    }

    /// Adds a builder call whose Kinds are known only at run time. [`Declared::set`] declares them.
    pub fn declare_dynamic(&self, call: &'static str, controller: &str) -> Declared {
        let undeclared = Some(Undeclared { controller: controller.into(), call });
        self.push(Declaration { permissions: Vec::new(), call, undeclared })
    }

    fn push(&self, declaration: Declaration) -> Declared {
        let mut list = self.0.lock();
        list.push(declaration);
        Declared { list: self.clone(), index: list.len() - 1 }
    }

    /// Returns all permissions in the order of the builder calls. They may overlap.
    ///
    /// # Errors
    ///
    /// Returns an error if a builder call needs Kinds that are known only at run time, and they were not declared.
    pub fn all(&self) -> Result<Vec<Permission>, Undeclared> {
        let undeclared = self.0.lock().iter().find_map(|declaration| declaration.undeclared.clone());
        undeclared.map_or_else(|| Ok(self.declared()), Err)
    }

    /// Returns the permissions that were declared so far.
    pub fn declared(&self) -> Vec<Permission> {
        self.0.lock().iter().flat_map(|declaration| declaration.permissions.clone()).collect()
    }

    /// Returns a suggestion for an error message: the change of a constructor that would allow the request.
    pub fn suggest(&self, request: &RequestAttributes<'_>) -> String {
        let list = self.0.lock();
        let RequestAttributes { verb, group, resource, .. } = request;
        let is_child =
            |permission: &&Permission| permission.group() == *group && permission.resource() == *resource;
        let owned = list.iter().filter(|declaration| declaration.call.starts_with("build.owns"));
        let found = owned
            .clone()
            .find_map(|declaration| Some((declaration.call, declaration.permissions.iter().find(is_child)?)));
        if let Some((call, children)) = found {
            let mut verbs: Vec<_> = children.verbs().filter(|verb| !is_of_informer(*verb)).collect();
            verbs.push(*verb);
            verbs.sort();
            let verbs: Vec<_> = verbs.iter().map(|verb| format!("Verb::{verb:?}")).collect();
            return format!("add the verb by {call}.verbs([{}])", verbs.join(", "));
        }
        if let Some(dynamic) = owned.clone().find(|declaration| declaration.undeclared.is_some()) {
            return format!("name the Kind by {}.resources([({group:?}, {resource:?})])", dynamic.call);
        }
        format!("declare it by build.allows(Permission::new({group:?}, {resource:?}, [Verb::{verb:?}]))")
    }
}

/// Returns true if informers send requests of this verb.
fn is_of_informer(verb: Verb) -> bool {
    matches!(verb, Verb::List | Verb::Watch)
}

impl Declared {
    /// Replaces the permissions of the builder call.
    pub fn set(&self, permissions: Vec<Permission>) {
        if let Some(declaration) = self.list.0.lock().get_mut(self.index) {
            declaration.permissions = permissions;
            declaration.undeclared = None;
        }
    }

    /// Replaces the verbs of each permission of the builder call.
    pub fn set_verbs(&self, verbs: &[Verb]) {
        if let Some(declaration) = self.list.0.lock().get_mut(self.index) {
            for permission in &mut declaration.permissions {
                *permission = permission.with_verbs(verbs.iter().copied());
            }
        }
    }
}

impl fmt::Debug for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.declared()).finish()
    }
}
