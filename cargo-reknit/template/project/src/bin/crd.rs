//! Prints the CustomResourceDefinitions. `cargo reknit crd --write` writes them to `config/300-crds.yaml`.

fn main() -> reknit::prelude::Result<()> {
    print!("{}", hello_world::definitions_yaml()?);
    Ok(())
}
