//! Prints the RBAC manifests. `cargo reknit rbac --write` writes them to `config/200-rbac.yaml`.

fn main() -> reknit::prelude::Result<()> {
    print!("{}", reknit_samples::manifests::rbac_yaml()?);
    Ok(())
}
