//! The rights of the service accounts of `config/`, which `docs/security.md` lists with their reasons.

use std::{collections::BTreeSet, fs};

use reknit::testing::ControlPlane;

use crate::manifests::{SYSTEM_NAMESPACE, TestResult, kubectl, root};

/// The rows of the table below the line `The rights of \`<account>\``, without their reasons.
fn documented(account: &str) -> TestResult<BTreeSet<String>> {
    let page = fs::read_to_string(root().join("docs/security.md"))?;
    let title = format!("The rights of `{account}`");
    let (_, section) = page.split_once(&title).ok_or_else(|| format!("no {title:?} in docs/security.md"))?;
    let lines =
        section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let cells: Vec<_> =
            line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect();
        let [resources, names, verbs, reason] = &cells[..] else {
            return Err(format!("{line} has no four cells"));
        };
        match reason.is_empty() {
            true => Err(format!("{line} has no reason")),
            false => Ok(format!("{resources} | {names} | {verbs}")),
        }
    };
    Ok(lines.skip(2).map(row).collect::<Result<_, _>>()?)
}

/// The output of `kubectl auth can-i --list` for the account, a row for each right.
async fn granted(plane: &ControlPlane, account: &str) -> TestResult<BTreeSet<String>> {
    let kubeconfig = plane.kubeconfig_as(SYSTEM_NAMESPACE, account).await?.to_string_lossy().into_owned();
    let list = ["--kubeconfig", &kubeconfig, "auth", "can-i", "--list", "--namespace", SYSTEM_NAMESPACE];
    let printed = kubectl(plane, &list)?;
    let header = printed.lines().find(|line| line.starts_with("Resources ")).ok_or("no header")?;
    let columns = ["Resources", "Non-Resource URLs", "Resource Names", "Verbs"].map(|name| header.find(name));
    let [Some(resources), Some(urls), Some(names), Some(verbs)] = columns else { return Err(header.into()) };
    let list = |text: &str| text.trim().trim_matches(['[', ']']).to_owned();
    let row = |line: &str| {
        let object = [&line[resources..urls], &line[urls..names]].map(list).concat();
        format!("{object} | {} | {}", list(&line[names..verbs]), list(&line[verbs..]))
    };
    Ok(printed.lines().skip_while(|line| *line != header).skip(1).map(row).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rights_of_each_account_are_those_that_it_has() -> TestResult {
    let plane = ControlPlane::start().await?;
    for folder in ["config", "config/shadow"] {
        kubectl(&plane, &["apply", "-k", folder])?;
    }
    let of_all = granted(&plane, "default").await?;
    for account in ["controller", "webhook", "controller-shadow"] {
        let documented = documented(account)?;
        let granted: BTreeSet<_> = granted(&plane, account).await?.difference(&of_all).cloned().collect();
        let missing: Vec<_> = granted.difference(&documented).map(String::as_str).collect();
        let extra: Vec<_> = documented.difference(&granted).map(String::as_str).collect();
        assert!(
            missing.is_empty() && extra.is_empty(),
            "docs/security.md lacks these rights of {account}:\n{}\nand lists these, which it does not have:\n{}",
            missing.join("\n"),
            extra.join("\n")
        );
    }
    Ok(())
}
