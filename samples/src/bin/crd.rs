//! Prints the CustomResourceDefinitions. `cargo reknit crd --write` writes them to `config/300-crds.yaml`.

fn main() -> reknit::prelude::Result<()> {
    print!("{}", reknit_samples::manifests::definitions_yaml()?);
    Ok(())
}
