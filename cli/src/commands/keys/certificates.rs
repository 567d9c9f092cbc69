//! The certificate authority of the cluster and the certificate of its NATS server.

use std::fs;

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

use super::folder::{Folder, write_private, write_public};
use crate::output::usage;

/// Validity of the authority, years.
const AUTHORITY_YEARS: i32 = 10;
/// Validity of the server's certificate, years.
const SERVER_YEARS: i32 = 2;

/// The authority's private key; it never leaves the folder.
const AUTHORITY_KEY: &str = "ca.key";

/// Sets the validity: from yesterday, for clocks that are behind.
fn validity(params: &mut CertificateParams, years: i32) -> anyhow::Result<()> {
    let now = wattle_runtime::clock::wall_now().as_us();
    let now = jiff::Timestamp::from_microsecond(i64::try_from(now)?)?;
    let text = now.checked_sub(jiff::SignedDuration::from_hours(24))?;
    let text = text.strftime("%Y %m %d").to_string();
    let mut parts = text.split(' ').map(str::parse::<i32>);
    let mut next = || parts.next().context("a date has three parts")?.context("a number");
    let (year, month, day) = (next()?, u8::try_from(next()?)?, u8::try_from(next()?)?);
    params.not_before = date_time_ymd(year, month, day);
    // The 29th of February does not exist in every year.
    params.not_after = date_time_ymd(year + years, month, day.min(28));
    Ok(())
}

/// The authority, which its name and key identify.
fn authority() -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, "Wattle NATS authority");
    validity(&mut params, AUTHORITY_YEARS)?;
    Ok(params)
}

/// Creates the authority and the server's certificate.
pub(super) fn create(folder: &Folder, hosts: &[String]) -> anyhow::Result<()> {
    let params = authority()?;
    let key = KeyPair::generate().context("cannot create a key")?;
    let certificate = params.self_signed(&key).context("cannot create the authority")?;
    write_private(&folder.path().join(AUTHORITY_KEY), &key.serialize_pem())?;
    write_public(&folder.authority(), &certificate.pem())?;
    issue(folder, hosts)
}

/// Issues the server's certificate for these hosts.
pub(super) fn issue(folder: &Folder, hosts: &[String]) -> anyhow::Result<()> {
    let path = folder.path().join(AUTHORITY_KEY);
    let key =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let key = KeyPair::from_pem(&key).with_context(|| format!("{} is damaged", path.display()))?;
    let issuer = Issuer::new(authority()?, key);
    let mut params = CertificateParams::new(hosts.to_vec()).map_err(|error| {
        usage(format!("invalid --host {}: {error}; expected a name or an address", hosts.join(" ")))
    })?;
    params.distinguished_name.push(DnType::CommonName, hosts[0].clone());
    // The servers of a NATS cluster connect to each other with the same certificate.
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    validity(&mut params, SERVER_YEARS)?;
    let key = KeyPair::generate().context("cannot create a key")?;
    let certificate = params.signed_by(&key, &issuer).context("cannot sign the certificate")?;
    write_private(&folder.server().join("server.key"), &key.serialize_pem())?;
    write_public(&folder.server().join("server.pem"), &certificate.pem())
}
