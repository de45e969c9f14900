//! Tests of defaults that a Kind got after an object was stored.

use reknit_apis::{FieldError, Request, Validatable, kind};
use reknit_webhook::{TestRequest, Webhook};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

const MAKER: &str = "tests.reknit.dev/maker";

#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "tests.reknit.dev", version = "v1", kind = "Wire", namespaced)]
struct WireSpec {
    metres: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    colour: Option<String>,
}

kind!(Wire {
    defaults: |wire| {
        wire.spec.colour.get_or_insert_with(|| "red".into());
        let annotations = wire.metadata.annotations.get_or_insert_default();
        annotations.entry(MAKER.into()).or_insert_with(|| "acme".into());
    }
});

impl Wire {
    fn maker(&self) -> Option<&String> {
        self.metadata.annotations.as_ref()?.get(MAKER)
    }
}

impl Validatable for Wire {
    fn validate(&self, _: &Request) -> FieldError {
        match self.spec.metres {
            0..1_000 => FieldError::none(),
            metres => FieldError::out_of_bounds(metres, 0, 999, "spec.metres"),
        }
    }

    fn validate_update(&self, old: &Self, request: &Request) -> FieldError {
        let immutable = |is_same: bool, field: &str| match is_same {
            true => FieldError::none(),
            false => FieldError::generic("is immutable", [field]),
        };
        immutable(self.spec.colour == old.spec.colour, "spec.colour")
            .also(immutable(self.maker() == old.maker(), "metadata.annotations"))
            .also(self.validate(request))
    }
}

fn webhook() -> Webhook {
    Webhook::new("demo.reknit.dev").defaulting::<Wire>().validation::<Wire>()
}

/// A wire that was stored before the Kind had defaults.
fn stored(metres: u32) -> Wire {
    Wire::new("x", WireSpec { metres, colour: None })
}

fn changed(wire: &Wire, change: impl FnOnce(&mut Wire)) -> TestRequest {
    let mut new = wire.clone();
    change(&mut new);
    TestRequest::update(json!(wire), json!(new))
}

#[tokio::test]
async fn a_default_that_a_stored_object_lacks_is_no_change_of_an_immutable_field() {
    let label = |wire: &mut Wire| wire.metadata.labels = Some([("a".into(), "b".into())].into());
    for update in [changed(&stored(1), label), changed(&stored(1), |wire| wire.spec.metres = 2)] {
        let admitted = webhook().admit(update).await.unwrap().object;
        assert_eq!(admitted["spec"]["colour"], "red");
        assert_eq!(admitted["metadata"]["annotations"][MAKER], "acme");
    }
    for update in [
        changed(&stored(1), |wire| wire.spec.colour = Some("blue".into())),
        changed(&stored(1), |wire| wire.metadata.annotations = Some([(MAKER.into(), "me".into())].into())),
    ] {
        let refusal = webhook().admit(update).await.unwrap_err().to_string();
        assert!(refusal.contains("is immutable"), "{refusal}");
    }
}

#[tokio::test]
async fn a_default_annotation_leaves_an_object_that_breaks_a_new_rule_as_writable_as_before() {
    let label = |wire: &mut Wire| wire.metadata.labels = Some([("a".into(), "b".into())].into());
    let admitted = webhook().admit(changed(&stored(5_000), label)).await.unwrap().object;
    assert_eq!(
        (&admitted["metadata"]["labels"]["a"], &admitted["spec"]["metres"]),
        (&json!("b"), &json!(5_000))
    );
    let longer = webhook().admit(changed(&stored(5_000), |wire| wire.spec.metres = 5_001)).await;
    assert!(longer.unwrap_err().to_string().contains("spec.metres"));
}
