//! Requests are checked against the permissions that the constructor declares.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use k8s_openapi::api::rbac::v1::{ClusterRole, Role, RoleBinding};
use reknit_injection::{Permission, Verb};
use reknit_reconciler::OwnedOptions;

use super::*;

/// Reads a Secret, which no builder call declares.
struct SecretReader(Client);

impl ReconcileKind for SecretReader {
    type Kind = Namespace;

    async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
        let secrets: Api<Secret> = Api::namespaced(self.0.clone(), "shop");
        // The failure is ignored on purpose, since the test must fail for the missing permission even if the reconcile
        // succeeds.
        let _ = secrets.get_opt("key").await;
        Ok(Outcome::done())
    }
}

fn reader(cx: &Context) -> Result<Controller> {
    Ok(Controller::of::<Namespace>(cx).reconciler(SecretReader(cx.client())).build())
}

fn declared_reader(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<Namespace>(cx);
    build.allows(Permission::of::<Secret>([Verb::Get]));
    Ok(build.reconciler(SecretReader(cx.client())).build())
}

/// Applies a child, and deletes a child named `old`.
struct Parent(Owned<ConfigMap>);

impl ReconcileKind for Parent {
    type Kind = Namespace;

    async fn reconcile_kind(&self, shop: &Namespace, _: &mut ()) -> Result<Outcome> {
        self.0.apply(shop, config_map("new", "v")).await?;
        if let Some(old) = self.0.of(shop).find(|child| child.name_any() == "old") {
            self.0.delete(&old).await?;
        }
        Ok(Outcome::done())
    }
}

fn parent(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<Namespace>(cx);
    let children = build.owns();
    Ok(build.reconciler(Parent(children)).build())
}

fn shop_with_old_child() -> Given {
    let mut old = config_map("old", "v");
    let mut shop = shop();
    shop.metadata.uid = Some("uid".into());
    old.metadata.owner_references = Some(vec![reknit_reconciler::controller_reference(&shop)]);
    given(shop).and(old)
}

/// The message of the panic of this future.
async fn panic_of(future: impl Future) -> String {
    let panic = AssertUnwindSafe(future).catch_unwind().await.err().expect("the test fails");
    *panic.downcast::<String>().expect("a formatted message")
}

#[tokio::test]
async fn a_request_without_a_declared_permission_fails_with_the_missing_declaration() {
    let message = panic_of(given(shop()).reconcile(reader, "shop")).await;
    let declaration = r#"build.allows(Permission::new("", "secrets", [Verb::Get]))"#;
    assert!(message.contains("get secrets in namespace shop") && message.contains(declaration), "{message}");
    let message = panic_of(table(reader).row("reads", "shop", given(shop()), Want::done()).run()).await;
    assert!(message.contains("reads") && message.contains(declaration), "{message}");
    given(shop()).reconcile(declared_reader, "shop").await.check(Want::done());
}

#[tokio::test]
async fn a_missing_verb_on_children_fails_with_the_verbs_to_set() {
    let message = panic_of(shop_with_old_child().reconcile(parent, "shop")).await;
    let verbs = "OwnedOptions::default().verbs([Verb::Get, Verb::Create, Verb::Patch, Verb::Delete])";
    assert!(message.contains("delete configmaps in namespace shop") && message.contains(verbs), "{message}");
}

#[tokio::test]
async fn a_permission_that_the_test_takes_away_fails_the_test() {
    let message =
        panic_of(given(shop()).denying(Verb::Get, "secrets").reconcile(declared_reader, "shop")).await;
    assert!(message.contains("the test takes this permission away"), "{message}");
    // An apply that creates needs both verbs. The children block the deletion of their owner.
    for (verb, resource) in [
        (Verb::Get, "configmaps"),
        (Verb::Create, "configmaps"),
        (Verb::Patch, "configmaps"),
        (Verb::Update, "namespaces/finalizers"),
    ] {
        let message = panic_of(given(shop()).denying(verb, resource).reconcile(parent, "shop")).await;
        assert!(message.contains(&format!("{verb} {resource}")), "{message}");
    }
}

#[tokio::test]
async fn a_table_names_the_permissions_that_no_case_needs() {
    let cases = || {
        let want = Want::done().child(&shop(), &config_map("new", "v"));
        table(parent).row("a child is applied", "shop", given(shop()), want)
    };
    let message = panic_of(each_permission_is_needed(cases)).await;
    assert!(message.contains("no case fails without these permissions: create events: "), "{message}");
}

#[tokio::test]
async fn an_unneeded_bind_is_reported_with_the_roles_that_need_it() {
    let granting =
        |cx: &Context| granting(cx, OwnedOptions::default().bind_cluster_roles(["edit"]), &[get_pods()]);
    let edit =
        |rules| serde_json::from_value::<ClusterRole>(json!({"metadata": {"name": "edit"}, "rules": rules}));
    let cases =
        |rules| table(granting).unchecked_row("granted", "shop", given(shop()).and(edit(rules).unwrap()));
    let message = panic_of(each_permission_is_needed(|| cases(json!([])))).await;
    assert!(message.contains("bind clusterroles") && message.contains("give it rules"), "{message}");
    let more = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["delete"]}]);
    let message = panic_of(each_permission_is_needed(|| cases(more.clone()))).await;
    assert!(!message.contains("bind"), "{message}");
}

#[tokio::test]
async fn a_case_without_expected_effects_fails_only_for_a_missing_permission() {
    let cases = || table(parent).unchecked_row("a child is applied", "shop", given(shop()));
    cases().run().await;
    let message = panic_of(cases().denying(Verb::Create, "configmaps").run()).await;
    assert!(message.contains("create configmaps"), "{message}");
}

/// Applies a RoleBinding to the ClusterRole `edit` and a Role, in each Namespace.
struct Granting {
    bindings: Owned<RoleBinding>,
    roles: Owned<Role>,
}

impl ReconcileKind for Granting {
    type Kind = Namespace;

    async fn reconcile_kind(&self, shop: &Namespace, _: &mut ()) -> Result<Outcome> {
        let metadata = json!({"name": "members", "namespace": "shop"});
        let role_ref =
            json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"});
        let binding = json!({"metadata": metadata, "roleRef": role_ref});
        self.bindings.apply(shop, serde_json::from_value::<RoleBinding>(binding)?).await?;
        let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
        let role = json!({"metadata": metadata, "rules": rules});
        self.roles.apply(shop, serde_json::from_value::<Role>(role)?).await?;
        Ok(Outcome::done())
    }
}

fn granting(cx: &Context, options: OwnedOptions, held: &[Permission]) -> Result<Controller> {
    let mut build = Controller::of::<Namespace>(cx);
    held.iter().for_each(|permission| build.allows(permission.clone()));
    let (bindings, roles) = (build.owns_with(options), build.owns());
    Ok(build.reconciler(Granting { bindings, roles }).build())
}

fn get_pods() -> Permission {
    Permission::of::<Pod>([Verb::Get])
}

#[tokio::test]
async fn a_role_that_is_not_named_at_the_child_cannot_be_bound() {
    let unnamed = |cx: &Context| granting(cx, OwnedOptions::default(), &[get_pods()]);
    let message = panic_of(given(shop()).reconcile(unnamed, "shop")).await;
    assert!(message.contains(r#"OwnedOptions::default().bind_cluster_roles(["edit"])"#), "{message}");
    let named =
        |cx: &Context| granting(cx, OwnedOptions::default().bind_cluster_roles(["edit"]), &[get_pods()]);
    assert!(given(shop()).reconcile(named, "shop").await.result.is_ok());
    let message = panic_of(given(shop()).denying(Verb::Bind, "clusterroles").reconcile(named, "shop")).await;
    assert!(message.contains("bind clusterroles.rbac.authorization.k8s.io"), "{message}");
}

#[tokio::test]
async fn a_role_may_grant_only_what_the_controller_may_do_itself() {
    let options = || OwnedOptions::default().bind_cluster_roles(["edit"]);
    let without = |cx: &Context| granting(cx, options(), &[]);
    let message = panic_of(given(shop()).reconcile(without, "shop")).await;
    assert!(message.contains("escalate roles") && message.contains("what it holds itself"), "{message}");
    // A right that is declared only to grant it is needed, too.
    let held = |cx: &Context| granting(cx, options(), &[get_pods()]);
    let message = panic_of(given(shop()).denying(Verb::Get, "pods").reconcile(held, "shop")).await;
    assert!(message.contains("escalate roles"), "{message}");
    let escalate = Permission::of::<Role>([Verb::Escalate]);
    let by_hand = |cx: &Context| granting(cx, options(), std::slice::from_ref(&escalate));
    assert!(given(shop()).reconcile(by_hand, "shop").await.result.is_ok());
}

#[tokio::test]
async fn a_role_whose_rights_the_controller_holds_can_be_bound() {
    let edit = json!({"metadata": {"name": "edit"}, "rules": [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    ]});
    let edit: ClusterRole = serde_json::from_value(edit).unwrap();
    let holder = |cx: &Context| granting(cx, OwnedOptions::default(), &[get_pods()]);
    assert!(given(shop()).and(edit).reconcile(holder, "shop").await.result.is_ok());
}
