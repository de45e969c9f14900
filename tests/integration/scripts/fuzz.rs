//! hack/fuzz.sh, with fake programs.

use std::{env, error::Error, fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

const HACK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/hack");

#[test]
fn without_a_target_each_one_is_fuzzed_and_those_that_fail_are_listed() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz.sh-{}", std::process::id()));
    let write = |path: &str, content: &str| {
        let path = folder.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
    };
    for script in ["fuzz.sh", "help.sh"] {
        write(&format!("hack/{script}"), &fs::read_to_string(format!("{HACK}/{script}"))?)?;
    }
    write("bin/cargo", "#!/bin/sh\necho \"cargo $*\"\n")?;
    write("bin/rustc", "#!/bin/sh\necho 'host: here'\n")?;
    for (target, status) in [("first", 0), ("second", 1), ("third", 0)] {
        write(&format!("webhook/fuzz/fuzz_targets/{target}.rs"), "")?;
        let program = format!("#!/bin/sh\necho \"{target} $*\"\nexit {status}\n");
        write(&format!("target/fuzz/here/debug/{target}"), &program)?;
    }
    let run = |arguments: &[&str]| {
        let path = format!("{}:/usr/bin:/bin", folder.join("bin").display());
        Command::new(folder.join("hack/fuzz.sh")).args(arguments).env("PATH", path).output()
    };
    let ran = |stdout: &str| -> Vec<String> {
        let runs = stdout.lines().filter(|line| line.contains("-max_total_time=5 "));
        runs.filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect()
    };
    let all = run(&["--seconds", "5"])?;
    let stdout = String::from_utf8(all.stdout)?;
    assert_eq!(ran(&stdout), ["first", "second", "third"], "{stdout}");
    assert!(stdout.contains("--bin first --bin second --bin third"), "{stdout}");
    assert_eq!((all.status.code(), &*String::from_utf8(all.stderr)?), (Some(1), "failed: second\n"));
    let one = run(&["--seconds", "5", "third"])?;
    assert_eq!((one.status.code(), ran(&String::from_utf8(one.stdout)?)), (Some(0), vec!["third".into()]));
    fs::remove_dir_all(folder)?;
    Ok(())
}
