//! The contents of the Secret, which are the served certificate and its authorities, and their rotation.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{ByteString, api::core::v1::Secret, jiff::Timestamp};

use super::authority::{CertificateAndKey, CertificateInfo, is_server_name, read_certificate};

const SERVER_KEY: &str = "server-key.pem";
const SERVER_CERTIFICATE: &str = "server-cert.pem";
const CA_BUNDLE: &str = "ca-cert.pem";
const NEXT_CA_KEY: &str = "next-ca-key.pem";
const NEXT_CA_CERTIFICATE: &str = "next-ca-cert.pem";

/// The maximum time between checks of the clock, since the clock can be set, and timers stop while a machine is
/// suspended.
const MAX_WAIT: Duration = Duration::from_secs(60 * 60);

/// The maximum validity of a certificate: ten years.
const MAX_VALIDITY: Duration = Duration::from_secs(3_652 * 86_400);

/// The number of rotations for which an authority is valid.
const AUTHORITY_ROTATIONS: u32 = 3;

/// The maximum number of names that a certificate takes over from the one that it replaces. The API server reads at most
/// 64 KiB of a certificate.
const MAX_OTHER_NAMES: usize = 100;

/// The validity of certificates and the time of their renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifetime {
    /// The time from issue to expiry. The default is seven days, as in Knative.
    pub(crate) validity: Duration,
    /// The time from renewal to expiry. The default is one day.
    pub(crate) renew_before: Duration,
}

impl Default for Lifetime {
    fn default() -> Self {
        Self { validity: Duration::from_secs(7 * 86_400), renew_before: Duration::from_secs(86_400) }
    }
}

impl Lifetime {
    /// Fails if no certificates can be created with this lifetime, or if they would not be renewed in time.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { validity, renew_before } = *self;
        if validity > MAX_VALIDITY {
            return Err(format!("certificates cannot last {validity:?}: ten years at most"));
        }
        if renew_before.is_zero() || renew_before >= validity {
            return Err(format!(
                "certificates that last {validity:?} cannot be renewed {renew_before:?} before their end: that time must be \
                 positive and shorter than their validity"
            ));
        }
        Ok(())
    }
}

/// The contents of the Secret. Each authority is published one rotation before it issues the served certificate, so no
/// client gets a certificate whose authority it does not trust yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificates {
    /// The served certificate.
    pub(crate) server: CertificateAndKey,
    /// The authorities that clients are to trust, oldest first.
    pub(crate) trusted: Vec<String>,
    /// The authority that issues the next certificate. A Secret that Knative has written has none.
    pub(crate) next: Option<CertificateAndKey>,
}

/// The parameters of a new certificate.
#[derive(Clone, Copy)]
pub(crate) struct IssueParams<'a> {
    /// The names of the server.
    pub(crate) names: &'a [String],
    pub(crate) now: Timestamp,
    pub(crate) lifetime: Lifetime,
}

impl IssueParams<'_> {
    /// Creates an authority, which is valid for three rotations. In the first, it is published to clients. In the
    /// second, the certificate that it issued is served. In the third, replicas that have not read the next certificate
    /// yet still serve the old one.
    fn create_authority(&self) -> Result<CertificateAndKey, rcgen::Error> {
        CertificateAndKey::self_signed_authority(self.now, self.lifetime.validity * AUTHORITY_ROTATIONS)
    }

    fn issue(&self, authority: &CertificateAndKey) -> Result<CertificateAndKey, rcgen::Error> {
        authority.issue(self.names, self.now, self.lifetime.validity)
    }
}

/// The next step for a Secret.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Check again after this time at the latest.
    Wait(Duration),
    /// Write these contents.
    Write(Box<Certificates>),
    /// Poll: a new certificate is due, but not all clients trust its authority yet.
    AwaitTrust,
}

impl Certificates {
    /// Reads a Secret. Returns `None` if a key is missing or its value is not text.
    pub(crate) fn from_secret(secret: &Secret) -> Option<Self> {
        let text = |key: &str| String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok();
        let pair =
            |certificate, key| Some(CertificateAndKey { certificate: text(certificate)?, key: text(key)? });
        Some(Self {
            server: pair(SERVER_CERTIFICATE, SERVER_KEY)?,
            trusted: split_certificates(&text(CA_BUNDLE)?),
            next: pair(NEXT_CA_CERTIFICATE, NEXT_CA_KEY),
        })
    }

    /// Returns the data of the Secret.
    pub(crate) fn data(&self) -> BTreeMap<String, ByteString> {
        let server = [(SERVER_CERTIFICATE, &self.server.certificate), (SERVER_KEY, &self.server.key)];
        let next = self
            .next
            .iter()
            .flat_map(|next| [(NEXT_CA_CERTIFICATE, &next.certificate), (NEXT_CA_KEY, &next.key)]);
        let pairs = server.into_iter().chain(next).map(|(key, text)| (key, text.clone()));
        pairs
            .chain([(CA_BUNDLE, self.bundle())])
            .map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())))
            .collect()
    }

    /// The PEM bundle of the trusted authorities.
    pub(crate) fn bundle(&self) -> String {
        self.trusted.concat()
    }

    /// Creates a certificate, its authority and the next authority. Clients reject the certificate until they trust its
    /// authority.
    fn create(params: IssueParams<'_>) -> Result<Self, rcgen::Error> {
        let authority = params.create_authority()?;
        let server = params.issue(&authority)?;
        Self { server, trusted: vec![authority.certificate], next: None }.with_next_authority(params)
    }

    /// Creates the authority of the next certificate and adds it to the bundle.
    fn with_next_authority(mut self, params: IssueParams<'_>) -> Result<Self, rcgen::Error> {
        let next = params.create_authority()?;
        self.trusted.push(next.certificate.clone());
        self.next = Some(next);
        Ok(self)
    }

    /// Issues a certificate by `next`, and creates another next authority. The previous authority stays trusted for one
    /// more rotation.
    fn rotate(&self, next: &CertificateAndKey, params: IssueParams<'_>) -> Result<Self, rcgen::Error> {
        let server = params.issue(next)?;
        // Replicas may still serve the old certificate. Its issuer is not always the newest of the other authorities,
        // since users may add authorities.
        let others = || self.trusted.iter().rev().filter(|trusted| **trusted != next.certificate);
        let issuer = others().find(|trusted| self.server.is_accepted(trusted, params.now));
        let previous = issuer.or(others().next()).cloned();
        let trusted = previous.into_iter().chain([next.certificate.clone()]).collect();
        Self { server, trusted, next: None }.with_next_authority(params)
    }

    /// Returns the time until the certificate has to be renewed, or `None` if it has to be replaced now.
    fn time_until_renewal(&self, params: IssueParams<'_>) -> Option<Duration> {
        let (certificate, left) = self.unexpired(params)?;
        let covers_names = params.names.iter().all(|name| certificate.names.contains(name));
        Some(left).filter(|_| covers_names)
    }

    /// Returns the certificate and the time until its renewal. `None` if that has come, or if no client accepts the
    /// certificate.
    fn unexpired(&self, params: IssueParams<'_>) -> Option<(CertificateInfo, Duration)> {
        let certificate =
            read_certificate(&self.server.certificate).filter(|_| !self.is_rejected(params.now))?;
        let renewal = certificate.not_after.checked_sub(params.lifetime.renew_before).ok()?;
        let left = Duration::try_from(renewal.duration_since(params.now)).ok()?;
        (!left.is_zero()).then_some((certificate, left))
    }

    /// Returns the names of the next certificate. One that replaces another before its time keeps the names of that one:
    /// they may be those of another program with the same Secret. If each program issued a certificate for its own names
    /// alone, they would replace each other's for ever. Whoever may write the Secret chooses those names, so the ones that
    /// no certificate can be issued for are left out.
    fn next_names(&self, params: IssueParams<'_>) -> Vec<String> {
        let mut names = params.names.to_vec();
        let current = self.unexpired(params).map(|(certificate, _)| certificate.names);
        let is_other = |name: &String| !params.names.contains(name) && is_server_name(name);
        names.extend(current.into_iter().flatten().filter(is_other).take(MAX_OTHER_NAMES));
        names
    }

    /// Returns true if the certificate is valid for this name.
    pub(crate) fn covers(&self, name: &String) -> bool {
        read_certificate(&self.server.certificate).is_some_and(|certificate| certificate.names.contains(name))
    }

    /// Returns true if no client accepts the certificate: it has expired or is not valid yet, or the Secret was edited
    /// and lacks the certificate's key or issuer.
    fn is_rejected(&self, now: Timestamp) -> bool {
        !self.server.is_consistent() || !self.server.is_accepted(&self.bundle(), now)
    }

    /// Returns true in the second half of the time for renewals. One client that does not learn of the next authority then
    /// no longer holds up the renewal: the certificate would expire for all of them.
    fn expires_soon(&self, IssueParams { now, lifetime, .. }: IssueParams<'_>) -> bool {
        let certificate = read_certificate(&self.server.certificate);
        certificate.is_none_or(|certificate| certificate.not_after <= now + lifetime.renew_before / 2)
    }

    /// Returns the next authority, if it can still issue a certificate.
    fn usable_next_authority(&self, params: IssueParams<'_>) -> Option<&CertificateAndKey> {
        let next = self.next.as_ref().filter(|next| next.is_consistent() && next.can_issue())?;
        let authority = read_certificate(&next.certificate)?;
        let is_valid_long_enough = authority.not_before <= params.now
            && authority.not_after >= params.now + params.lifetime.validity;
        Some(next).filter(|next| is_valid_long_enough && self.trusted.contains(&next.certificate))
    }
}

/// Decides on the next step. `is_published` is true if all clients trust the current bundle.
pub(crate) fn next_step(
    current: Option<&Certificates>,
    params: IssueParams<'_>,
    is_published: bool,
) -> Result<Step, rcgen::Error> {
    let write = |certificates: Result<_, rcgen::Error>| Ok(Step::Write(Box::new(certificates?)));
    let Some(current) = current else { return write(Certificates::create(params)) };
    let is_rejected = current.is_rejected(params.now);
    let is_due = is_published || is_rejected || current.expires_soon(params);
    match (current.usable_next_authority(params), current.time_until_renewal(params)) {
        (None, _) if is_rejected => write(Certificates::create(params)),
        (None, _) => write(Certificates { next: None, ..current.clone() }.with_next_authority(params)),
        (Some(_), Some(left)) => Ok(Step::Wait(left.min(MAX_WAIT))),
        (Some(next), None) if is_due => {
            let names = current.next_names(params);
            write(current.rotate(next, IssueParams { names: &names, ..params }))
        }
        (Some(_), None) => Ok(Step::AwaitTrust),
    }
}

/// Splits a PEM text into its certificates. Omits invalid certificates.
fn split_certificates(pem: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----";
    pem.split_inclusive(END)
        .map(|certificate| format!("{}\n", certificate.trim()).replace("\r\n", "\n"))
        .filter(|certificate| read_certificate(certificate).is_some())
        .collect()
}
