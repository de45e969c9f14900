//! A control plane with settings of its own.

use super::{ControlPlane, Error, process::Running};

/// What a [`ControlPlane`] is started with; from [`ControlPlane::builder`].
#[derive(Clone, Debug, Default)]
pub struct Builder {
    audited: bool,
    arguments: Vec<String>,
}

impl Builder {
    /// Passes one more argument to kube-apiserver, as `--name=value`. It comes last, so it wins over ours.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Has the API server log every request, for [`ControlPlane::audit_events`].
    #[must_use]
    pub fn audited(mut self) -> Self {
        self.audited = true;
        self
    }

    /// Starts etcd and kube-apiserver, and waits until they are ready: three seconds on an idle machine.
    ///
    /// # Errors
    ///
    /// Where there are no programs, naming what installs them; where one ends by itself, with the end of its log; and
    /// where they are not ready after two minutes.
    pub async fn start(self) -> Result<ControlPlane, Error> {
        for _ in 0..4 {
            match Running::start(self.audited, &self.arguments).await {
                // Another process took a port after it was found to be free.
                Err(Error::Ended { log, .. }) if log.contains("address already in use") => {}
                started => return ControlPlane::over(started?),
            }
        }
        ControlPlane::over(Running::start(self.audited, &self.arguments).await?)
    }
}
