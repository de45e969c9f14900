//! The ServiceAccounts with which an object authenticates itself.

use serde::{Deserialize, Serialize};

/// The ServiceAccounts with which an object requests OIDC tokens. Knative's controllers create the ServiceAccounts.
///
/// ```
/// use reknit_knative::AuthStatus;
///
/// let auth: AuthStatus = serde_json::from_str(r#"{"serviceAccountName": "orders-oidc"}"#)?;
/// assert_eq!(auth.service_account_name.as_deref(), Some("orders-oidc"));
/// # Ok::<_, serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "The ServiceAccounts with which the object requests OIDC tokens.")]
pub struct AuthStatus {
    /// The name of the ServiceAccount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// The names of the ServiceAccounts, if the object has several identities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_account_names: Vec<String>,
}
