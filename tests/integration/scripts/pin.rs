//! hack/pin.sh, with fake programs.

use std::{
    env,
    error::Error,
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

type TestResult = Result<(), Box<dyn Error>>;

const HACK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/hack");
const COMMIT: &str = "1111111111111111111111111111111111111111";
const TAG: &str = "2222222222222222222222222222222222222222";
const DIGEST: &str = "sha256:3333333333333333333333333333333333333333333333333333333333333333";
/// An index with the archives of two versions of Kubernetes.
const INDEX: &str = "releases:
  v1.36.3:
    envtest-v1.36.3-linux-amd64.tar.gz:
      hash: aaaa
      selfLink: https://example.com/envtest-v1.36.3-linux-amd64.tar.gz
  v1.36.4:
    envtest-v1.36.4-linux-amd64.tar.gz:
      hash: bbbb
      selfLink: https://example.com/envtest-v1.36.4-linux-amd64.tar.gz
";

#[test]
fn what_a_build_takes_from_elsewhere_is_pinned_by_its_digest() -> TestResult {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pin.sh-{}", std::process::id()));
    let write = |path: &str, content: &str| {
        let path = folder.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
    };
    for script in ["pin.sh", "help.sh"] {
        write(&format!("hack/{script}"), &fs::read_to_string(format!("{HACK}/{script}"))?)?;
    }
    // An annotated tag has an object of its own, and then its commit.
    let refs = format!("{TAG}\\trefs/tags/v1\\n{COMMIT}\\trefs/tags/v1^{{}}\\n");
    write(
        "bin/git",
        &format!("#!/bin/sh\n[ \"$2\" = https://github.com/some/action ] && printf '{refs}'\n"),
    )?;
    write("bin/docker", &format!("#!/bin/sh\necho {DIGEST}\n"))?;
    write("bin/curl", &format!("#!/bin/sh\ncat <<'END'\n{INDEX}END\n"))?;
    let pinned = format!("uses: other/action@{TAG} # v2\n");
    let steps = format!(
        "      - uses: some/action/part@v1\n      - {pinned}      - uses: ./.github/workflows/b.yaml\n"
    );
    write(".github/workflows/a.yaml", &steps)?;
    write("cargo-reknit/template/project/.github/workflows/ci.yaml", &steps)?;
    for dockerfile in ["Dockerfile", "cargo-reknit/template/project/Dockerfile"] {
        write(dockerfile, "FROM example.com/rust:1 AS build\nFROM example.com/rust:1-slim\n")?;
    }
    write("hack/envtest/go.mod", "require k8s.io/kubernetes v1.36.3\n")?;
    write("hack/envtest/old/go.mod", "require k8s.io/kubernetes v1.36.3\n")?;
    let run = |arguments: &[&str]| -> Result<Output, Box<dyn Error>> {
        let path = format!("{}:/usr/bin:/bin", folder.join("bin").display());
        Ok(Command::new(folder.join("hack/pin.sh")).args(arguments).env("PATH", path).output()?)
    };
    let unpinned = run(&["--check"])?;
    let expected = "not pinned: some/action/part@v1\nnot pinned: example.com/rust:1\nnot pinned: example.com/rust:1-slim\n\
                    not pinned: the archive of Kubernetes v1.36.3\n";
    assert_eq!((unpinned.status.code(), &*String::from_utf8(unpinned.stdout)?), (Some(1), expected));
    let pinning = run(&[])?;
    assert!(pinning.status.success(), "{}", String::from_utf8_lossy(&pinning.stderr));
    assert_eq!(run(&["--check"])?.status.code(), Some(0));
    let read = |path: &str| fs::read_to_string(folder.join(path));
    let pinned_steps = steps.replace("part@v1", &format!("part@{COMMIT} # v1"));
    assert_eq!(read(".github/workflows/a.yaml")?, pinned_steps);
    assert_eq!(read("cargo-reknit/template/project/.github/workflows/ci.yaml")?, pinned_steps);
    let images =
        format!("FROM example.com/rust:1@{DIGEST} AS build\nFROM example.com/rust:1-slim@{DIGEST}\n");
    assert_eq!(read("Dockerfile")?, images);
    let archive = "aaaa  https://example.com/envtest-v1.36.3-linux-amd64.tar.gz\n";
    assert_eq!(read("hack/envtest/archives.sha512")?, archive);
    fs::remove_dir_all(folder)?;
    Ok(())
}

#[test]
fn every_action_of_the_workflows_is_pinned_by_a_commit() -> TestResult {
    let check = Command::new(format!("{HACK}/pin.sh")).arg("--check").output()?;
    let stdout = String::from_utf8(check.stdout)?;
    // Images and archives have no `@` as long as they are not pinned.
    let actions: Vec<_> = stdout.lines().filter(|line| line.contains('@')).collect();
    assert_eq!(actions, [""; 0]);
    Ok(())
}
