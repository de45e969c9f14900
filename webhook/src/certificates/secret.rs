//! The contents of the Secret, the served certificate and its authorities, and their rotation.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{ByteString, api::core::v1::Secret, jiff::Timestamp};

use super::authority::{Error, Pair, read};

const SERVER_KEY: &str = "server-key.pem";
const SERVER_CERTIFICATE: &str = "server-cert.pem";
const TRUSTED: &str = "ca-cert.pem";
const NEXT_KEY: &str = "next-ca-key.pem";
const NEXT_CERTIFICATE: &str = "next-ca-cert.pem";

/// The longest time between checks of the clock. It can be set, and timers stand still while a machine is suspended.
const LOOK_AGAIN: Duration = Duration::from_secs(60 * 60);

/// The longest validity of a certificate: ten years.
const LONGEST: Duration = Duration::from_secs(3_652 * 86_400);

/// The validity of certificates and the time of their renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifetime {
    /// The time from issue to end: seven days, as in Knative.
    pub(crate) validity: Duration,
    /// The time from renewal to end: a day.
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
        if validity > LONGEST {
            return Err(format!("certificates cannot last {validity:?}: ten years at most"));
        }
        if renew_before.is_zero() || renew_before >= validity {
            return Err(format!(
                "certificates that last {validity:?} cannot be renewed {renew_before:?} before their end: want more than \
                 nothing and less than they last"
            ));
        }
        Ok(())
    }
}

/// The contents of the Secret. Each authority is published one rotation before it issues the served certificate, so no client
/// gets a certificate whose authority it does not trust yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificates {
    /// The served certificate.
    pub(crate) server: Pair,
    /// The authorities that clients are to trust, oldest first.
    pub(crate) trusted: Vec<String>,
    /// The authority that issues the next certificate. A Secret that Knative has written has none.
    pub(crate) next: Option<Pair>,
}

/// The terms on which certificates are issued.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'a> {
    /// The names of the server.
    pub(crate) names: &'a [String],
    pub(crate) now: Timestamp,
    pub(crate) lifetime: Lifetime,
}

impl Terms<'_> {
    /// A new authority. It is trusted for one rotation before it issues a certificate, while that is served, and for one rotation
    /// longer, since replicas learn of a new certificate at different times.
    fn authority(&self) -> Result<Pair, Error> {
        Pair::authority(self.now, self.lifetime.validity * 3)
    }

    fn issue(&self, authority: &Pair) -> Result<Pair, Error> {
        authority.issue(self.names, self.now, self.lifetime.validity)
    }
}

/// The next step for a Secret.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Do nothing for this time at most.
    Wait(Duration),
    /// Write these contents.
    Write(Box<Certificates>),
    /// Wait: a new certificate is due, but not all clients trust its authority yet.
    Publish,
}

impl Certificates {
    /// Reads a Secret. None if a part is missing or is not text.
    pub(crate) fn from_secret(secret: &Secret) -> Option<Self> {
        let text = |key: &str| String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok();
        let pair = |certificate, key| Some(Pair { certificate: text(certificate)?, key: text(key)? });
        Some(Self {
            server: pair(SERVER_CERTIFICATE, SERVER_KEY)?,
            trusted: certificates(&text(TRUSTED)?),
            next: pair(NEXT_CERTIFICATE, NEXT_KEY),
        })
    }

    pub(crate) fn data(&self) -> BTreeMap<String, ByteString> {
        let server = [(SERVER_CERTIFICATE, &self.server.certificate), (SERVER_KEY, &self.server.key)];
        let next =
            self.next.iter().flat_map(|next| [(NEXT_CERTIFICATE, &next.certificate), (NEXT_KEY, &next.key)]);
        let own = server.into_iter().chain(next).map(|(key, text)| (key, text.clone()));
        let all = own.chain([(TRUSTED, self.bundle())]);
        all.map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))).collect()
    }

    /// The PEM bundle of the trusted authorities.
    pub(crate) fn bundle(&self) -> String {
        self.trusted.concat()
    }

    /// Creates everything. Clients refuse the certificate until they trust its authority.
    fn fresh(terms: Terms<'_>) -> Result<Self, Error> {
        let authority = terms.authority()?;
        let server = terms.issue(&authority)?;
        Self { server, trusted: vec![authority.certificate], next: None }.with_next(terms)
    }

    /// Adds the authority of the next certificate and trusts it.
    fn with_next(mut self, terms: Terms<'_>) -> Result<Self, Error> {
        let next = terms.authority()?;
        self.trusted.push(next.certificate.clone());
        self.next = Some(next);
        Ok(self)
    }

    /// Has the next authority issue the certificate. The authority before stays trusted for one more rotation.
    fn rotated(&self, next: &Pair, terms: Terms<'_>) -> Result<Self, Error> {
        let server = terms.issue(next)?;
        // Replicas may still serve the old certificate. Its issuer is not always the last one: users may add authorities.
        let others = || self.trusted.iter().rev().filter(|trusted| **trusted != next.certificate);
        let issuer = others().find(|trusted| self.server.is_accepted(trusted, terms.now));
        let before = issuer.or(others().next()).cloned();
        let trusted = before.into_iter().chain([next.certificate.clone()]).collect();
        Self { server, trusted, next: None }.with_next(terms)
    }

    /// The time until the certificate is to be renewed. None if it has to be replaced now.
    fn time_left(&self, terms: Terms<'_>) -> Option<Duration> {
        let contents = read(&self.server.certificate).filter(|_| !self.is_rejected(terms.now))?;
        let covers = terms.names.iter().all(|name| contents.names.contains(name));
        let renew = contents.until.checked_sub(terms.lifetime.renew_before).ok().filter(|_| covers)?;
        Duration::try_from(renew.duration_since(terms.now)).ok().filter(|left| !left.is_zero())
    }

    /// Returns true if the certificate is valid for this name.
    pub(crate) fn covers(&self, name: &String) -> bool {
        read(&self.server.certificate).is_some_and(|seen| seen.names.contains(name))
    }

    /// Returns true if no client accepts the certificate: it has expired or is not valid yet, or the Secret was edited and lacks
    /// its key or its issuer.
    fn is_rejected(&self, now: Timestamp) -> bool {
        !self.server.is_consistent() || !self.server.is_accepted(&self.bundle(), now)
    }

    /// The next authority, if it can still issue a certificate.
    fn usable_next(&self, terms: Terms<'_>) -> Option<&Pair> {
        let next = self.next.as_ref().filter(|next| next.is_consistent())?;
        let contents = read(&next.certificate)?;
        let lasts = contents.from <= terms.now && contents.until >= terms.now + terms.lifetime.validity;
        Some(next).filter(|next| lasts && self.trusted.contains(&next.certificate))
    }
}

/// Decides on the next step. `is_published` is set if all clients trust the held bundle.
pub(crate) fn step(held: Option<&Certificates>, terms: Terms<'_>, is_published: bool) -> Result<Step, Error> {
    let write = |certificates: Result<_, Error>| Ok(Step::Write(Box::new(certificates?)));
    let Some(held) = held else { return write(Certificates::fresh(terms)) };
    let is_rejected = held.is_rejected(terms.now);
    match (held.usable_next(terms), held.time_left(terms)) {
        (None, _) if is_rejected => write(Certificates::fresh(terms)),
        (None, _) => write(Certificates { next: None, ..held.clone() }.with_next(terms)),
        (Some(_), Some(left)) => Ok(Step::Wait(left.min(LOOK_AGAIN))),
        (Some(next), None) if is_published || is_rejected => write(held.rotated(next, terms)),
        (Some(_), None) => Ok(Step::Publish),
    }
}

/// Splits a PEM text into its certificates, and leaves out invalid ones.
fn certificates(pem: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----";
    pem.split_inclusive(END)
        .map(|one| format!("{}\n", one.trim()).replace("\r\n", "\n"))
        .filter(|one| read(one).is_some())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::{
        RootCertStore,
        client::{WebPkiServerVerifier, danger::ServerCertVerifier},
        crypto::ring::default_provider,
        pki_types::{CertificateDer, UnixTime, pem::PemObject},
    };

    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn terms(names: &[String], second: i64) -> Terms<'_> {
        let now = Timestamp::from_second(NOW + second).unwrap();
        Terms { names, now, lifetime: Lifetime::default() }
    }

    fn names() -> Vec<String> {
        vec!["webhook.ns.svc".into()]
    }

    #[track_caller]
    fn stepped(held: Option<&Certificates>, second: i64, is_published: bool) -> Certificates {
        match step(held, terms(&names(), second), is_published).unwrap() {
            Step::Write(certificates) => {
                assert!(certificates.next.is_some());
                *certificates
            }
            other => panic!("{other:?}"),
        }
    }

    /// Returns true if a client that trusts the bundle accepts the certificate at that time.
    fn trusts(bundle: &Certificates, shown: &Certificates, second: i64) -> bool {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(
            CertificateDer::pem_slice_iter(bundle.bundle().as_bytes()).map(Result::unwrap),
        );
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(default_provider()));
        let shown = CertificateDer::from_pem_slice(shown.server.certificate.as_bytes()).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs((NOW + second) as u64));
        let name = "webhook.ns.svc".try_into().unwrap();
        verifier.build().unwrap().verify_server_cert(&shown, &[], &name, &[], now).is_ok()
    }

    const DAY: i64 = 86_400;

    #[test]
    fn clients_and_replicas_that_are_one_rotation_apart_trust_each_other() {
        let mut before = stepped(None, 0, false);
        for rotation in 1..5 {
            let due = rotation * 6 * DAY + 1;
            let after = stepped(Some(&before), due, true);
            assert_ne!(after.server, before.server);
            for (bundle, shown) in
                [(&before, &before), (&before, &after), (&after, &before), (&after, &after)]
            {
                assert!(trusts(bundle, shown, due), "rotation {rotation}");
            }
            assert_eq!(after.trusted.len(), 3);
            before = after;
        }
    }

    #[test]
    fn a_certificate_is_renewed_a_day_before_its_end_and_not_earlier() {
        let held = stepped(None, 0, false);
        let step = |second| step(Some(&held), terms(&names(), second), false).unwrap();
        assert_eq!(step(0), Step::Wait(LOOK_AGAIN));
        assert_eq!(step(6 * DAY - 1), Step::Wait(Duration::from_secs(1)));
        assert_eq!(step(6 * DAY), Step::Publish);
    }

    #[test]
    fn an_expired_certificate_is_replaced_even_if_no_client_trusts_the_authority_yet() {
        let held = stepped(None, 0, false);
        assert_ne!(stepped(Some(&held), 7 * DAY + 1, false).server, held.server);
    }

    #[test]
    fn a_certificate_that_lacks_a_name_is_due() {
        let held = stepped(None, 0, false);
        let more = [names(), vec!["127.0.0.1".into()]].concat();
        assert_eq!(step(Some(&held), terms(&more, 1), false).unwrap(), Step::Publish);
    }

    #[test]
    fn the_certificate_of_a_knative_webhook_is_kept_and_gets_a_next_authority() {
        let theirs = Certificates { next: None, ..stepped(None, 0, false) };
        let theirs = Certificates { trusted: theirs.trusted[..1].to_vec(), ..theirs };
        let ours = stepped(Some(&theirs), 1, false);
        assert_eq!((&ours.server, &ours.trusted[..1]), (&theirs.server, &theirs.trusted[..]));
        assert_eq!(ours.trusted.len(), 2);
    }

    #[test]
    fn damaged_parts_of_the_secret_are_replaced_at_once_and_a_valid_certificate_is_kept() {
        let (held, other) = (stepped(None, 0, false), stepped(None, 0, false));
        let nonsense = || Pair { certificate: "nonsense".into(), key: "nonsense".into() };
        let keyed =
            |of: &Pair, key: &Pair| Pair { certificate: of.certificate.clone(), key: key.key.clone() };
        let damaged = [
            ("the certificate", Certificates { server: nonsense(), ..held.clone() }),
            ("another's certificate", Certificates { server: other.server.clone(), ..held.clone() }),
            ("another's key", Certificates { server: keyed(&held.server, &other.server), ..held.clone() }),
            ("no authority", Certificates { trusted: vec![], ..held.clone() }),
            ("another's authorities", Certificates { trusted: other.trusted.clone(), ..held.clone() }),
        ];
        for (what, damaged) in &damaged {
            let mended = stepped(Some(damaged), 1, false);
            assert!(trusts(&mended, &mended, 1) && mended.server.is_consistent(), "{what}");
        }
        let next = held.next.as_ref().unwrap();
        for bad in [nonsense(), keyed(next, &held.server), other.next.clone().unwrap()] {
            let mended = stepped(Some(&Certificates { next: Some(bad), ..held.clone() }), 1, false);
            assert!(mended.server == held.server && trusts(&mended, &held, 1));
            assert!(mended.usable_next(terms(&names(), 1)).is_some());
        }
    }

    #[test]
    fn an_authority_added_by_a_user_does_not_displace_the_issuer_of_the_old_certificate() {
        let (mut before, foreign) = (stepped(None, 0, false), stepped(None, 0, false));
        before.trusted.push(foreign.trusted[0].clone());
        let due = 6 * DAY + 1;
        let after = stepped(Some(&before), due, true);
        assert!(trusts(&after, &before, due) && trusts(&before, &after, due));
    }

    #[test]
    fn a_certificate_from_a_clock_more_than_an_hour_ahead_is_replaced() {
        let ahead = stepped(None, 2 * DAY, false);
        let mended = stepped(Some(&ahead), 0, false);
        assert!(!trusts(&ahead, &ahead, 0) && trusts(&mended, &mended, 0));
        let somewhat = stepped(None, 3_000, false);
        let step = step(Some(&somewhat), terms(&names(), 0), false).unwrap();
        assert_eq!(step, Step::Wait(LOOK_AGAIN));
    }

    #[test]
    fn invalid_certificates_in_the_bundle_are_left_out() {
        let certificates = stepped(None, 0, false);
        let nonsense = "-----BEGIN CERTIFICATE-----\nbm9uc2Vuc2U=\n-----END CERTIFICATE-----\n";
        let mut data = certificates.data();
        data.insert(TRUSTED.into(), ByteString((nonsense.to_owned() + &certificates.bundle()).into_bytes()));
        assert_eq!(
            Certificates::from_secret(&Secret { data: Some(data), ..Secret::default() }),
            Some(certificates)
        );
    }

    #[test]
    fn written_contents_are_read_back() {
        let certificates = stepped(None, 0, false);
        let secret = Secret { data: Some(certificates.data()), ..Secret::default() };
        assert_eq!(Certificates::from_secret(&secret), Some(certificates));
        assert_eq!(Certificates::from_secret(&Secret::default()), None);
    }
}
