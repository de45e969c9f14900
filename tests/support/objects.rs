//! Services and AddressableServices.

use k8s_openapi::api::{
    core::v1::{Service, ServicePort, ServiceSpec},
    events::v1::Event,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use reknit::testing::eventually;
use samples_apis::{AddressableService, AddressableServiceSpec};
use serde_json::json;

use super::wait::SOON;

/// A client for the objects of one namespace.
#[derive(Clone)]
pub(crate) struct Objects {
    pub client: Client,
    pub namespace: String,
}

/// The status, the reason and the message of the Ready condition, and the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub ready: String,
    pub reason: String,
    pub message: String,
    pub url: Option<String>,
}

impl Objects {
    pub(crate) fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn addressables(&self) -> Api<AddressableService> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) async fn create_service(&self, name: &str) -> Service {
        let mut service = Service::default();
        service.metadata.name = Some(name.into());
        let ports = vec![ServicePort { port: 80, ..Default::default() }];
        // Headless, because the number of cluster addresses is limited.
        service.spec =
            Some(ServiceSpec { ports: Some(ports), cluster_ip: Some("None".into()), ..Default::default() });
        self.services().create(&PostParams::default(), &service).await.expect("the Service is created")
    }

    pub(crate) async fn delete_service(&self, name: &str) {
        self.services().delete(name, &DeleteParams::default()).await.expect("the Service is deleted");
    }

    pub(crate) async fn create(&self, name: &str, service: &str) -> AddressableService {
        let object = AddressableService::new(name, AddressableServiceSpec { service_name: service.into() });
        self.addressables()
            .create(&PostParams::default(), &object)
            .await
            .expect("the AddressableService is created")
    }

    pub(crate) async fn get(&self, name: &str) -> AddressableService {
        self.addressables().get(name).await.expect("the AddressableService is there")
    }

    pub(crate) async fn rename_service(&self, name: &str, service: &str) -> AddressableService {
        let patch = Patch::Merge(json!({ "spec": { "serviceName": service } }));
        let patched = self.addressables().patch(name, &PatchParams::default(), &patch).await;
        patched.expect("the spec is patched")
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.addressables().delete(name, &DeleteParams::default()).await.expect("the deletion is accepted");
    }

    pub(crate) async fn gone(&self, name: &str) {
        eventually(format!("{name} is gone"), SOON, async || {
            self.addressables().get_opt(name).await.ok()?.is_none().then_some(())
        })
        .await;
    }

    /// Waits until the object has observed its latest generation and has this status, and returns the object.
    pub(crate) async fn shows(&self, name: &str, expected: &Shown) -> AddressableService {
        eventually(format!("{name} shows {expected:?}"), SOON, async || {
            let object = self.addressables().get(name).await.ok()?;
            (observed(&object) && shown(&object).as_ref() == Some(expected)).then_some(object)
        })
        .await
    }

    pub(crate) async fn ready(&self, name: &str, service: &str) -> AddressableService {
        self.shows(name, &self.available(service)).await
    }

    /// Waits until exactly `count` AddressableServices of the namespace are Ready.
    pub(crate) async fn all_ready(&self, count: usize) {
        eventually(format!("{count} are Ready"), SOON * 5, async || {
            let listed = self.addressables().list(&ListParams::default()).await.ok()?;
            let ready = listed.iter().filter(|o| shown(o).is_some_and(|s| s.ready == "True")).count();
            (ready == count).then_some(())
        })
        .await;
    }

    pub(crate) fn available(&self, service: &str) -> Shown {
        let url = format!("http://{service}.{}.svc.cluster.local", self.namespace);
        Shown { ready: "True".into(), reason: String::new(), message: String::new(), url: Some(url) }
    }

    pub(crate) fn unavailable(&self, service: &str) -> Shown {
        let message = format!("Service {service:?} wasn't found.");
        Shown { ready: "False".into(), reason: "ServiceUnavailable".into(), message, url: None }
    }

    /// Waits for an event about the object of this name, and returns it.
    pub(crate) async fn event(&self, about: &str, reason: &str) -> Event {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        eventually(format!("an event {reason} about {about}"), SOON, async || {
            let listed = events.list(&ListParams::default()).await.ok()?;
            listed.into_iter().find(|event| {
                event.reason.as_deref() == Some(reason)
                    && event.regarding.as_ref().and_then(|r| r.name.as_deref()) == Some(about)
            })
        })
        .await
    }
}

/// The Ready condition and the address of the object. `None` if there is no Ready condition yet.
pub(crate) fn shown(object: &AddressableService) -> Option<Shown> {
    let status = object.status.as_ref()?;
    let ready = serde_json::to_value(&status.duck).expect("JSON");
    let ready = ready["conditions"].as_array()?.iter().find(|c| c["type"] == "Ready")?.clone();
    let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
    Some(Shown {
        ready: text("status"),
        reason: text("reason"),
        message: text("message"),
        url: status.address.as_ref().and_then(|a| a.url.as_ref()).map(ToString::to_string),
    })
}

/// Returns true if the status is of the latest generation.
pub(crate) fn observed(object: &AddressableService) -> bool {
    let observed = object.status.as_ref().and_then(|status| status.duck.observed_generation);
    observed == object.metadata.generation
}
