//! A client for the objects of one namespace, with methods for Services and AddressableServices.

use k8s_openapi::api::{core::v1::Service, events::v1::Event};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use reknit::testing::eventually;
use reknit_samples::{AddressableService, AddressableServiceSpec};
use serde_json::json;

use super::wait::TIMEOUT;

/// A client for the objects of one namespace.
#[derive(Clone)]
pub(crate) struct Objects {
    pub client: Client,
    pub namespace: String,
}

/// The visible state of an AddressableService: the status, the reason and the message of its Ready condition, and the
/// URL of its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
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
        // Headless, because the number of cluster addresses is limited.
        let spec = json!({ "clusterIP": "None", "ports": [{ "port": 80 }] });
        let service = json!({ "metadata": { "name": name }, "spec": spec });
        let service = serde_json::from_value(service).expect("a Service");
        self.services().create(&PostParams::default(), &service).await.expect("the Service is created")
    }

    pub(crate) async fn delete_service(&self, name: &str) {
        self.services().delete(name, &DeleteParams::default()).await.expect("the Service is deleted");
    }

    pub(crate) async fn create_addressable(&self, name: &str, service: &str) -> AddressableService {
        let object = AddressableService::new(name, AddressableServiceSpec { service_name: service.into() });
        self.addressables()
            .create(&PostParams::default(), &object)
            .await
            .expect("the AddressableService is created")
    }

    pub(crate) async fn get_addressable(&self, name: &str) -> AddressableService {
        self.addressables().get(name).await.expect("the AddressableService exists")
    }

    /// Sets the name of the Service in the spec of an AddressableService.
    pub(crate) async fn set_service_name(&self, name: &str, service: &str) -> AddressableService {
        let patch = Patch::Merge(json!({ "spec": { "serviceName": service } }));
        let patched = self.addressables().patch(name, &PatchParams::default(), &patch).await;
        patched.expect("the spec is patched")
    }

    pub(crate) async fn delete_addressable(&self, name: &str) {
        self.addressables().delete(name, &DeleteParams::default()).await.expect("the deletion is accepted");
    }

    pub(crate) async fn wait_until_gone(&self, name: &str) {
        eventually(format!("{name} is gone"), TIMEOUT, async || {
            self.addressables().get_opt(name).await.ok()?.is_none().then_some(())
        })
        .await;
    }

    /// Waits until the controller has observed the latest generation of an AddressableService, and the status shows the
    /// expected state. Returns the object.
    pub(crate) async fn wait_for_state(&self, name: &str, expected: &State) -> AddressableService {
        eventually(format!("the state of {name} is {expected:?}"), TIMEOUT, async || {
            let object = self.addressables().get(name).await.ok()?;
            (is_observed(&object) && state(&object).as_ref() == Some(expected)).then_some(object)
        })
        .await
    }

    /// Waits until the AddressableService is Ready with the address of this Service.
    pub(crate) async fn wait_until_ready(&self, name: &str, service: &str) -> AddressableService {
        self.wait_for_state(name, &self.available(service)).await
    }

    /// Waits until exactly `count` AddressableServices of the namespace are Ready.
    pub(crate) async fn wait_until_all_ready(&self, count: usize) {
        eventually(format!("{count} AddressableServices are Ready"), TIMEOUT * 5, async || {
            let list = self.addressables().list(&ListParams::default()).await.ok()?;
            let ready =
                list.iter().filter(|object| state(object).is_some_and(|state| state.ready == "True")).count();
            (ready == count).then_some(())
        })
        .await;
    }

    /// The state of an AddressableService whose Service exists.
    pub(crate) fn available(&self, service: &str) -> State {
        let url = format!("http://{service}.{}.svc.cluster.local", self.namespace);
        State { ready: "True".into(), reason: String::new(), message: String::new(), url: Some(url) }
    }

    /// The state of an AddressableService whose Service does not exist.
    pub(crate) fn unavailable(&self, service: &str) -> State {
        let message = format!("Service {service:?} wasn't found.");
        State { ready: "False".into(), reason: "ServiceUnavailable".into(), message, url: None }
    }

    /// Waits for an event with this reason about the object of this name, and returns it.
    pub(crate) async fn wait_for_event(&self, about: &str, reason: &str) -> Event {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        eventually(format!("an event {reason} about {about}"), TIMEOUT, async || {
            let list = events.list(&ListParams::default()).await.ok()?;
            list.into_iter().find(|event| {
                event.reason.as_deref() == Some(reason)
                    && event.regarding.as_ref().and_then(|regarding| regarding.name.as_deref()) == Some(about)
            })
        })
        .await
    }
}

/// The state that the status of the object shows. `None` if there is no Ready condition yet.
pub(crate) fn state(object: &AddressableService) -> Option<State> {
    let status = object.status.as_ref()?;
    let ready = status.duck.condition("Ready")?;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Some(State {
        ready: ready.status.to_string(),
        reason: text(&ready.reason),
        message: text(&ready.message),
        url: status.address.as_ref().and_then(|address| address.url.as_ref()).map(ToString::to_string),
    })
}

/// Returns true if the controller has observed the latest generation.
pub(crate) fn is_observed(object: &AddressableService) -> bool {
    let observed = object.status.as_ref().and_then(|status| status.duck.observed_generation);
    observed == object.metadata.generation
}
