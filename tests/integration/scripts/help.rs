//! `--help` of the scripts in hack/.

use std::{error::Error, fs, process::Command};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/hack");
/// Files that are sourced, and the runner of cargo, whose arguments are those of a test.
const NOT_COMMANDS: [&str; 3] = ["find-go.sh", "help.sh", "timed.sh"];

#[test]
fn every_script_prints_its_usage_and_does_nothing_else() -> Result<(), Box<dyn Error>> {
    let mut checked = 0;
    for entry in fs::read_dir(FOLDER)? {
        let name = entry?.file_name().into_string().map_err(|name| format!("{name:?} is not UTF-8"))?;
        if !name.ends_with(".sh") || NOT_COMMANDS.contains(&&*name) {
            continue;
        }
        // Without cargo on PATH, a script that starts a build fails.
        let mut script = Command::new(format!("{FOLDER}/{name}"));
        let output = script.arg("--help").env("PATH", "/usr/bin:/bin").output()?;
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{name}: {}\n{stderr}", output.status);
        assert!(stdout.contains(&format!("hack/{name}")), "{name} printed no usage:\n{stdout}");
        assert_eq!(stderr, "", "{name}");
        checked += 1;
    }
    assert!(checked > 10, "only {checked} scripts");
    Ok(())
}
