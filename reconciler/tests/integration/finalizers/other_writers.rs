//! Objects that another client writes while they are finalized, on a real API server.

use super::*;

/// The body of a merge patch, of the status or of the main resource.
#[derive(Clone, Debug)]
enum Write {
    Status(Value),
    Main(Value),
}

/// Finalizes with a status, and makes a write of another client meanwhile.
struct Interrupted {
    bulbs: Api<DynamicObject>,
    write: Write,
    finalizations: Arc<Mutex<usize>>,
}

impl ReconcileKind for Interrupted {
    type Kind = Bulb;
    async fn reconcile_kind(&self, _: &Bulb, _: &mut BulbStatus) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}

impl FinalizeKind for Interrupted {
    async fn finalize_kind(&self, _: &Bulb, status: &mut BulbStatus) -> Result<Outcome> {
        *self.finalizations.lock().unwrap() += 1;
        status.color = Some("none".into());
        let params = PatchParams::default();
        match &self.write {
            Write::Status(patch) => self.bulbs.patch_status("a", &params, &Patch::Merge(patch)).await?,
            Write::Main(patch) => self.bulbs.patch("a", &params, &Patch::Merge(patch)).await?,
        };
        Ok(Outcome::done())
    }
}

/// Deletes a Bulb with these finalizers besides the controller's. Returns how often it is finalized.
async fn finalizations(others: &[&str], write: Write, patch_type: FinalizerPatch) -> usize {
    let bulbs = Bulbs::new().await;
    let finalizers: Vec<_> = [FINALIZER].iter().chain(others).copied().collect();
    bulbs.create("a", json!({ "finalizers": finalizers })).await;
    bulbs.delete("a").await;
    let finalizations = Arc::<Mutex<usize>>::default();
    let reconciler = Interrupted { bulbs: bulbs.api(), write, finalizations: finalizations.clone() };
    let selection = bulbs.selected();
    let controllers = Controllers::new(bulbs.fixture.client.clone()).controller(move |cx| {
        let build = Controller::selected::<Bulb>(cx, selection);
        let build = match patch_type {
            FinalizerPatch::Merge => build,
            FinalizerPatch::Apply => build.apply_finalizer_as("reknit-test"),
        };
        Ok(build.reconciler(reconciler).finalizing().build())
    });
    let running = controllers.start();
    eventually("the removal of the finalizer", TIMEOUT, async || {
        let bulb = bulbs.api().get_opt("a").await.unwrap();
        let finalizers = bulb.and_then(|bulb| bulb.metadata.finalizers).unwrap_or_default();
        !finalizers.iter().any(|name| name == FINALIZER)
    })
    .await;
    running.stop().await;
    if bulbs.api().get_opt("a").await.unwrap().is_some() {
        bulbs.patch("a", json!({"metadata": {"finalizers": null}})).await;
    }
    *finalizations.lock().unwrap()
}

#[tokio::test]
async fn a_write_that_asks_for_nothing_else_does_not_repeat_a_finalization() {
    let heartbeat = Write::Status(json!({"status": {"phase": "Pending", "heartbeat": "12:00"}}));
    let same_field = Write::Status(json!({"status": {"phase": "Pending", "color": "theirs"}}));
    let finalizer = Write::Main(json!({"metadata": {"finalizers": [FINALIZER]}}));
    for patch_type in [FinalizerPatch::Merge, FinalizerPatch::Apply] {
        for (others, write) in [
            (&[][..], &heartbeat),
            (&["other.io/x"], &heartbeat),
            (&["other.io/x"], &same_field),
            (&["other.io/x"], &finalizer),
        ] {
            let count = finalizations(others, write.clone(), patch_type).await;
            assert_eq!(count, 1, "{patch_type:?} beside {others:?}: {write:?}");
        }
    }
}

#[tokio::test]
async fn an_object_of_which_something_else_is_asked_is_finalized_again() {
    for change in [
        json!({"spec": {"color": "green"}}),
        json!({"metadata": {"labels": {"keep": "data"}}}),
        json!({"metadata": {"annotations": {"keep": "data"}}}),
    ] {
        for patch_type in [FinalizerPatch::Merge, FinalizerPatch::Apply] {
            for others in [&[][..], &["other.io/x"]] {
                let count = finalizations(others, Write::Main(change.clone()), patch_type).await;
                assert_eq!(count, 2, "{patch_type:?} beside {others:?}: {change}");
            }
        }
    }
}
