//! The permissions that the constructors of a process need, from which its RBAC rules are generated.

mod permission;
mod verb;

use std::sync::Arc;

use parking_lot::Mutex;

pub use self::{
    permission::{Permission, RequestAttributes, covers_resource},
    verb::Verb,
};

/// The permissions that constructors have declared. All clones share one list.
#[derive(Clone, Debug, Default)]
pub struct Permissions(Arc<Mutex<List>>);

#[derive(Debug, Default)]
struct List {
    /// In the order of the builder calls.
    all: Vec<Permission>,
    /// The permissions on children, which are in `all` too.
    children: Vec<Permission>,
    /// The controllers whose Kinds are known only at run time and are not named.
    with_unnamed_kinds: Vec<String>,
}

/// The error of a controller whose Kinds are known only at run time and are not named.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the controller {0} uses Kinds::any(), for which no RBAC rules can be generated: name the resources by \
     Kinds::of([(group, plural), …])"
)]
pub struct UnnamedKinds(String);

impl Permissions {
    /// Adds a permission.
    pub fn add(&self, permission: Permission) {
        self.0.lock().all.push(permission);
    }

    /// Adds a permission on children, whose verbs the options of the builder call set.
    pub fn add_on_children(&self, permission: Permission) {
        self.0.lock().children.push(permission.clone());
        self.add(permission);
    }

    /// Records that the Kinds of a controller are known only at run time and are not named.
    pub fn add_unnamed_kinds(&self, controller: &str) {
        self.0.lock().with_unnamed_kinds.push(controller.into());
    }

    /// Returns all permissions in the order of the builder calls. They may overlap.
    ///
    /// # Errors
    ///
    /// Returns an error if the Kinds of a controller are known only at run time and are not named.
    pub fn all(&self) -> Result<Vec<Permission>, UnnamedKinds> {
        let list = self.0.lock();
        let unnamed = list.with_unnamed_kinds.first();
        unnamed.map_or_else(|| Ok(list.all.clone()), |controller| Err(UnnamedKinds(controller.clone())))
    }

    /// Returns the permissions that were declared so far.
    pub fn declared(&self) -> Vec<Permission> {
        self.0.lock().all.clone()
    }

    /// Returns a suggestion for an error message: the change of a constructor that would allow the request.
    pub fn suggest(&self, request: &RequestAttributes<'_>) -> String {
        let list = self.0.lock();
        let RequestAttributes { verb, group, resource, name, .. } = request;
        match verb {
            Verb::Bind => {
                let method = if *resource == "clusterroles" { "bind_cluster_roles" } else { "bind_roles" };
                let name = name.unwrap_or_default();
                return format!("name the role by OwnedOptions::default().{method}([{name:?}])");
            }
            Verb::Escalate => {
                return "declare the rights that the role grants by build.allows(..), since a process may grant only \
                        what it holds itself; a role with an aggregationRule needs Verb::Escalate"
                    .into();
            }
            _ => {}
        }
        let Some(of_child) = list.children.iter().find(|permission| permission.is_on(group, resource)) else {
            return format!(
                "declare it by build.allows(Permission::new({group:?}, {resource:?}, [Verb::{verb:?}]))"
            );
        };
        let mut verbs: Vec<_> = of_child.verbs().chain([*verb]).collect();
        verbs.sort();
        let verbs: Vec<_> = verbs.iter().map(|verb| format!("Verb::{verb:?}")).collect();
        format!("add the verb by OwnedOptions::default().verbs([{}])", verbs.join(", "))
    }
}
