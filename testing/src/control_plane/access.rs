//! The address and the certificate of the API server, and one user's token.

use std::{
    fs,
    path::{Path, PathBuf},
};

use http::Uri;
use kube::Config;
use serde_json::json;

use super::Error;

#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) address: Uri,
    pub(super) certificate: PathBuf,
    /// The same certificate in DER.
    pub(super) root: Vec<u8>,
    pub(super) token: String,
}

impl Access {
    pub(super) fn with_token(&self, token: String) -> Self {
        Self { token, ..self.clone() }
    }

    pub(super) fn config(&self) -> Config {
        let mut config = Config::new(self.address.clone());
        config.root_cert = Some(vec![self.root.clone()]);
        config.auth_info.token = Some(self.token.clone().into());
        config
    }

    pub(super) fn write_kubeconfig(&self, path: &Path) -> Result<(), Error> {
        // Every YAML parser accepts JSON.
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "test",
                "cluster": {"server": self.address.to_string(), "certificate-authority": self.certificate},
            }],
            "users": [{"name": "test", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        });
        fs::write(path, format!("{kubeconfig:#}\n")).map_err(Error::file("write", path))
    }
}
