//! Implementations of [`Kind`] for the built-in types of Kubernetes.
//!
//! They are in this crate because of the orphan rule: a user's crate owns neither the trait nor the types. `Status`
//! is `()`, because Kubernetes' own controllers write the status of most of these types. A reconcile reads the status
//! from the object. A controller that owns such a status, as an Ingress controller does, writes it by its own requests.

use k8s_openapi::api::{
    admissionregistration::v1 as admission,
    apps::v1 as apps,
    autoscaling::{v1 as autoscaling_v1, v2 as autoscaling_v2},
    batch::v1 as batch,
    certificates::v1 as certificates,
    coordination::v1 as coordination,
    core::v1 as core_v1,
    discovery::v1 as discovery,
    events::v1 as events,
    flowcontrol::v1 as flowcontrol,
    networking::v1 as networking,
    node::v1 as node,
    policy::v1 as policy,
    rbac::v1 as rbac,
    scheduling::v1 as scheduling,
    storage::v1 as storage,
};
use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions,
    kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration,
};

use kube_core::ApiResource;

use super::{kind::Kind, scope::Scope};

/// A Kind that Kubernetes itself defines, and that implements [`Kind`].
#[derive(Clone, Debug)]
pub struct BuiltInKind {
    /// Its name, its group and its plural.
    pub resource: ApiResource,
    /// True if its objects are in a namespace.
    pub namespaced: bool,
}

impl BuiltInKind {
    /// Returns all built-in Kinds.
    pub fn all() -> Vec<Self> {
        let kinds = of_all_versions();
        k8s_openapi::k8s_if_ge_1_34! {
            let kinds = [kinds, since_1_34()].concat();
        }
        k8s_openapi::k8s_if_ge_1_36! {
            let kinds = [kinds, since_1_36()].concat();
        }
        kinds
    }

    fn of<K: Kind>() -> Self {
        Self { resource: ApiResource::erase::<K>(&()), namespaced: K::Scope::NAMESPACED }
    }
}

macro_rules! impl_built_in_kinds {
    ($list:ident: $($module:ident { $($kind:ident),+ $(,)? })+) => {
        $($(impl Kind for $module::$kind {
            type Status = ();
            const BUILT_IN: bool = true;
        })+)+

        fn $list() -> Vec<BuiltInKind> {
            vec![$($(BuiltInKind::of::<$module::$kind>()),+),+]
        }
    };
}

impl_built_in_kinds! { of_all_versions:
    admission {
        MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
        ValidatingWebhookConfiguration,
    }
    apps { ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet }
    autoscaling_v1 { HorizontalPodAutoscaler }
    autoscaling_v2 { HorizontalPodAutoscaler }
    batch { CronJob, Job }
    certificates { CertificateSigningRequest }
    coordination { Lease }
    core_v1 {
        ConfigMap, Endpoints, Event, LimitRange, Namespace, Node, PersistentVolume, PersistentVolumeClaim,
        Pod, PodTemplate, ReplicationController, ResourceQuota, Secret, Service, ServiceAccount,
    }
    discovery { EndpointSlice }
    events { Event }
    flowcontrol { FlowSchema, PriorityLevelConfiguration }
    networking { IPAddress, Ingress, IngressClass, NetworkPolicy, ServiceCIDR }
    node { RuntimeClass }
    policy { PodDisruptionBudget }
    rbac { ClusterRole, ClusterRoleBinding, Role, RoleBinding }
    scheduling { PriorityClass }
    storage { CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment }
    apiextensions { CustomResourceDefinition }
    apiregistration { APIService }
}

// Kinds that not every supported version of Kubernetes has.
k8s_openapi::k8s_if_ge_1_34! {
    use k8s_openapi::api::resource::v1 as resource;

    impl_built_in_kinds! { since_1_34:
        resource { DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice }
        storage { VolumeAttributesClass }
    }
}

k8s_openapi::k8s_if_ge_1_36! {
    impl_built_in_kinds! { since_1_36:
        admission { MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_built_in_kind_is_known_with_its_plural_and_its_scope() {
        let kinds = BuiltInKind::all();
        let find = |kind: &str| {
            let known = kinds.iter().find(|known| known.resource.kind == kind).unwrap();
            let resource = &known.resource;
            (&*resource.api_version, &*resource.plural, known.namespaced)
        };
        assert_eq!(find("Namespace"), ("v1", "namespaces", false));
        assert_eq!(find("Deployment"), ("apps/v1", "deployments", true));
        assert_eq!(find("ResourceSlice"), ("resource.k8s.io/v1", "resourceslices", false));
        assert_eq!(
            find("MutatingAdmissionPolicy"),
            ("admissionregistration.k8s.io/v1", "mutatingadmissionpolicies", false)
        );
    }
}
