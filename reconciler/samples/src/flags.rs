//! The flags of the sample controllers, beside the framework's own.

use reknit::prelude::*;

/// Parsed with the framework's flags; constructors find it in their [`Context`].
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Flags {
    /// Work on the objects of one namespace only, so that a Role there is all the controller needs
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
}

impl Flags {
    /// The objects that the controllers of this process read.
    pub fn selection(&self) -> Selection {
        self.namespace.iter().fold(select(), |selection, namespace| selection.namespace(namespace))
    }
}
