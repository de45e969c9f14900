//! Generates the gRPC service of cloud-ide from its proto file, without protoc.

use std::{env, error::Error, fs, path::Path};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    let proto = "cloud-ide/cloud_ide.proto";
    println!("cargo::rerun-if-changed={proto}");
    let descriptors = protox::compile([proto], ["cloud-ide"])?;
    // The descriptor set that server reflection serves.
    let encoded = Path::new(&env::var("OUT_DIR")?).join("cloud_ide_descriptor.bin");
    fs::write(encoded, descriptors.encode_to_vec())?;
    let serialized = [".pb.PodInfo", ".pb.ResourceLimit"];
    let build = serialized.iter().fold(tonic_prost_build::configure(), |build, message| {
        build.message_attribute(message, "#[derive(serde::Serialize)]")
    });
    Ok(build.compile_fds(descriptors)?)
}
