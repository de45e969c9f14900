//! The SimpleDeployment Kind, which keeps a number of pods running, and its controller.

mod controller;
mod kind;
mod pods;

pub use controller::controller;
pub use kind::{POD_OWNER, SimpleDeployment, SimpleDeploymentSpec, SimpleDeploymentStatus};
