//! Generates the gRPC services of cloud-ide and ingress from their proto files, without protoc.

use std::{env, error::Error, fs, path::Path};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    let descriptors = protox::compile(["cloud_ide.proto"], ["cloud-ide"])?;
    println!("cargo::rerun-if-changed=cloud-ide/cloud_ide.proto");
    // The descriptor set that server reflection serves.
    let encoded = Path::new(&env::var("OUT_DIR")?).join("cloud_ide_descriptor.bin");
    fs::write(encoded, descriptors.encode_to_vec())?;
    let serialized = [".pb.PodInfo", ".pb.ResourceLimit"];
    let build = serialized.iter().fold(tonic_prost_build::configure(), |build, message| {
        build.message_attribute(message, "#[derive(serde::Serialize)]")
    });
    build.compile_fds(descriptors)?;

    println!("cargo::rerun-if-changed=ingress/ingress.proto");
    Ok(tonic_prost_build::compile_fds(protox::compile(["ingress.proto"], ["ingress"])?)?)
}
