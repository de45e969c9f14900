use k8s_openapi::api::batch::v1::Job;

use super::*;

/// An object of the owner, as JSON.
fn dependent(kind: &str, name: &str, owners: &[&str]) -> Value {
    let owner = |uid: &&str| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": uid});
    let owners: Vec<_> = owners.iter().map(owner).collect();
    json!({
        "apiVersion": "v1", "kind": kind,
        "metadata": {"name": name, "namespace": "default", "uid": name, "ownerReferences": owners},
    })
}

/// Deletes some objects, and watches ConfigMaps and Secrets.
struct Deleting {
    maps: Api<ConfigMap>,
    jobs: Api<Job>,
    _caches: (reknit_injection::Informer<ConfigMap>, reknit_injection::Informer<Secret>),
}

impl ReconcileKind for Deleting {
    type Kind = Lamp;

    async fn reconcile_kind(&self, _: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        let orphan = DeleteParams {
            propagation_policy: Some(kube::api::PropagationPolicy::Orphan),
            ..Default::default()
        };
        for (name, params) in [("owner", DeleteParams::default()), ("orphaning", orphan)] {
            if self.maps.get_opt(name).await?.is_some() {
                let _ = self.maps.delete(name, &params).await?;
            }
        }
        if self.jobs.get_opt("job").await?.is_some() {
            let _ = self.jobs.delete("job", &DeleteParams::default()).await?;
        }
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn the_cached_dependents_of_a_deleted_object_are_deleted_too() {
    let server = server();
    for name in ["owner", "orphaning"] {
        server.insert(&object::<ConfigMap>(dependent("ConfigMap", name, &[])));
    }
    server.insert(&object::<Job>(json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job", "namespace": "default", "uid": "job"},
    })));
    server.insert(&object::<ConfigMap>(dependent("ConfigMap", "child", &["owner"])));
    server.insert(&object::<Secret>(dependent("Secret", "grandchild", &["child"])));
    server.insert(&object::<Secret>(dependent("Secret", "shared", &["owner", "desk"])));
    server.insert(&object::<Secret>(dependent("Secret", "orphan", &["orphaning"])));
    server.insert(&object::<Secret>(dependent("Secret", "of-job", &["job"])));
    server.fail("delete", "secrets", 403);
    let planned = plan_controller(&server, |cx| {
        let (build, _caches) = (Controller::of::<Lamp>(cx), (cx.get(), cx.get()));
        let (maps, jobs) = (Api::default_namespaced(cx.client()), Api::default_namespaced(cx.client()));
        Ok(build.reconciler(Deleting { maps, jobs, _caches }).build())
    })
    .await;
    let expected = "# lamps.plan.reknit.dev default/desk\n  - ConfigMap default/child\n  - ConfigMap default/orphaning\n  \
                    - ConfigMap default/owner\n  - Job default/job\n  - Secret default/grandchild\nPlan: ";
    assert!(planned.text.starts_with(expected), "{}", planned.text);
    assert_eq!(
        planned.status, 3,
        "the account of the plan needs no permission for what the garbage collector does"
    );
}

fn object<T: serde::de::DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).unwrap()
}
