//! The keys, the certificate and the tokens of the API server.

use std::{
    fs,
    path::{Path, PathBuf},
};

use http::Uri;
use kube::Config;
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use serde_json::json;

use super::error::Error;

/// The key pair that signs and verifies the tokens of service accounts.
pub(super) const SIGNING_KEY: &str = "service-accounts.key";
pub(super) const VERIFYING_KEY: &str = "service-accounts.pub";
pub(super) const CERTIFICATE: &str = "server.crt";
pub(super) const KEY: &str = "server.key";
pub(super) const TOKENS: &str = "tokens.csv";

/// Writes the files into the folder and returns the administrator's access.
pub(super) fn create(folder: &Path, port: u16) -> Result<Access, Error> {
    let write = |name: &str, content: String| {
        let path = folder.join(name);
        fs::write(&path, content).map_err(Error::cannot(format!("write {}", path.display())))
    };
    let token_key = KeyPair::generate().map_err(Error::cannot("generate a key"))?;
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["127.0.0.1".to_owned()]).map_err(Error::cannot("generate a key"))?;
    let token = format!("{:032x}", rand::random::<u128>());
    write(SIGNING_KEY, token_key.serialize_pem())?;
    write(VERIFYING_KEY, token_key.public_key_pem())?;
    write(CERTIFICATE, cert.pem())?;
    write(KEY, signing_key.serialize_pem())?;
    write(TOKENS, format!("{token},admin,admin,system:masters\n"))?;
    let address = format!("https://127.0.0.1:{port}").parse();
    let address = address.map_err(Error::cannot(format!("use port {port}")))?;
    Ok(Access {
        address,
        certificate_path: folder.join(CERTIFICATE),
        certificate_der: cert.der().to_vec(),
        token,
    })
}

/// The address and the certificate of the API server, and the token of one user.
#[derive(Clone, Debug)]
pub(super) struct Access {
    address: Uri,
    certificate_path: PathBuf,
    certificate_der: Vec<u8>,
    token: String,
}

impl Access {
    pub(super) fn with_token(&self, token: String) -> Self {
        Self { token, ..self.clone() }
    }

    pub(super) fn config(&self) -> Config {
        let mut config = Config::new(self.address.clone());
        config.root_cert = Some(vec![self.certificate_der.clone()]);
        config.auth_info.token = Some(self.token.clone().into());
        config
    }

    pub(super) fn write_kubeconfig(&self, path: &Path) -> Result<(), Error> {
        // A kubeconfig is YAML, and JSON is valid YAML.
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "test",
                "cluster": {"server": self.address.to_string(), "certificate-authority": self.certificate_path},
            }],
            "users": [{"name": "test", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        });
        fs::write(path, format!("{kubeconfig:#}\n"))
            .map_err(Error::cannot(format!("write {}", path.display())))
    }
}
