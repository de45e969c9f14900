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

use super::kind::Kind;

macro_rules! impl_built_in_kinds {
    ($($module:ident { $($kind:ident),+ $(,)? })+) => {
        $($(impl Kind for $module::$kind {
            type Status = ();
            const BUILT_IN: bool = true;
        })+)+
    };
}

impl_built_in_kinds! {
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

    impl_built_in_kinds! {
        resource { DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice }
        storage { VolumeAttributesClass }
    }
}

k8s_openapi::k8s_if_ge_1_36! {
    impl_built_in_kinds! {
        admission { MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding }
    }
}
