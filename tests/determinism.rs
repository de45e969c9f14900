//! The crates that can run in a simulation choose nothing at random.
#![cfg(test)]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The files of the sources in a folder, without tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let entries = entries.filter(|path| !path.file_stem().unwrap().to_str().unwrap().starts_with("test"));
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

#[test]
fn every_select_is_biased() {
    let mut count = 0;
    for name in ["apis", "injection", "leadership", "reconciler", "sharedmain"] {
        for path in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(name).join("src")) {
            let text = fs::read_to_string(&path).unwrap();
            let code: Vec<_> = text.lines().map(str::trim).filter(|line| !line.starts_with("//")).collect();
            for lines in code.windows(2).filter(|lines| lines[0].contains("select! {")) {
                assert_eq!(lines[1], "biased;", "{}: {}", path.display(), lines[0]);
                count += 1;
            }
        }
    }
    assert!(count > 10, "only {count} selects were found");
}
