//! The admission policy that bounds what the accounts of a program may write, beyond what RBAC can express: the type of a
//! Secret, and single fields of objects.

use k8s_openapi::{
    api::{
        admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
        core::v1::Secret,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::Resource;
use reknit_injection::{Permission, Verb};
use serde_json::Value;

use super::manifest::ObjectKind;
use crate::process::constructors::WebhookWrites;

/// The spec of a program with a webhook, with the placeholders `$PARAM_KIND`, `$RULES`, `$PATHS`, `$FIELDS`, `$OWN_SECRET` and
/// `$OTHER_SECRETS`.
const SPEC: &str = include_str!("policy.yaml");
/// The spec of a program without a webhook whose controllers write Secrets.
const NO_CREDENTIALS: &str = include_str!("no_credentials.yaml");
/// The spec of the policy of an account that may send only dry runs.
pub(super) const DRY_RUNS: &str = include_str!("dry_runs.yaml");
/// Recognizes the Secret of the certificate by the right to patch it, which names it.
const OWN_SECRET: &str = "variables.isSecret && authorizer.group('').resource('secrets').namespace(request.namespace)\n          \
    .name(object.metadata.?name.orValue('')).check('patch').allowed()";
/// Allows the Secrets that the controllers write, if they do, except for credentials.
const OTHER_SECRETS: &str =
    " ||\n        !(object.type in ['kubernetes.io/service-account-token', 'bootstrap.kubernetes.io/token'])";

/// The policy of the accounts of one program.
pub(super) struct Policy<'a> {
    /// The objects that the controllers write for the webhook, if there is one.
    pub(super) writes: Option<&'a WebhookWrites>,
    /// The permissions of the controllers.
    pub(super) permissions: &'a [Permission],
    pub(super) system_namespace: &'a str,
}

impl Policy<'_> {
    /// Returns the field `spec`. The resources that the controllers write on their own account are left out, except for
    /// Secrets. Returns `None` if the program has no webhook and its controllers write no Secrets.
    pub(super) fn spec(&self) -> Option<String> {
        let writes_secrets = self.is_written_by_controllers::<Secret>();
        let Some(writes) = self.writes else { return writes_secrets.then(|| NO_CREDENTIALS.into()) };
        let mut rules = vec![rule("\"\"", "secrets")];
        if !self.is_written_by_controllers::<MutatingWebhookConfiguration>()
            && !self.is_written_by_controllers::<ValidatingWebhookConfiguration>()
        {
            let resources = "mutatingwebhookconfigurations, validatingwebhookconfigurations";
            rules.push(rule("admissionregistration.k8s.io", resources));
        }
        if !self.is_written_by_controllers::<CustomResourceDefinition>() {
            rules.push(rule("apiextensions.k8s.io", "customresourcedefinitions"));
        }
        let entries = &writes.entries;
        let paths = map(entries.iter().map(|(name, path, _)| (&**name, literal(&Value::from(*path)))));
        let fields = map(entries.iter().map(|(name, _, fields)| (&**name, literal(fields))));
        let spec = SPEC
            .replace("      $RULES\n", &rules.concat())
            .replace("$PATHS", &paths)
            .replace("$FIELDS", &fields)
            // The right to patch other Secrets does not tell which one is that of the certificate.
            .replace("$OWN_SECRET", if writes_secrets { "false" } else { OWN_SECRET })
            .replace("$OTHER_SECRETS", if writes_secrets { OTHER_SECRETS } else { "" });
        Some(spec)
    }

    /// Returns true if the controllers write objects of this Kind, other than those of the webhook: its Secret, and the
    /// configurations and definitions that are named.
    fn is_written_by_controllers<K: Resource<DynamicType = ()>>(&self) -> bool {
        let create_certificate = Permission::of::<Secret>([Verb::Create]).namespaces([self.system_namespace]);
        let is_of_certificate =
            |permission: &Permission| self.writes.is_some() && *permission == create_certificate;
        let is_write = |verb| matches!(verb, Verb::Create | Verb::Update | Verb::Patch);
        let is_of_webhook =
            |name: &str| self.writes.is_some_and(|writes| K::kind(&()) != "Secret" || name == writes.secret);
        let mut others = self.permissions.iter().filter(|permission| !is_of_certificate(permission));
        others.any(|permission| {
            permission.is_on(&K::group(&()), &K::plural(&()))
                && (permission.object_names().next().is_none()
                    || !permission.object_names().all(is_of_webhook))
                && permission.verbs().any(is_write)
        })
    }
}

/// Returns the spec of a policy whose parameter is the binding of this kind.
pub(super) fn with_param_kind(spec: &str, kind: ObjectKind) -> String {
    spec.replace("$PARAM_KIND", &format!("{kind:?}"))
}

/// Returns the spec of the binding of a policy to the account of the binding of this name: of a ClusterRole, or of a Role in the
/// namespace.
pub(super) fn binding(policy: &str, name: &str, namespace: Option<&str>) -> String {
    let namespace = namespace.map(|namespace| format!("    namespace: {namespace}\n")).unwrap_or_default();
    format!(
        "spec:\n  policyName: {policy}\n  paramRef:\n    name: {name}\n{namespace}    # An account without rights writes \
         nothing.\n    parameterNotFoundAction: Allow\n  validationActions: [Deny]\n"
    )
}

fn rule(group: &str, resources: &str) -> String {
    format!(
        "      - apiGroups: [{group}]\n        apiVersions: [\"*\"]\n        operations: [CREATE, UPDATE]\n        \
         resources: [{resources}]\n        scope: \"*\"\n"
    )
}

/// Returns a map of CEL, an entry a line, in a block of YAML.
fn map<'a>(entries: impl Iterator<Item = (&'a str, String)>) -> String {
    let entries = entries.map(|(name, value)| format!("          {}: {value}", literal(&Value::from(name))));
    format!("{{\n{}\n        }}", entries.collect::<Vec<_>>().join(",\n"))
}

/// Returns the value as a literal of CEL. The API server wants the values of a map to have one type, which `dyn` is.
fn literal(value: &Value) -> String {
    match value {
        Value::String(text) => format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'")),
        Value::Array(items) => format!("[{}]", items.iter().map(literal).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("'{name}': dyn({})", literal(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(permissions: &[Permission]) -> String {
        let entries = vec![("a.b.c".to_owned(), "/a", json!({"rules": [{"scope": "*"}]}))];
        let writes = WebhookWrites { secret: "certs".into(), entries };
        let spec = Policy { writes: Some(&writes), permissions, system_namespace: "system" }.spec().unwrap();
        with_param_kind(&spec, ObjectKind::ClusterRoleBinding)
    }

    #[test]
    fn without_a_webhook_there_is_a_policy_only_if_the_controllers_write_secrets() {
        let spec = |permission| {
            Policy { writes: None, permissions: &[permission], system_namespace: "system" }.spec()
        };
        assert_eq!(spec(Permission::of::<Secret>([Verb::Get, Verb::Delete])), None);
        for permission in [
            Permission::of::<Secret>([Verb::Patch]),
            Permission::of::<Secret>([Verb::Create]).namespaces(["system"]),
            Permission::of::<Secret>([Verb::Update]).names(["keys"]),
        ] {
            assert!(spec(permission).unwrap().contains("service-account-token"));
        }
    }

    #[test]
    fn the_values_of_the_program_are_literals() {
        let spec = spec(&[]);
        assert!(spec.contains("        'a.b.c': '/a'\n"), "{spec}");
        assert!(spec.contains("        'a.b.c': {'rules': dyn([{'scope': dyn('*')}])}\n"), "{spec}");
        assert!(!spec.contains('$'), "{spec}");
        assert_eq!(literal(&json!("it's")), r"'it\'s'");
    }

    #[test]
    fn resources_that_controllers_write_are_left_out_and_secrets_may_be_no_credentials() {
        let own = Permission::of::<Secret>([Verb::Create]).namespaces(["system"]);
        let named = Permission::of::<CustomResourceDefinition>([Verb::Patch]).names(["x"]);
        let bounded = spec(&[own, named]);
        assert!(
            bounded.contains("[customresourcedefinitions]") && !bounded.contains("service-account-token")
        );
        let certificate = Permission::of::<Secret>([Verb::Patch]).names(["certs"]);
        assert!(!spec(&[certificate]).contains("service-account-token"));
        let of_controllers = Permission::of::<Secret>([Verb::Patch]).names(["certs", "keys"]);
        assert!(spec(&[of_controllers]).contains("service-account-token"));
        let children = Permission::of::<Secret>([Verb::Patch]);
        let free = spec(&[children, Permission::of::<CustomResourceDefinition>([Verb::Create])]);
        assert!(
            !free.contains("[customresourcedefinitions]") && free.contains("service-account-token"),
            "{free}"
        );
    }
}
