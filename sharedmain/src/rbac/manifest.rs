//! The manifests of an account: the service account, roles and their bindings, and the admission policy.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    policy,
    rules::{Rule, Rules},
};

/// The first line of the output.
const HEADER: &str =
    "# Generated from the constructors of the program. Change the code and generate it again.\n";
const API_GROUP: &str = "rbac.authorization.k8s.io";

/// The kinds of objects that are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(super) enum ObjectKind {
    ServiceAccount,
    ClusterRole,
    ClusterRoleBinding,
    Role,
    RoleBinding,
    ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
}

/// The names and labels of the objects.
pub(super) struct Names {
    /// The name of roles and bindings.
    pub(super) role: String,
    pub(super) service_account: String,
    pub(super) system_namespace: String,
    pub(super) labels: BTreeMap<String, String>,
    /// The admission policy that bounds the account.
    pub(super) policy: Option<PolicyName>,
}

/// The name of an admission policy, and the kind of its parameters: bindings of the accounts.
#[derive(Clone)]
pub(super) struct PolicyName {
    pub(super) name: String,
    pub(super) param_kind: ObjectKind,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a> {
    api_version: String,
    kind: ObjectKind,
    metadata: Metadata<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<&'a [Rule]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subjects: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    role_ref: Option<Value>,
    /// The field `spec` in YAML.
    #[serde(skip)]
    spec: String,
}

#[derive(Serialize)]
struct Metadata<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: &'a BTreeMap<String, String>,
}

/// Returns the objects of an account that the filter of kinds and namespaces admits, as YAML documents.
pub(super) fn documents(
    names: &Names,
    rules: &Rules,
    policy: Option<String>,
    admits: impl Fn(ObjectKind, Option<&str>) -> bool,
) -> Result<Vec<String>, serde_saphyr::ser::Error> {
    let objects = objects(names, rules).into_iter().chain(names.admission(policy));
    let printed = objects.filter(|object| admits(object.kind, object.metadata.namespace));
    printed.map(|object| to_yaml(&object)).collect()
}

/// Joins the documents.
pub(super) fn text(documents: &[String]) -> String {
    format!("{HEADER}{}", documents.join("---\n"))
}

/// Indents lists as kubectl's documentation does.
fn to_yaml(object: &Object<'_>) -> Result<String, serde_saphyr::ser::Error> {
    let options = serde_saphyr::ser_options! { compact_list_indent: false };
    Ok(serde_saphyr::to_string_with_options(object, options)? + &object.spec)
}

/// The service account, the ClusterRole with its binding, and the Role with its binding of each namespace, the system
/// namespace first.
fn objects<'a>(names: &'a Names, rules: &'a Rules) -> Vec<Object<'a>> {
    let system_namespace = names.system_namespace.as_str();
    let mut objects = vec![names.service_account()];
    if !rules.cluster.is_empty() {
        objects.push(names.role(None, &rules.cluster));
        objects.push(names.binding(None));
    }
    let (system, others): (Vec<_>, Vec<_>) =
        rules.namespaces.iter().partition(|(namespace, _)| *namespace == system_namespace);
    for (namespace, rules) in system.into_iter().chain(others) {
        objects.push(names.role(Some(namespace), rules));
        objects.push(names.binding(Some(namespace)));
    }
    objects
}

impl Names {
    fn object<'a>(&'a self, kind: ObjectKind, name: &'a str, namespace: Option<&'a str>) -> Object<'a> {
        let api_version = match kind {
            ObjectKind::ServiceAccount => "v1".to_owned(),
            ObjectKind::ValidatingAdmissionPolicy | ObjectKind::ValidatingAdmissionPolicyBinding => {
                "admissionregistration.k8s.io/v1".to_owned()
            }
            _ => format!("{API_GROUP}/v1"),
        };
        let metadata = Metadata { name, namespace, labels: &self.labels };
        Object {
            api_version,
            kind,
            metadata,
            rules: None,
            subjects: None,
            role_ref: None,
            spec: String::new(),
        }
    }

    fn service_account(&self) -> Object<'_> {
        let namespace = Some(self.system_namespace.as_str());
        self.object(ObjectKind::ServiceAccount, &self.service_account, namespace)
    }

    /// The admission policy with this spec, if it is printed with this account, and its binding to the account.
    fn admission(&self, policy: Option<String>) -> impl Iterator<Item = Object<'_>> {
        let object = |kind, spec| Object { spec, ..self.object(kind, &self.role, None) };
        let objects = self.policy.as_ref().map(|PolicyName { name, param_kind }| {
            let namespace = Some(&*self.system_namespace).filter(|_| *param_kind == ObjectKind::RoleBinding);
            let policy = policy.map(|spec| policy::with_param_kind(&spec, *param_kind));
            let policy = policy.map(|spec| object(ObjectKind::ValidatingAdmissionPolicy, spec));
            let binding = policy::binding(name, &self.role, namespace);
            policy.into_iter().chain([object(ObjectKind::ValidatingAdmissionPolicyBinding, binding)])
        });
        objects.into_iter().flatten()
    }

    /// The Role of a namespace, or else the ClusterRole.
    fn role<'a>(&'a self, namespace: Option<&'a str>, rules: &'a [Rule]) -> Object<'a> {
        Object { rules: Some(rules), ..self.object(role_kind(namespace), &self.role, namespace) }
    }

    /// The RoleBinding of a namespace, or else the ClusterRoleBinding.
    fn binding<'a>(&'a self, namespace: Option<&'a str>) -> Object<'a> {
        let kind = match namespace {
            Some(_) => ObjectKind::RoleBinding,
            None => ObjectKind::ClusterRoleBinding,
        };
        let (account, system_namespace) = (&self.service_account, &self.system_namespace);
        let subjects = json!([{"kind": "ServiceAccount", "name": account, "namespace": system_namespace}]);
        let role_ref = json!({"apiGroup": API_GROUP, "kind": role_kind(namespace), "name": self.role});
        Object {
            subjects: Some(subjects),
            role_ref: Some(role_ref),
            ..self.object(kind, &self.role, namespace)
        }
    }
}

/// The kind of the bindings that all of these accounts have: of their rights in the cluster, or else of those in the system
/// namespace.
pub(super) fn binding_kind<'a>(mut rules: impl Iterator<Item = &'a Rules>) -> ObjectKind {
    match rules.all(|rules| !rules.cluster.is_empty()) {
        true => ObjectKind::ClusterRoleBinding,
        false => ObjectKind::RoleBinding,
    }
}

fn role_kind(namespace: Option<&str>) -> ObjectKind {
    match namespace {
        Some(_) => ObjectKind::Role,
        None => ObjectKind::ClusterRole,
    }
}
