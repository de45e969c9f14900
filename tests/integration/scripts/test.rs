//! hack/test.sh, with a fake cargo.

use std::{error::Error, fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

const HACK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/hack");
/// Fails in clippy, and in one of two integration tests.
const FAKE_CARGO: &str = "#!/bin/sh
case \"$*\" in
  clippy*) exit 1 ;;
  test*--test-threads=16*)
    echo 'test a::passes ... ok <0.100s>'
    echo 'test b::fails ... FAILED <0.200s>'
    echo '    `-p reknit --test integration`'
    exit 101
    ;;
esac
";

#[test]
fn every_stage_runs_and_all_failures_are_listed_at_the_end() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("test.sh-{}", std::process::id()));
    let write = |path: &str, content: &str| {
        let path = folder.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
    };
    for script in ["test.sh", "help.sh"] {
        write(&format!("hack/{script}"), &fs::read_to_string(format!("{HACK}/{script}"))?)?;
    }
    write("hack/setup-envtest.sh", "#!/bin/sh\necho /programs\n")?;
    write("hack/shellcheck.sh", "#!/bin/sh\n")?;
    write("bin/cargo", FAKE_CARGO)?;
    write("bin/git", "#!/bin/sh\n")?;
    let path = format!("{}:/usr/bin:/bin", folder.join("bin").display());
    let output = Command::new(folder.join("hack/test.sh")).env("PATH", path).output()?;
    let (stdout, stderr) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    assert_eq!(output.status.code(), Some(1), "{stdout}{stderr}");
    for line in ["=== docs: passed in ", "KUBEBUILDER_ASSETS=/programs\n", "=== availability: passed in "] {
        assert!(stdout.contains(line), "{line:?} is not in {stdout}");
    }
    assert!(
        stderr
            .ends_with(" s\nclippy\nintegration tests\n    b::fails\n    in -p reknit --test integration\n"),
        "{stderr}"
    );
    fs::remove_dir_all(folder)?;
    Ok(())
}
