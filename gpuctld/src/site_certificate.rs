//! The site's own certificate (`[https]`) for clients that ask for one of its names; all others get the cluster's authority's.
//!
//! Owns reading it, at the start and at each reload: certificates of today live for weeks. Which name was asked for comes from the client.

use crate::config::HttpsSettings;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, RwLock};

/// Permission bits of users that are neither the file's owner nor in its group.
const OTHERS: u32 = 0o007;

/// The certificate in force, shared with the listener.
#[derive(Clone, Debug, Default)]
pub struct SiteCertificate(Arc<RwLock<Option<NamedCertificate>>>);

#[derive(Debug)]
struct NamedCertificate {
    names: Vec<String>,
    certified: Arc<CertifiedKey>,
}

impl SiteCertificate {
    /// Reads the files and puts them in force; without settings there is none.
    ///
    /// # Errors
    /// Which file cannot be used, and why. What was in force stays.
    pub fn put_in_force(&self, settings: Option<&HttpsSettings>) -> Result<(), String> {
        let read = settings.map(read).transpose()?;
        *self.0.write().expect("no panic while held") = read;
        Ok(())
    }

    fn of_name(&self, asked: &str) -> Option<Arc<CertifiedKey>> {
        let held = self.0.read().expect("no panic while held");
        let certificate = held.as_ref()?;
        let is_named = |name: &String| name.eq_ignore_ascii_case(asked);
        let found = certificate.names.iter().any(is_named);
        found.then(|| certificate.certified.clone())
    }
}

fn read(settings: &HttpsSettings) -> Result<NamedCertificate, String> {
    let wrong = |path: &Path, why: &dyn std::fmt::Display| {
        format!("[https] {} cannot be used: {why}", path.display())
    };
    let (cert, key) = (&settings.cert, &settings.key);
    let mode = std::fs::metadata(key)
        .map_err(|error| wrong(key, &error))?
        .mode();
    if mode & OTHERS != 0 {
        let why = format!(
            "all users may read it (mode {:o}). Try chmod 0600",
            mode & 0o777
        );
        return Err(wrong(key, &why));
    }
    let chain: Result<Vec<CertificateDer>, _> = CertificateDer::pem_file_iter(cert)
        .map_err(|error| wrong(cert, &error))?
        .collect();
    let chain = chain.map_err(|error| wrong(cert, &error))?;
    if chain.is_empty() {
        return Err(wrong(cert, &"no certificate is in it"));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, &error))?;
    let provider = rustls::crypto::ring::default_provider();
    let certified = CertifiedKey::from_der(chain, secret, &provider)
        .map_err(|error| wrong(cert, &format!("with the key {}: {error}", key.display())))?;
    Ok(NamedCertificate {
        names: settings.names.clone(),
        certified: Arc::new(certified),
    })
}

/// Chooses by the name that a client asks for.
#[derive(Debug)]
pub struct ByName {
    pub site: SiteCertificate,
    /// Of the cluster's authority.
    pub own: Arc<CertifiedKey>,
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let of_site = hello.server_name().and_then(|name| self.site.of_name(name));
        Some(of_site.unwrap_or_else(|| self.own.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_certificate_is_served_for_its_names_and_read_again_without_harm() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
        let settings = HttpsSettings {
            names: vec!["gpu.example.org".into()],
            cert: cert.clone(),
            key: key.clone(),
        };
        let site = SiteCertificate::default();
        assert!(
            site.put_in_force(Some(&settings))
                .unwrap_err()
                .contains("key.pem")
        );
        let pair = rcgen::generate_simple_self_signed(settings.names.clone()).unwrap();
        std::fs::write(&cert, pair.cert.pem()).unwrap();
        std::fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap();
        let open = site.put_in_force(Some(&settings)).unwrap_err();
        assert!(open.contains("chmod 0600"), "{open}");
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        site.put_in_force(Some(&settings)).unwrap();
        assert!(site.of_name("GPU.example.org").is_some());
        assert!(site.of_name("other.example.org").is_none());
        // Another's key: the pair that was in force stays.
        let other = rcgen::generate_simple_self_signed(settings.names.clone()).unwrap();
        std::fs::write(&key, other.signing_key.serialize_pem()).unwrap();
        assert!(site.put_in_force(Some(&settings)).is_err());
        assert!(site.of_name("gpu.example.org").is_some());
        site.put_in_force(None).unwrap();
        assert!(site.of_name("gpu.example.org").is_none());
    }
}
