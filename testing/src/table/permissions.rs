//! The check that a controller needs each permission that it declares.

use std::collections::BTreeSet;

use reknit_injection::{Context, Permission};
use reknit_reconciler::{Controller, Result};

use super::rows::{Ran, Table};
use crate::Verb;

/// Runs the table with all permissions that the constructor declares, and then once without each verb of each resource:
/// each of these runs must fail in at least one case. So the table shows that the RBAC rules that are generated from
/// the code grant no more than the controller needs. Cases that are added by [`Table::unchecked_row`] suffice.
///
/// `list` and `watch` are not taken away: informers need them, and a table fills the informers. `patch` of events is
/// not taken away either, since an event is patched only when a later reconcile repeats it, nor are `impersonate` and
/// [other](Verb::Other) verbs, which the server in memory does not check.
///
/// As in a cluster, a binding needs `bind` only if the controller does not hold everything that the role grants. So the
/// role of the case has to grant more than that, or be absent: one without rules grants nothing.
///
/// ```
/// use k8s_openapi::api::core::v1::Namespace;
/// use reknit_injection::{Context, Permission, Verb};
/// use reknit_reconciler::{Controller, Event, Outcome, ReconcileKind, Result};
/// use reknit_testing::{Want, each_permission_is_needed, given, table};
///
/// # struct Greeter;
/// # impl ReconcileKind for Greeter {
/// #     type Kind = Namespace;
/// #     async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
/// #         Ok(Outcome::done().event(Event::normal("Greeted", "hello")))
/// #     }
/// # }
/// fn controller(cx: &Context) -> Result<Controller> {
///     Ok(Controller::of::<Namespace>(cx).reconciler(Greeter).build())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// each_permission_is_needed(|| {
///     let mut shop = Namespace::default();
///     shop.metadata.name = Some("shop".into());
///     let want = Want::done().event(Event::normal("Greeted", "hello"));
///     table(controller).row("a namespace is greeted", "shop", given(shop), want)
/// })
/// .await;
/// # }
/// ```
///
/// # Panics
///
/// Panics if a case fails with all permissions, or if no case fails without one of the declared verbs. The message
/// names the case or the verbs.
#[expect(clippy::panic, reason = "a failed assertion of a test panics")]
pub async fn each_permission_is_needed<C: Fn(&Context) -> Result<Controller>>(cases: impl Fn() -> Table<C>) {
    let Ran { failures, permissions } = cases().run_all().await;
    if !failures.is_empty() {
        panic!("{} cases failed with all permissions:\n{}", failures.len(), failures.concat());
    }
    let (mut unneeded, mut hint) = (Vec::new(), "");
    for (verb, resource) in verbs_to_take_away(&permissions) {
        if cases().denying(verb, &resource).run_all().await.failures.is_empty() {
            unneeded.push(format!("{verb} {resource}"));
            hint = if verb == Verb::Bind { WHEN_BIND_IS_NEEDED } else { hint };
        }
    }
    if !unneeded.is_empty() {
        let unneeded = unneeded.join(", ");
        panic!(
            "no case fails without these permissions: {unneeded}: add a case that needs them, or do not declare \
             them{hint}"
        );
    }
}

const WHEN_BIND_IS_NEEDED: &str = ". A case needs `bind` if it writes a binding to a role that it does not have, or \
                                   whose rules grant more than the controller may do itself: leave the role out, or \
                                   give it rules";

fn verbs_to_take_away(permissions: &[Permission]) -> BTreeSet<(Verb, String)> {
    let verbs = permissions
        .iter()
        .flat_map(|permission| permission.verbs().map(|verb| (verb, permission.resource().to_owned())));
    verbs.filter(|(verb, resource)| is_sent_by_one_reconcile(*verb, resource)).collect()
}

fn is_sent_by_one_reconcile(verb: Verb, resource: &str) -> bool {
    !matches!(verb, Verb::List | Verb::Watch | Verb::Impersonate | Verb::Other(_))
        && (verb, resource) != (Verb::Patch, "events")
}
