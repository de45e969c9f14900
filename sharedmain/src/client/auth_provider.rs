//! The `auth-provider` of a kubeconfig's user, of which client-go has kept only `oidc`.
use kube::config::AuthInfo;

/// A JSON web token that expired in 1970, so that the first request refreshes it.
const EXPIRED_TOKEN: &str = "e30.eyJleHAiOjB9.";

/// Completes the user for kube, which refreshes the token of `oidc`. kube does not write what it refreshed to the
/// kubeconfig, and trusts the certificates of the system only.
///
/// # Errors
///
/// Fails for another provider or an unsupported option, with what to use instead.
pub(super) fn complete(auth: &mut AuthInfo) -> Result<(), String> {
    let Some(provider) = &mut auth.auth_provider else { return Ok(()) };
    let instead = match provider.name.as_str() {
        "gcp" => "use the exec plugin gke-gcloud-auth-plugin (gcloud container clusters get-credentials)",
        "azure" => "use the exec plugin kubelogin (kubelogin convert-kubeconfig)",
        "oidc" => {
            if let Some(option) =
                provider.config.keys().find(|key| key.starts_with("idp-certificate-authority"))
            {
                return Err(format!(
                    "{option} of the auth-provider oidc is not supported: add the authority to the certificates of the \
                     system (SSL_CERT_FILE) and remove the option, or use an exec plugin such as kubelogin"
                ));
            }
            if provider.config.get("idp-issuer-url").is_some_and(|url| !url.starts_with("https://")) {
                return Err("the idp-issuer-url of the auth-provider oidc has no TLS, and would get the refresh token: \
                            use an https URL"
                    .into());
            }
            // client-go accepts a configuration without these.
            provider.config.entry("id-token".into()).or_insert_with(|| EXPIRED_TOKEN.into());
            provider.config.entry("client-secret".into()).or_default();
            return Ok(());
        }
        _ => "use an exec plugin, a token or a client certificate",
    };
    Err(format!("the auth-provider {:?} is not supported, as in kubectl: {instead}", provider.name))
}

#[cfg(test)]
mod tests {
    use kube::config::AuthProviderConfig;

    use super::*;

    fn completed(name: &str, config: &[(&str, &str)]) -> Result<AuthInfo, String> {
        let config = config.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let provider = AuthProviderConfig { name: name.into(), config, ..AuthProviderConfig::default() };
        let mut auth = AuthInfo { auth_provider: Some(provider), ..AuthInfo::default() };
        complete(&mut auth).map(|()| auth)
    }

    #[test]
    fn an_unsupported_provider_or_option_is_an_error_with_what_to_use_instead() {
        for (name, config, part) in [
            ("gcp", &[][..], "gke-gcloud-auth-plugin"),
            ("azure", &[], "kubelogin convert-kubeconfig"),
            ("openstack", &[], "use an exec plugin"),
            ("oidc", &[("idp-certificate-authority-data", "hunter2")], "SSL_CERT_FILE"),
            ("oidc", &[("idp-issuer-url", "http://idp.example.com"), ("refresh-token", "hunter2")], "no TLS"),
        ] {
            let error = completed(name, config).map(drop).unwrap_err();
            assert!(error.contains(name) && error.contains(part) && !error.contains("hunter2"), "{error}");
        }
        let auth = completed("oidc", &[("id-token", "a.b.c")]).unwrap();
        assert_eq!(auth.auth_provider.unwrap().config["id-token"], "a.b.c");
    }
}
