//! The settings of a control plane.

use super::{ControlPlane, Error, process::Processes};

/// A builder for a [`ControlPlane`], from [`ControlPlane::builder`].
#[derive(Clone, Debug, Default)]
pub struct Builder {
    audited: bool,
    arguments: Vec<String>,
}

impl Builder {
    /// Passes another argument to kube-apiserver, as `--name=value`. It comes last, so it overrides the default
    /// arguments.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Makes the API server log every request, for [`ControlPlane::audit_events`].
    #[must_use]
    pub fn audited(mut self) -> Self {
        self.audited = true;
        self
    }

    /// Starts etcd and kube-apiserver and waits until they are ready, which takes three seconds on an idle machine.
    ///
    /// # Errors
    ///
    /// Fails if the programs are not installed, and names the script that installs them. Fails if a program exits, with
    /// the end of its log, or if the API server is not ready after two minutes.
    pub async fn start(self) -> Result<ControlPlane, Error> {
        let mut attempt = 1;
        let processes = loop {
            match Processes::start(self.audited, &self.arguments).await {
                // Another process took a port after it was found to be free.
                Err(error) if attempt < 5 && error.to_string().contains("address already in use") => {
                    attempt += 1
                }
                result => break result?,
            }
        };
        let plane = ControlPlane::new(processes)?;
        plane.aggregate_cluster_roles().await?;
        Ok(plane)
    }
}
