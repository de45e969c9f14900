//! The Kind of these tests.

use reknit_apis::{Defaultable, FieldError, Level, Request, Validatable, kind};
use reknit_reconciler::Result;
use reknit_webhook::{DeletionValidator, Validator};
use serde::{Deserialize, Serialize};

/// A Kind whose schema preserves unknown fields.
#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "tests.reknit.dev", version = "v1", kind = "Lamp", namespaced, status = "LampStatus")]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub(crate) struct LampSpec {
    pub(crate) room: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) watts: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    #[serde(flatten)]
    pub(crate) shade: Shade,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, schemars::JsonSchema)]
pub(crate) struct Shade {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fabric: Option<Fabric>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, schemars::JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub(crate) struct Fabric {
    #[serde(default)]
    pub(crate) colour: String,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, schemars::JsonSchema)]
pub(crate) struct LampStatus {
    #[serde(default)]
    pub(crate) lumens: i64,
}

kind!(Lamp { defaults: |lamp| _ = lamp.spec.watts.get_or_insert(40) });

impl Defaultable for Lamp {
    fn set_request_defaults(&mut self, old: Option<&Self>, request: &Request) {
        let previous_owner = old.and_then(|old| old.spec.owner.clone());
        self.spec
            .owner
            .get_or_insert_with(|| previous_owner.unwrap_or_else(|| request.username().to_owned()));
    }
}

impl Validatable for Lamp {
    const SUBRESOURCES: &'static [&'static str] = &["status"];

    const DELETION_RULE: Option<fn(&Self, &Request) -> FieldError> = Some(|lamp, _| match &*lamp.spec.room {
        "cellar" => FieldError::generic("stays on", ["spec.room"]),
        _ => FieldError::none(),
    });

    fn validate(&self, _: &Request) -> FieldError {
        let spec = &self.spec;
        assert_ne!(spec.room, "panic", "as requested by the room");
        if spec.room == "stuck" {
            std::thread::sleep(std::time::Duration::from_secs(3));
        }
        let room = if spec.room.is_empty() { FieldError::missing(["room"]) } else { FieldError::none() };
        let watts = match spec.watts {
            Some(watts @ 1_000..) => FieldError::out_of_bounds(watts, 1, 999, "watts"),
            Some(watts @ 61..) => FieldError::generic("a lot of light", ["watts"])
                .at(Level::Warning)
                .details(format!("{watts} W")),
            _ => FieldError::none(),
        };
        room.also(watts).via_field("spec")
    }

    fn validate_update(&self, old: &Self, request: &Request) -> FieldError {
        let is_moved = self.spec.room != old.spec.room;
        let room = if is_moved { FieldError::disallowed(["spec.room"]) } else { FieldError::none() };
        room.also(self.validate(request))
    }

    fn validate_subresource(&self, _: &Self, request: &Request) -> FieldError {
        match (request.subresource.as_deref(), self.status.as_ref()) {
            (Some("status"), Some(status)) if status.lumens < 0 => {
                FieldError::invalid_value(status.lumens, "status.lumens")
            }
            _ => FieldError::none(),
        }
    }
}

/// A validator of lamps that asks a function about an object to store or to delete.
pub(crate) struct Rule<F>(pub(crate) F);

impl<F, R> Validator for Rule<F>
where
    F: Fn(Lamp) -> R + Send + Sync + 'static,
    R: Future<Output = Result<FieldError>> + Send,
{
    type Kind = Lamp;

    fn validate(
        &self,
        lamp: &Lamp,
        _: Option<&Lamp>,
        _: &Request,
    ) -> impl Future<Output = Result<FieldError>> + Send {
        (self.0)(lamp.clone())
    }
}

impl<F, R> DeletionValidator for Rule<F>
where
    F: Fn(Lamp) -> R + Send + Sync + 'static,
    R: Future<Output = Result<FieldError>> + Send,
{
    type Kind = Lamp;

    fn validate_delete(&self, lamp: &Lamp, _: &Request) -> impl Future<Output = Result<FieldError>> + Send {
        (self.0)(lamp.clone())
    }
}

/// Refuses lamps in the attic.
pub(crate) async fn not_in_the_attic(lamp: Lamp) -> Result<FieldError> {
    Ok(match &*lamp.spec.room {
        "attic" => FieldError::generic("no lamps there", ["spec.room"]),
        _ => FieldError::none(),
    })
}
