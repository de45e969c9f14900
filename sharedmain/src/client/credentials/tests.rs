use std::fs;

use kube::config::{ExecConfig, ExecInteractiveMode};

use super::*;

/// The credentials of a plugin that prints this time of expiry, and counts its runs.
struct Counted {
    credentials: Arc<Credentials>,
    runs: tempfile::NamedTempFile,
}

impl Counted {
    fn expiring(expiry: &str) -> Self {
        Self::running(|_| format!("printf '{{status: {{token: t{expiry}}}}}'"))
    }

    /// Only the first run succeeds.
    fn failing_after_first_run(seconds: i64) -> Self {
        let expiry = Timestamp::now() + SignedDuration::from_secs(seconds);
        Self::running(|runs| {
            let printed = format!("{{status: {{token: t, expirationTimestamp: {expiry}}}}}");
            format!("test $(wc -l < {runs}) -eq 1 && printf '{printed}'")
        })
    }

    /// `script` gets the path of the file to which each run adds a line.
    fn running(script: impl FnOnce(&str) -> String) -> Self {
        let runs = tempfile::NamedTempFile::new().unwrap();
        let path = runs.path().display().to_string();
        let script = format!("echo run >> {path}; {}", script(&path));
        let mut access = Access::without_credentials("https://127.0.0.1:1".parse().unwrap());
        access.config.auth_info.exec = Some(ExecConfig {
            command: Some("sh".into()),
            args: Some(vec!["-c".into(), script]),
            interactive_mode: Some(ExecInteractiveMode::Never),
            ..ExecConfig::default()
        });
        Self { credentials: Credentials::load(&access, "test").unwrap(), runs }
    }

    fn expiring_in(seconds: i64) -> Self {
        Self::expiring(&format!(
            ", expirationTimestamp: {}",
            Timestamp::now() + SignedDuration::from_secs(seconds)
        ))
    }

    /// The number of runs after these requests, a second apart.
    async fn runs_after(&self, requests: usize) -> usize {
        for _ in 0..requests {
            self.credentials.current().await.unwrap();
            drop(self.credentials.renewal.lock().await); // a renewal ends before the next second
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        fs::read_to_string(self.runs.path()).unwrap().lines().count()
    }
}

#[test]
fn the_uid_and_the_attributes_of_an_impersonated_user_are_headers() {
    let mut config = Config::new("https://127.0.0.1:1".parse().unwrap());
    let auth = &mut config.auth_info;
    auth.impersonate_uid = Some("u1".into());
    let values = vec!["a".to_owned(), "b".to_owned()];
    auth.impersonate_user_extra = Some([("Example.com/Team".to_owned(), values)].into());
    assert!(add_impersonation(&mut config).unwrap_err().contains("need as"));
    config.auth_info.impersonate = Some("jane".into());
    add_impersonation(&mut config).unwrap();
    let headers = config.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
    let extra = "impersonate-extra-example.com%2fteam";
    let headers: Vec<_> = headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
    let expected = [("impersonate-uid", "u1"), (extra, "a"), (extra, "b")];
    assert_eq!(headers, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
}

#[tokio::test(start_paused = true)]
async fn a_plugin_runs_once_while_its_credentials_are_valid() {
    for seconds in [45, 300, 3600, 1_000_000_000] {
        assert_eq!(Counted::expiring_in(seconds).runs_after(50).await, 1, "{seconds}");
    }
    assert_eq!(Counted::expiring("").runs_after(50).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_runs_a_few_times_a_minute_whatever_the_expiry_of_its_credentials() {
    for seconds in [-1_000_000_000, -1, 0] {
        let runs = Counted::expiring_in(seconds).runs_after(300).await;
        assert!((5..=18).contains(&runs), "{runs} runs in five minutes, {seconds}");
    }
}

#[tokio::test]
async fn a_plugin_that_hangs_is_not_started_again_meanwhile() {
    let counted = Counted::expiring(", expirationTimestamp: 2000-01-01T00:00:00Z}}'; sleep 3; : '");
    for _ in 0..3 {
        let request = counted.credentials.current();
        assert!(tokio::time::timeout(Duration::from_millis(100), request).await.is_err());
    }
    let runs = fs::read_to_string(counted.runs.path()).unwrap().lines().count();
    assert!(runs <= 2, "{runs} runs");
}

#[tokio::test(start_paused = true)]
async fn credentials_that_are_still_valid_are_used_although_the_plugin_fails_to_renew_them() {
    let counted = Counted::failing_after_first_run(3600);
    let credentials = &counted.credentials;
    credentials.state.lock().plugin.renew_at = Some(Timestamp::UNIX_EPOCH);
    assert_eq!(counted.runs_after(50).await, 3, "the plugin is tried again, in each third of a minute");
    let login = credentials.current().await.unwrap();
    credentials.record(&login, StatusCode::UNAUTHORIZED);
    let error = credentials.current().await.map(drop).unwrap_err().to_string();
    assert!(error.starts_with("the credential plugin failed (exit status: 1)"), "{error}");
    let expired = Counted::failing_after_first_run(-1);
    assert!(expired.credentials.current().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn no_request_waits_for_a_plugin_before_the_credentials_expire() {
    let expiry = Timestamp::now() + SignedDuration::from_secs(3600);
    let counted = Counted::running(|runs| {
        let printed = format!("{{status: {{token: t, expirationTimestamp: {expiry}}}}}");
        format!("test $(wc -l < {runs}) -eq 1 || sleep 1; printf '{printed}'")
    });
    let credentials = &counted.credentials;
    let login = credentials.current().await.unwrap();
    credentials.state.lock().plugin.renew_at = Some(Timestamp::UNIX_EPOCH);
    tokio::time::advance(Duration::from_secs(20)).await;
    for _ in 0..3 {
        assert!(Arc::ptr_eq(&login, &credentials.current().await.unwrap()));
    }
    drop(credentials.renewal.lock().await);
    assert!(!Arc::ptr_eq(&login, &credentials.last()));
}

#[tokio::test(start_paused = true)]
async fn a_plugin_runs_again_after_its_credentials_were_refused() {
    let counted = Counted::expiring("");
    let login = counted.credentials.current().await.unwrap();
    counted.credentials.record(&login, StatusCode::UNAUTHORIZED);
    assert_eq!(counted.runs_after(10).await, 2);
    counted.credentials.record(&login, StatusCode::UNAUTHORIZED);
    assert_eq!(counted.runs_after(10).await, 2, "they have been replaced by now");
}

#[test]
fn refused_credentials_in_the_kubeconfig_itself_need_a_restart() {
    let mut access = Access::without_credentials("https://127.0.0.1:1".parse().unwrap());
    access.config.auth_info.token = Some("hunter2".to_owned().into());
    let advice = Credentials::load(&access, "test").unwrap().advice();
    assert!(advice.ends_with("restart the process") && !advice.contains("hunter2"), "{advice}");
    assert_eq!(Counted::expiring("").credentials.advice(), "");
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_of_every_request_are_a_problem_after_two_minutes() {
    let counted = Counted::expiring("");
    let credentials = &counted.credentials;
    for _ in 0..130 {
        assert_eq!(credentials.problem(), None);
        credentials.record(&credentials.last(), StatusCode::UNAUTHORIZED);
        tokio::time::advance(Duration::from_secs(1)).await;
        if credentials.problem().is_some() {
            break;
        }
    }
    let problem = credentials.problem().unwrap();
    assert_eq!(problem, "the API server has answered every request with 401 (Unauthorized) for 120s");
    credentials.record(&credentials.last(), StatusCode::FORBIDDEN);
    assert_eq!(credentials.problem(), None);
}
