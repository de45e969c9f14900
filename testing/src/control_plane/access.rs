//! The way in for one user: an address, the certificate behind it, and a token.

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
    pub(super) port: u16,
    /// Written by the API server when it first starts.
    pub(super) certificate: PathBuf,
    pub(super) token: String,
}

impl Access {
    pub(super) fn with_token(&self, token: String) -> Self {
        Self { token, ..self.clone() }
    }

    pub(super) fn config(&self) -> Result<Config, Error> {
        let unusable =
            |problem: String| Error::Credentials(format!("use {}: {problem}", self.certificate.display()));
        let text = fs::read_to_string(&self.certificate).map_err(Error::file("read", &self.certificate))?;
        let certificates = pem::parse_many(text).map_err(|error| unusable(error.to_string()))?;
        if certificates.is_empty() {
            return Err(unusable("no certificate in it yet".into()));
        }
        let mut config = Config::new(self.address()?);
        config.root_cert = Some(certificates.into_iter().map(pem::Pem::into_contents).collect());
        config.auth_info.token = Some(self.token.clone().into());
        Ok(config)
    }

    pub(super) fn write_kubeconfig(&self, path: &Path) -> Result<(), Error> {
        let text = self.kubeconfig()?;
        fs::write(path, text).map_err(Error::file("write", path))
    }

    // JSON, which every reader of YAML reads too.
    fn kubeconfig(&self) -> Result<String, Error> {
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "test",
                "cluster": {"server": self.address()?.to_string(), "certificate-authority": self.certificate},
            }],
            "users": [{"name": "test", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        });
        Ok(format!("{kubeconfig:#}\n"))
    }

    fn address(&self) -> Result<Uri, Error> {
        let address = format!("https://127.0.0.1:{}", self.port);
        address.parse().map_err(|error| Error::Credentials(format!("use the address {address}: {error}")))
    }
}
