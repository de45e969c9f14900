//! The command line: the flags of the framework and of the program.
use std::{collections::BTreeSet, net::IpAddr, path::PathBuf, time::Duration};

use super::bind_address::EndpointAddress;
use crate::{process::failure::Failure, process::listen::Host};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, error::ErrorKind};

/// The flags of every process. They are not a clap group: it would be named `Flags`, and a user's struct may have that
/// name.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub(crate) struct Flags {
    /// Path to a kubeconfig; the default is ~/.kube/config, or the service account in a pod
    #[arg(long, env = "KUBECONFIG", hide_env_values = true, value_name = "PATH")]
    pub(crate) kubeconfig: Option<PathList>,

    /// The context of the kubeconfig to use, instead of its current one
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// The cluster of the kubeconfig to use, instead of the context's
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: Option<String>,

    /// The address of the API server, instead of the kubeconfig's
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,

    /// Maximum requests per second to the API server, 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = parse_rate, allow_negative_numbers = true)]
    pub(crate) kube_api_qps: f64,

    /// Maximum burst of requests above --kube-api-qps
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..),
        allow_negative_numbers = true
    )]
    pub(crate) kube_api_burst: u32,

    /// Disable leader election; no other replica may run
    #[arg(long)]
    pub(crate) disable_ha: bool,

    /// Elect leaders by Leases; --leader-elect=false is --disable-ha [default: true]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        conflicts_with = "disable_ha"
    )]
    pub(crate) leader_elect: Option<bool>,

    /// Names of controllers to disable; webhook is the webhook with its server
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) disable_controllers: Vec<String>,

    /// Run only this part of the program; the default is both in one process
    #[arg(long, value_name = "PART")]
    pub(crate) only: Option<Part>,

    /// The address that probes, metrics and other servers listen on [default: all interfaces]
    #[arg(long, value_name = "IP")]
    pub(crate) bind_address: Option<IpAddr>,

    /// The address of metrics, 0 for none [default: :9090]
    #[arg(long, value_name = "[IP]:PORT")]
    pub(crate) metrics_bind_address: Option<EndpointAddress>,

    /// The address of the console, 0 for none [default: 127.0.0.1:8009 if config-observability enables it]
    #[arg(long, value_name = "[IP]:PORT")]
    pub(crate) console_bind_address: Option<EndpointAddress>,

    /// Serve metrics over HTTPS, and only to clients that may get /metrics [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub(crate) metrics_secure: Option<bool>,

    /// The address of probes, 0 for none [default: :8080]
    #[arg(long, value_name = "[IP]:PORT")]
    pub(crate) health_probe_bind_address: Option<EndpointAddress>,

    /// The port of the webhook [default: 8443]
    #[arg(long, value_name = "PORT")]
    pub(crate) webhook_port: Option<u16>,

    /// Maximum changes a minute by each controller that nothing outside of it prompted, as after an upgrade
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        allow_negative_numbers = true,
        conflicts_with = "rehearsal"
    )]
    pub(crate) max_unprompted_changes: Option<u32>,

    /// Time to wait at the start for an API server that is unreachable
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    pub(crate) startup_timeout: Duration,

    /// Time for running reconciles and tasks to end after SIGTERM; keep it below the grace period of the pod
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = parse_duration)]
    pub(crate) shutdown_timeout: Duration,

    /// Write the newest failed passes to this folder, as JSON to test with
    #[arg(long, value_name = "DIR", conflicts_with = "plan")]
    pub(crate) record_failures: Option<PathBuf>,

    /// Print this recorded pass, or the names of those in this folder, and exit
    #[arg(long, value_name = "PATH")]
    pub(crate) print_recorded: Option<PathBuf>,

    /// Print what this version of the program would change, change nothing, and exit
    #[arg(long, group = "rehearsal")]
    pub(crate) plan: bool,

    /// Change nothing, and log what this version would change beside the running one; takes no Lease
    #[arg(long, group = "rehearsal", conflicts_with = "plan")]
    pub(crate) shadow: bool,

    /// The format of the plan
    #[arg(
        long,
        value_name = "FORMAT",
        value_enum,
        default_value = "text",
        requires = "plan",
        conflicts_with = "shadow"
    )]
    pub(crate) plan_output: PlanOutput,

    /// The user to impersonate for the plan or the shadow, as in kubectl
    #[arg(long = "as", value_name = "USER", requires = "rehearsal")]
    pub(crate) as_user: Option<String>,

    /// The group to impersonate for the plan or the shadow; repeat it for several
    #[arg(long, value_name = "GROUP", requires = "as_user")]
    pub(crate) as_group: Vec<String>,
}

/// The format of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PlanOutput {
    Text,
    Json,
}

/// A part of a program, which a Deployment runs as a service account of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// The controllers, with the one that owns the certificate of the webhook, and the tasks
    Controllers,
    /// The server of the webhook, which writes nothing
    Webhook,
}

impl Flags {
    /// Returns true if no leader is elected.
    pub(crate) fn is_without_election(&self) -> bool {
        self.disable_ha || self.shadow || self.leader_elect == Some(false)
    }

    /// Returns true if the API server is asked who may read the metrics.
    pub(crate) fn reviews_readers(&self) -> bool {
        self.metrics_secure == Some(true)
    }

    pub(crate) fn host(&self) -> Option<Host> {
        self.bind_address.map(Host::bind_address)
    }
}

/// A list of paths as in KUBECONFIG, separated by colons (semicolons on Windows).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathList(pub(crate) Vec<PathBuf>);

impl From<std::ffi::OsString> for PathList {
    fn from(list: std::ffi::OsString) -> Self {
        Self(std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()).collect())
    }
}

/// Adds the flags of a user's struct to a command: [`Args::augment_args`].
pub(crate) type AugmentArgs = fn(Command) -> Command;

/// Returns the command of a component.
pub(crate) fn command(component: &str, version: &str, user_flags: &[AugmentArgs]) -> Command {
    let command = Flags::augment_args(Command::new(component.to_owned()).version(version.to_owned()));
    let command = user_flags.iter().fold(command, |command, augment| augment(command));
    // Set last, because `augment_args` replaces this text with the doc comment of the struct of flags.
    let command =
        command.about(format!("Runs the controllers of the component {component}")).long_about(None);
    // As in Go, the last one counts: a patch of a Deployment appends its flags, and those of `Rbac::args` come first.
    command.args_override_self(true)
}

/// Returns the names of user flags that another flag already has.
pub(crate) fn find_duplicates(user_flags: &[AugmentArgs]) -> Vec<String> {
    let framework = Flags::augment_args(Command::new(""));
    let mut seen: BTreeSet<String> = framework.get_arguments().flat_map(names_of).collect();
    seen.extend(["help".into(), "version".into()]);
    let mut duplicates = Vec::new();
    for augment in user_flags {
        for arg in augment(Command::new("")).get_arguments() {
            let names = names_of(arg);
            duplicates.extend(names.intersection(&seen).cloned());
            seen.extend(names);
        }
    }
    duplicates
}

/// Returns the name of a flag on the command line, and its identifier in clap, which is the name of the field.
fn names_of(arg: &Arg) -> BTreeSet<String> {
    [arg.get_long(), Some(arg.get_id().as_str())].into_iter().flatten().map(str::to_owned).collect()
}

/// Parses the command line. clap reports `--help` and `--version` as errors, too.
pub(crate) fn parse(
    command: Command,
    args: &[std::ffi::OsString],
) -> clap::error::Result<(Flags, ArgMatches)> {
    let matches = command.try_get_matches_from(args)?;
    Ok((Flags::from_arg_matches(&matches)?, matches))
}

/// Returns whether the error is a request for help or the version.
pub(crate) fn is_help(error: &clap::Error) -> bool {
    matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
}

/// Describes an invalid command line in one line.
pub(crate) fn usage_failure(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<_> =
        lines.filter(|line| !line.starts_with("Usage:") && !line.contains("try '--help'")).collect();
    Failure::usage(format!("{}; try --help", lines.join("; ").replace(":; ", ": ")))
}

fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate < 0.0 => Err("must not be negative; 0 means no limit".into()),
        Ok(rate) if rate.is_finite() => Ok(rate),
        _ => Err("not a number of requests a second".into()),
    }
}

/// Parses a duration such as `25s`, `1m30s` or `500ms`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    reknit_apis::parse_duration(text).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_flags(args: &[&str]) -> clap::error::Result<Flags> {
        let args: Vec<_> = ["controller"].iter().chain(args).map(Into::into).collect();
        parse(command("controller", "1", &[]), &args).map(|(flags, _)| flags)
    }

    #[derive(Debug, Clone, Args)]
    struct ClashingFlags {
        #[arg(long)]
        server: Option<String>,
        #[arg(long)]
        mine: Option<String>,
        #[arg(long = "my-cluster")]
        cluster: Option<String>,
    }

    #[test]
    fn plans_and_shadows_refuse_the_flags_that_have_no_meaning_for_them() {
        for mode in ["--plan", "--shadow"] {
            assert_eq!(parse_flags(&[mode, "--as", "jane"]).unwrap().as_user.as_deref(), Some("jane"));
        }
        for refused in [
            &["--as", "jane"][..],
            &["--shadow", "--plan-output", "json"],
            &["--plan", "--shadow"],
            &["--plan", "--record-failures", "passes"],
            &["--plan", "--max-unprompted-changes=100"],
            &["--shadow", "--max-unprompted-changes=100"],
        ] {
            assert!(parse_flags(refused).is_err(), "{refused:?}");
        }
    }

    #[test]
    fn of_a_flag_that_is_given_twice_the_last_one_counts() {
        let flags =
            parse_flags(&["--metrics-secure", "--kube-api-qps=1", "--kube-api-qps=2", "--disable-ha"]);
        assert_eq!(flags.unwrap().kube_api_qps, 2.0);
        let flags =
            parse_flags(&["--metrics-secure=true", "--metrics-secure=false", "--disable-ha", "--disable-ha"]);
        assert_eq!(flags.unwrap().metrics_secure, Some(false));
        let flags = parse_flags(&["--disable-controllers=a", "--disable-controllers=b"]).unwrap();
        assert_eq!(flags.disable_controllers, ["a", "b"], "of a list all count");
    }

    #[test]
    fn the_command_is_well_formed() {
        command("controller", "1", &[]).debug_assert();
    }

    #[test]
    fn user_flags_may_have_any_type_name_and_doc_comment() {
        /// A comment on these flags.
        #[derive(Debug, Clone, Args)]
        struct Flags {
            #[arg(long)]
            mine: Option<String>,
        }
        let command = command("controller", "1", &[Flags::augment_args]);
        command.clone().debug_assert();
        assert_eq!(
            command.get_about().map(ToString::to_string).as_deref(),
            Some("Runs the controllers of the component controller")
        );
    }

    #[test]
    fn leader_election_is_on_unless_a_flag_says_otherwise() {
        let is_without = |args: &[&str]| parse_flags(args).map(|flags| flags.is_without_election()).ok();
        for (args, expected) in [
            (&[][..], Some(false)),
            (&["--leader-elect"], Some(false)),
            (&["--leader-elect=true"], Some(false)),
            (&["--leader-elect=false"], Some(true)),
            (&["--disable-ha"], Some(true)),
            (&["--disable-ha", "--leader-elect"], None),
        ] {
            assert_eq!(is_without(args), expected, "{args:?}");
        }
    }

    #[test]
    fn disabled_controllers_are_separated_by_commas() {
        let flags = parse_flags(&["--disable-controllers", "a.example.com,b.example.com"]).unwrap();
        assert_eq!(flags.disable_controllers, ["a.example.com", "b.example.com"]);
    }

    #[test]
    fn a_usage_error_is_one_line() {
        for (args, expected) in [
            (
                &["--sever", "x"][..],
                "error: unexpected argument '--sever' found; tip: a similar argument exists: '--server'; try --help",
            ),
            (
                &["--server"],
                "error: a value is required for '--server <URL>' but none was supplied; try --help",
            ),
            (
                &["--shutdown-timeout=x"],
                "error: invalid value 'x' for '--shutdown-timeout <DURATION>': invalid duration \"x\": want one or more numbers, each with its unit, as in 1h30m or 1.5s; try --help",
            ),
            (
                &["--kube-api-qps", "-1"],
                "error: invalid value '-1' for '--kube-api-qps <N>': must not be negative; 0 means no limit; try --help",
            ),
        ] {
            assert_eq!(usage_failure(&parse_flags(args).unwrap_err()).to_string(), expected);
        }
    }

    #[test]
    fn kubeconfig_paths_are_separated_by_colons() {
        let flags = parse_flags(&["--kubeconfig", "/a::/b"]).unwrap();
        assert_eq!(flags.kubeconfig, Some(PathList(vec!["/a".into(), "/b".into()])));
    }

    #[test]
    fn durations_have_the_format_of_go() {
        assert_eq!(parse_duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
        assert!(
            parse_duration("-1s").is_err() && parse_duration("soon").is_err() && parse_duration("").is_err()
        );
    }

    #[test]
    fn a_negative_or_infinite_rate_is_refused() {
        assert!(parse_flags(&["--kube-api-qps", "0.5"]).is_ok());
        for bad in ["-1", "inf", "NaN", "many"] {
            assert!(parse_flags(&[&format!("--kube-api-qps={bad}")]).is_err(), "{bad}");
        }
        assert!(parse_flags(&["--kube-api-burst", "0"]).is_err());
    }

    #[test]
    fn a_user_flag_with_the_name_of_a_framework_flag_is_a_duplicate() {
        assert_eq!(find_duplicates(&[ClashingFlags::augment_args]), ["server", "cluster"]);
        assert_eq!(find_duplicates(&[]), Vec::<String>::new());
    }
}
