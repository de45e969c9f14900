//! Writes the seeds of the fuzzer into a folder, one file each.

use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(env::args_os().nth(1).ok_or("usage: seeds FOLDER")?);
    for (number, seed) in webhook_fuzz::seeds().iter().enumerate() {
        fs::write(folder.join(format!("review-{number}.json")), seed.to_string())?;
        fs::write(folder.join(format!("edited-{number}")), [0, u8::try_from(number)?])?;
    }
    for (number, seed) in webhook_fuzz::watches().iter().enumerate() {
        fs::write(folder.join(format!("watch-{number}.json")), seed)?;
    }
    for (number, seed) in webhook_fuzz::pages().iter().enumerate() {
        fs::write(folder.join(format!("page-{number}.json")), seed)?;
    }
    for (number, seed) in webhook_fuzz::URLS.iter().enumerate() {
        fs::write(folder.join(format!("url-{number}")), seed)?;
    }
    Ok(())
}
