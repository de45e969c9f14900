//! Work for the sample that changes its metrics.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, Config,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use reknit_samples::{AddressableService, SimpleDeployment};
use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpStream, time::sleep};

use crate::manifests::TestResult;

/// Objects in the namespace `default`.
pub(crate) struct Load {
    pub(crate) services: Api<AddressableService>,
}

impl Load {
    /// Creates two SimpleDeployments, and keeps the API server from calling the webhook for the namespace: it cannot reach the
    /// webhook here.
    pub(crate) async fn prepare(client: &Client) -> TestResult<Self> {
        let label = Patch::Merge(json!({"metadata": {"labels": {"webhooks.knative.dev/exclude": "true"}}}));
        Api::<Namespace>::all(client.clone()).patch("default", &PatchParams::default(), &label).await?;
        let deployments: Api<SimpleDeployment> = Api::default_namespaced(client.clone());
        // The image of the second one is invalid, so that its reconciles fail and are retried.
        for (name, image) in [("a", "registry.example.com/a"), ("failing", " ")] {
            let deployment = json!({"apiVersion": "samples.knative.dev/v1alpha1", "kind": "SimpleDeployment",
                "metadata": {"name": name}, "spec": {"image": image, "replicas": 1}});
            deployments.create(&PostParams::default(), &serde_json::from_value(deployment)?).await?;
        }
        Ok(Self { services: Api::default_namespaced(client.clone()) })
    }

    /// Creates and deletes objects, and sends reviews to the address of the webhook, until the future is dropped.
    pub(crate) async fn work(&self, address: String) -> TestResult {
        let mut config = Config::new(format!("https://{address}").parse()?);
        config.accept_invalid_certs = true;
        let webhook = Client::try_from(config)?;
        for number in 0.. {
            let name = format!("a{number}");
            let service = json!({"apiVersion": "samples.knative.dev/v1alpha1", "kind": "AddressableService",
                "metadata": {"name": name}, "spec": {"serviceName": name}});
            self.services.create(&PostParams::default(), &serde_json::from_value(service)?).await?;
            webhook.request_text(review_request("application/json")?).await?;
            let refused = webhook.request_text(review_request("text/plain")?).await;
            assert!(refused.is_err(), "{refused:?}");
            // No TLS handshake.
            TcpStream::connect(&address).await?.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
            self.services.delete(&name, &DeleteParams::default()).await?;
            sleep(Duration::from_millis(300)).await;
        }
        Ok(())
    }
}

/// A review of a ConfigMap with a content type, which the webhook refuses unless it is that of JSON.
fn review_request(content_type: &str) -> TestResult<http::Request<Vec<u8>>> {
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "1", "kind": {"group": "", "version": "v1", "kind": "ConfigMap"}, "operation": "CREATE",
        "resource": {"group": "", "version": "v1", "resource": "configmaps"}, "userInfo": {},
        "object": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}}}});
    let request = http::Request::post("/config-validation").header("content-type", content_type);
    Ok(request.body(serde_json::to_vec(&review)?)?)
}
