//! A Kind with `metav1` conditions in a nested field of its status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use reknit_apis::StatusConditions;
use reknit_injection::internal::CurrentPass;
use reknit_testing::given;

use super::*;

#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "demo.reknit.dev", version = "v1", kind = "Router", namespaced, status = "RouterStatus")]
struct RouterSpec {}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, schemars::JsonSchema)]
struct RouterStatus {
    #[serde(default)]
    network: NetworkStatus,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, schemars::JsonSchema)]
struct NetworkStatus {
    #[serde(default)]
    conditions: Vec<Condition>,
}

kind!(Router { status: RouterStatus, conditions: metav1(network.conditions) });

/// Reconciles and finalizes by a call of this closure with the conditions.
struct Marking<F>(F);

impl<F: Fn(&mut Vec<Condition>) -> Result<Outcome> + Send + Sync + 'static> ReconcileKind for Marking<F> {
    type Kind = Router;
    async fn reconcile_kind(&self, _: &Router, status: &mut RouterStatus) -> Result<Outcome> {
        (self.0)(&mut status.network.conditions)
    }
}

impl<F: Fn(&mut Vec<Condition>) -> Result<Outcome> + Send + Sync + 'static> FinalizeKind for Marking<F> {
    async fn finalize_kind(&self, _: &Router, status: &mut RouterStatus) -> Result<Outcome> {
        (self.0)(&mut status.network.conditions)
    }
}

fn marking<F>(mark: F) -> impl FnOnce(&Context) -> Result<Controller>
where
    F: Fn(&mut Vec<Condition>) -> Result<Outcome> + Send + Sync + 'static,
{
    |cx| Ok(Controller::of::<Router>(cx).finalizer(FINALIZER).reconciler(Marking(mark)).finalizing().build())
}

fn connect(conditions: &mut Vec<Condition>) -> Result<Outcome> {
    conditions.mark_true("Connected");
    Ok(Outcome::done())
}

/// A router at generation 4 whose status was written for generation 3.
fn router() -> Router {
    let mut router = Router::new("x", RouterSpec {});
    router.metadata.namespace = Some("default".into());
    router.metadata.finalizers = Some(vec![FINALIZER.into()]);
    router.metadata.generation = Some(4);
    let conditions = &mut router.status.get_or_insert_default().network.conditions;
    conditions.mark_true("Connected");
    conditions[0].observed_generation = Some(3);
    conditions[0].last_transition_time = Time("2020-01-01T00:00:00Z".parse().unwrap());
    router
}

#[tokio::test]
async fn a_marked_condition_gets_the_generation_of_the_object() {
    let effects = given(router()).reconcile(marking(connect), "default/x").await;
    let condition = &effects.write(0).body["status"]["network"]["conditions"][0];
    assert_eq!(condition["observedGeneration"], 4);
    assert_eq!(condition["lastTransitionTime"], "2020-01-01T00:00:00Z");
    assert_eq!([&condition["status"], &condition["reason"]], ["True", "Connected"]);
}

#[tokio::test]
async fn a_status_whose_conditions_have_no_generation_prompts_no_pass() {
    for (status, prompts) in
        [(Some(Some(4)), false), (Some(Some(3)), true), (Some(None), false), (None, true)]
    {
        let mut router = router();
        match status {
            Some(observed) => {
                router.status.as_mut().unwrap().network.conditions[0].observed_generation = observed
            }
            None => router.status = None,
        }
        let checking = move |_: &mut Vec<Condition>| {
            assert_eq!(CurrentPass::get().unwrap().is_prompted(), prompts, "{status:?}");
            Ok(Outcome::done())
        };
        let effects = given(router).reconcile(marking(checking), "default/x").await;
        assert!(effects.result.is_ok(), "{:?}", effects.result);
    }
}

#[tokio::test]
async fn nothing_is_sent_if_the_conditions_are_marked_as_before() {
    let mut router = router();
    router.metadata.generation = Some(3);
    let flapping = |conditions: &mut Vec<Condition>| {
        conditions.mark_false("Connected", "Dialing", "");
        connect(conditions)
    };
    let effects = given(router).reconcile(marking(flapping), "default/x").await;
    effects.result.as_ref().unwrap();
    assert!(effects.writes().is_empty());
}

#[tokio::test]
async fn no_condition_is_added_by_the_framework() {
    let mut router = router();
    router.status = None;
    let effects = given(router).reconcile(marking(|_| Ok(Outcome::done())), "default/x").await;
    assert!(effects.writes().is_empty());
}

#[tokio::test]
async fn conditions_that_are_marked_while_finalizing_get_the_generation_too() {
    let mut router = router();
    router.metadata.deletion_timestamp = Some(Time("2026-01-01T00:00:00Z".parse().unwrap()));
    let blocked = |conditions: &mut Vec<Condition>| {
        conditions.mark_false("Connected", "Draining", "two sessions are open");
        Err("two sessions are open".into())
    };
    let effects = given(router).reconcile(marking(blocked), "default/x").await;
    assert_eq!(effects.write(0).body["status"]["network"]["conditions"][0]["observedGeneration"], 4);
}
