//! The cluster's certificate authority: made at the first start, it signs this controller's certificate and the
//! nodes'. Owns `state_dir/pki`; never decides which node may join (that is `Command::Join`, by the hash of a token).
//!
//! A node's certificate carries its name (CN) and, as SAN URIs, its id, role and whether it is marked admin; nothing a
//! node says changes them.

use crate::core_thread::CoreHandle;
use crate::hex::hex;
use crate::private_file::write_private;
use crate::seal::OrderSeal;
use crate::site_certificate::{ByName, SiteCertificate};
use crate::state_dir::PKI_DIR;
use gcore::ctl::{Actor, Command, Refusal, RefusalCode, Reply, State};
use gmodel::NodeId;
use gmodel::node::Role;
use gwire::api::{JoinReply, JoinRequest, SCHEMA};
use gwire::node_protocol::{ALPN_HTTP, ALPN_JOIN, ALPN_NODE, SERVER_NAME};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    PublicKeyData, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const CA_DAYS: u64 = 20 * 365;
/// Made anew at each start, so it only has to outlive one process.
const SERVER_DAYS: u64 = 10 * 365;
/// Clocks of nodes may be behind by this much.
const SKEW: Duration = Duration::from_secs(24 * 3600);
const SECRET_BYTES: usize = 32;

/// The authority with its key. Share it behind an `Arc`.
pub struct Pki {
    issuer: Issuer<'static, KeyPair>,
    ca_der: CertificateDer<'static>,
    ca_pem: String,
    ca_sha256: String,
    cluster: String,
    seal: OrderSeal,
    /// For the site's names, where it has a certificate of its own.
    pub site: SiteCertificate,
}

/// The identity in a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIdentity {
    pub node: NodeId,
    pub name: String,
    pub role: Role,
    /// A login node from which operators may administer.
    pub admin: bool,
    /// Raised by each join and by `gadm node revoke`: certificates of older ones open nothing.
    pub epoch: u32,
}

impl Pki {
    /// Opens `state_dir/pki`, making the authority at the first start.
    ///
    /// # Errors
    /// A file that cannot be read, written or understood.
    pub fn open(state_dir: &Path, cluster: &str) -> anyhow::Result<Self> {
        let dir = state_dir.join(PKI_DIR);
        let (cert_path, key_path) = (dir.join("ca.pem"), dir.join("ca.key"));
        if !cert_path.exists() {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&dir)?;
            let (cert_pem, key_pem) = make_authority(cluster)?;
            write_secret(&key_path, &key_pem)?; // the key first: a certificate without key is no authority
            write_secret(&cert_path, &cert_pem)?;
        }
        let read = |path: &Path| {
            std::fs::read_to_string(path)
                .map_err(|e| anyhow::anyhow!("cannot read {}: {e}", path.display()))
        };
        let (ca_pem, key_pem) = (read(&cert_path)?, read(&key_path)?);
        let broken = |e: rcgen::Error| {
            anyhow::anyhow!(
                "{} does not hold the cluster's authority ({e}). Restore it from a copy; without it every node has to join again",
                dir.display()
            )
        };
        let key = KeyPair::from_pem(&key_pem).map_err(broken)?;
        let ca_der = pem_to_der(&ca_pem)
            .ok_or_else(|| anyhow::anyhow!("{} is not a PEM certificate", cert_path.display()))?;
        let seal = OrderSeal::of_authority(&key.serialize_der());
        let issuer = Issuer::from_ca_cert_der(&ca_der, key).map_err(broken)?;
        let ca_sha256 = hex(&Sha256::digest(&ca_der));
        Ok(Self {
            issuer,
            ca_der,
            ca_pem,
            ca_sha256,
            cluster: cluster.to_owned(),
            seal,
            site: SiteCertificate::default(),
        })
    }

    /// What launch orders of this cluster are sealed with.
    pub fn order_seal(&self) -> OrderSeal {
        self.seal.clone()
    }

    /// SHA-256 of the authority's certificate, hex: the part of a token that pins it.
    pub fn ca_sha256(&self) -> &str {
        &self.ca_sha256
    }

    /// A secret for a token, hex, from the kernel.
    ///
    /// # Errors
    /// `/dev/urandom` cannot be read.
    pub fn new_secret() -> std::io::Result<String> {
        let mut bytes = [0u8; SECRET_BYTES];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(hex(&bytes))
    }

    /// What the core keeps of a secret.
    pub fn token_hash(secret: &str) -> String {
        hex(&Sha256::digest(secret.as_bytes()))
    }

    /// Lets a machine with a token in: spends the token, then signs.
    ///
    /// # Errors
    /// A bad request, or the core's refusal of the token or the name.
    pub async fn join(
        &self,
        core: &CoreHandle,
        request: JoinRequest,
        cert_days: u32,
    ) -> Result<JoinReply, Refusal> {
        let key = public_key(&request.csr_pem)?; // before the token is spent
        let command = Command::Join {
            token_hash: Self::token_hash(&request.secret),
            name: request.name.clone(),
        };
        match core.command(Actor::default(), command).await? {
            Reply::Joined {
                node,
                role,
                name,
                admin,
                epoch,
            } => self.reply(
                &key,
                NodeIdentity {
                    node,
                    name,
                    role,
                    admin,
                    epoch,
                },
                cert_days,
            ),
            other => Err(Refusal::new(
                RefusalCode::Unknown,
                format!("the core answered a join with {other:?}"),
            )),
        }
    }

    /// A new certificate for a node that holds a valid one: the same name, id, role, mark and epoch. It is on record before it is given.
    ///
    /// # Errors
    /// A bad request, a node that is not of the cluster any more, or one that renewed just now.
    pub async fn renew(
        &self,
        core: &CoreHandle,
        holder: &NodeIdentity,
        from: String,
        request: JoinRequest,
        cert_days: u32,
    ) -> Result<JoinReply, Refusal> {
        let key = public_key(&request.csr_pem)?;
        let view = core.view().await;
        let Some(node) = view.nodes.get(holder.node) else {
            return Err(Refusal::denied("this node was removed from the cluster"));
        };
        // An older certificate without the mark gets none by being renewed.
        let identity = NodeIdentity {
            name: node.name.clone(),
            role: node.role,
            admin: holder.admin && node.certificate.admin,
            ..holder.clone()
        };
        let command = Command::NodeRenew {
            node: holder.node,
            epoch: holder.epoch,
            from,
        };
        core.command(Actor::default(), command).await?;
        self.reply(&key, identity, cert_days)
    }

    fn reply(
        &self,
        key: &impl PublicKeyData,
        identity: NodeIdentity,
        cert_days: u32,
    ) -> Result<JoinReply, Refusal> {
        let cert_pem = self
            .sign_node(key, &identity, cert_days)
            .map_err(|e| Refusal::unavailable(format!("cannot sign a certificate: {e}")))?;
        Ok(JoinReply {
            schema: SCHEMA,
            name: identity.name,
            role: identity.role,
            admin: identity.admin,
            cert_pem,
            ca_pem: self.ca_pem.clone(),
            cluster: self.cluster.clone(),
        })
    }

    fn sign_node(
        &self,
        key: &impl PublicKeyData,
        identity: &NodeIdentity,
        cert_days: u32,
    ) -> Result<String, rcgen::Error> {
        let mut params = valid_for(u64::from(cert_days));
        params
            .distinguished_name
            .push(DnType::CommonName, identity.name.as_str());
        let mut uris = vec![
            format!("gpupool:node:{}", identity.node),
            format!("gpupool:role:{}", identity.role),
        ];
        uris.extend(identity.admin.then(|| "gpupool:admin".to_owned()));
        uris.push(format!("gpupool:epoch:{}", identity.epoch));
        for uri in uris {
            params.subject_alt_names.push(SanType::URI(uri.try_into()?));
        }
        params.key_usages.push(KeyUsagePurpose::DigitalSignature);
        params
            .extended_key_usages
            .push(ExtendedKeyUsagePurpose::ClientAuth);
        Ok(params.signed_by(key, &self.issuer)?.pem())
    }

    /// TLS for the controller's port: 1.3 only, client certificates of this authority or none.
    ///
    /// # Errors
    /// A name in `hosts` that cannot stand in a certificate.
    pub fn server_config(&self, hosts: &[String]) -> anyhow::Result<ServerConfig> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = valid_for(SERVER_DAYS);
        params
            .distinguished_name
            .push(DnType::CommonName, SERVER_NAME);
        params
            .subject_alt_names
            .push(SanType::DnsName(SERVER_NAME.try_into()?));
        for host in hosts {
            params.subject_alt_names.push(match host.parse::<IpAddr>() {
                Ok(ip) => SanType::IpAddress(ip),
                Err(_) => SanType::DnsName(host.as_str().try_into()?),
            });
        }
        params.key_usages.push(KeyUsagePurpose::DigitalSignature);
        params
            .extended_key_usages
            .push(ExtendedKeyUsagePurpose::ServerAuth);
        let cert = params.signed_by(&key, &self.issuer)?;
        let mut roots = RootCertStore::empty();
        roots.add(self.ca_der.clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .allow_unauthenticated()
                .build()?;
        // The authority goes along in the chain: a machine that joins compares it with its token.
        let chain = vec![cert.der().clone(), self.ca_der.clone()];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let by_name = ByName {
            own: Arc::new(CertifiedKey::from_der(chain, key, &provider)?),
            site: self.site.clone(),
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(Arc::new(by_name));
        config.alpn_protocols = [ALPN_NODE, ALPN_HTTP, ALPN_JOIN].map(<[u8]>::to_vec).into();
        Ok(config)
    }
}

impl NodeIdentity {
    /// Reads a certificate that TLS has verified already.
    pub fn read(cert: &CertificateDer<'_>) -> Option<Self> {
        let (_, cert) = x509_parser::parse_x509_certificate(cert).ok()?;
        let name = cert
            .subject()
            .iter_common_name()
            .next()?
            .as_str()
            .ok()?
            .to_owned();
        let names = cert.subject_alternative_name().ok()??;
        let uri = |prefix: &str| {
            names
                .value
                .general_names
                .iter()
                .find_map(|name| match name {
                    x509_parser::extensions::GeneralName::URI(uri) => uri.strip_prefix(prefix),
                    _ => None,
                })
        };
        let node = NodeId(uri("gpupool:node:")?.parse().ok()?);
        let role = match uri("gpupool:role:")? {
            "compute" => Role::Compute,
            "login" => Role::Login,
            _ => return None,
        };
        let admin = uri("gpupool:admin").is_some_and(str::is_empty);
        // Certificates of the release before say none: they are of the first join.
        let epoch = uri("gpupool:epoch:").map_or(Some(0), |epoch| epoch.parse().ok())?;
        Some(Self {
            node,
            name,
            role,
            admin,
            epoch,
        })
    }

    /// Whether the cluster still knows this machine under this name and role.
    ///
    /// # Errors
    /// The sentence for the node's log.
    pub fn check(&self, state: &State) -> Result<(), String> {
        let Self {
            node,
            name,
            role,
            admin,
            epoch,
        } = self;
        match state.nodes.get(*node) {
            Some(known) if known.name == *name && *epoch < known.certificate.epoch => Err(format!(
                "the certificate of node {name:?} is of its join number {epoch}, and since then the machine joined again or an operator revoked it (gadm node revoke): number {} is in force. If this is the machine, join again with a new token (gadm token node --name {name})",
                known.certificate.epoch
            )),
            Some(known) if *admin && !known.certificate.admin => Err(format!(
                "the certificate of {role} node {name:?} is marked admin, and a newer token took that from it. Join again with a new token (gadm token node)"
            )),
            Some(known) if known.name == *name && known.role == *role => Ok(()),
            Some(known) => Err(format!(
                "the certificate is for {role} node {name:?} (number {node}), but that number is {} node {:?}. Join again with a new token (gadm token node)",
                known.role, known.name
            )),
            None => Err(format!(
                "node {name:?} (number {node}) is not of this cluster: it was removed, or joined after the backup that is in force. Join again with a new token (gadm token node)"
            )),
        }
    }
}

fn make_authority(cluster: &str) -> Result<(String, String), rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = valid_for(CA_DAYS);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params
        .distinguished_name
        .push(DnType::CommonName, format!("gpupool cluster {cluster}"));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// Parameters without any name, valid from a day ago.
fn valid_for(days: u64) -> CertificateParams {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.not_before = epoch + now.saturating_sub(SKEW);
    params.not_after = epoch + now + Duration::from_secs(days * 24 * 3600);
    params
}

/// The key a machine asks a certificate for. Everything else in the request is ignored.
fn public_key(csr_pem: &str) -> Result<impl PublicKeyData + use<>, Refusal> {
    match CertificateSigningRequestParams::from_pem(csr_pem) {
        Ok(request) => Ok(request.public_key),
        Err(e) => Err(Refusal::invalid(format!(
            "csr_pem is not a certificate signing request: {e}"
        ))),
    }
}

fn pem_to_der(pem: &str) -> Option<CertificateDer<'static>> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    (pem.label == "CERTIFICATE").then(|| CertificateDer::from(pem.contents))
}

/// Whole or not at all, and only for us.
fn write_secret(path: &Path, text: &str) -> std::io::Result<()> {
    write_private(path, text.as_bytes())?;
    std::fs::File::open(path.parent().expect("the file is in the pki folder"))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority() -> (tempfile::TempDir, Pki) {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(dir.path(), "test").unwrap();
        (dir, pki)
    }

    fn request(params: CertificateParams) -> String {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        params.serialize_request(&key).unwrap().pem().unwrap()
    }

    #[test]
    fn a_certificate_says_what_the_token_said_whatever_the_request_claims() {
        let (_dir, pki) = authority();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "login1");
        params
            .subject_alt_names
            .push(SanType::URI("gpupool:role:login".try_into().unwrap()));
        params
            .subject_alt_names
            .push(SanType::URI("gpupool:admin".try_into().unwrap()));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = public_key(&request(params)).unwrap();
        let identity = NodeIdentity {
            node: NodeId(7),
            name: "n7".into(),
            role: Role::Compute,
            admin: false,
            epoch: 2,
        };
        let pem = pki.sign_node(&key, &identity, 90).unwrap();
        let der = pem_to_der(&pem).unwrap();
        assert_eq!(NodeIdentity::read(&der), Some(identity));
        let (_, cert) = x509_parser::parse_x509_certificate(&der).unwrap();
        assert!(!cert.is_ca(), "a node must not sign");
    }

    #[test]
    fn a_mark_is_in_the_certificate_and_counts_while_the_cluster_says_the_same() {
        let (_dir, pki) = authority();
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let marked = NodeIdentity {
            node: NodeId(3),
            name: "l3".into(),
            role: Role::Login,
            admin: true,
            epoch: 0,
        };
        let read = |identity: &NodeIdentity| {
            NodeIdentity::read(&pem_to_der(&pki.sign_node(&key, identity, 90).unwrap()).unwrap())
                .unwrap()
        };
        assert_eq!(read(&marked), marked);
        let plain = NodeIdentity {
            admin: false,
            ..marked.clone()
        };
        assert_eq!(read(&plain), plain);
        let mut state = State::default();
        let node = gcore::ctl::Node {
            id: NodeId(3),
            name: "l3".into(),
            role: Role::Login,
            ..Default::default()
        };
        state.nodes.insert(NodeId(3), node.clone());
        assert_eq!(plain.check(&state), Ok(()));
        assert!(
            marked
                .check(&state)
                .unwrap_err()
                .contains("newer token took that")
        );
        state.nodes.insert(
            NodeId(3),
            gcore::ctl::Node {
                certificate: gcore::ctl::state::NodeCertificate {
                    admin: true,
                    ..node.certificate
                },
                ..node
            },
        );
        assert_eq!(
            (marked.check(&state), plain.check(&state)),
            (Ok(()), Ok(()))
        );
    }

    #[test]
    fn a_certificate_of_an_older_join_opens_nothing_and_one_without_a_number_is_of_the_first() {
        let (_dir, pki) = authority();
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let of = |epoch: u32| NodeIdentity {
            node: NodeId(3),
            name: "n3".into(),
            role: Role::Compute,
            admin: false,
            epoch,
        };
        let read =
            NodeIdentity::read(&pem_to_der(&pki.sign_node(&key, &of(7), 90).unwrap()).unwrap());
        assert_eq!(read, Some(of(7)));
        let mut state = State::default();
        let node = gcore::ctl::Node {
            id: NodeId(3),
            name: "n3".into(),
            role: Role::Compute,
            certificate: gcore::ctl::state::NodeCertificate {
                epoch: 1,
                ..Default::default()
            },
            ..Default::default()
        };
        state.nodes.insert(NodeId(3), node);
        assert!(
            of(0)
                .check(&state)
                .unwrap_err()
                .contains("gadm token node --name n3")
        );
        // One above: joined after the backup that is in force, and it is signed by us.
        assert_eq!((of(1).check(&state), of(2).check(&state)), (Ok(()), Ok(())));
    }

    #[test]
    fn the_authority_is_made_once_and_kept_from_others() {
        use std::os::unix::fs::PermissionsExt;
        let (dir, pki) = authority();
        let again = Pki::open(dir.path(), "test").unwrap();
        assert_eq!(pki.ca_sha256(), again.ca_sha256());
        let mode = |path: &str| {
            dir.path()
                .join(path)
                .metadata()
                .unwrap()
                .permissions()
                .mode()
                & 0o777
        };
        assert_eq!((mode("pki"), mode("pki/ca.key")), (0o700, 0o600));
        std::fs::write(dir.path().join("pki/ca.key"), "garbage").unwrap();
        let error = Pki::open(dir.path(), "test").err().unwrap().to_string();
        assert!(error.contains("every node has to join again"), "{error}");
    }

    #[test]
    fn garbage_instead_of_a_request_is_refused() {
        for text in [
            "",
            "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
        ] {
            assert_eq!(public_key(text).err().unwrap().code, RefusalCode::Invalid);
        }
    }

    #[test]
    fn secrets_differ_and_only_their_hash_is_kept() {
        let (a, b) = (Pki::new_secret().unwrap(), Pki::new_secret().unwrap());
        assert_ne!(a, b);
        assert_eq!(Pki::token_hash(&a).len(), 64);
        assert_ne!(Pki::token_hash(&a), a);
    }

    /// The server's word on a handshake with a certificate of so many days.
    async fn handshake(pki: &Pki, days: u32) -> std::io::Result<()> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let identity = NodeIdentity {
            node: NodeId(1),
            name: "n1".into(),
            role: Role::Compute,
            admin: false,
            epoch: 2,
        };
        let cert = pem_to_der(&pki.sign_node(&key, &identity, days).unwrap()).unwrap();
        let (_, read) = x509_parser::parse_x509_certificate(&cert).unwrap();
        let last_second = read.validity().not_after.timestamp();
        let now = || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_secs()
                .cast_signed()
        };
        while days == 0 && now() <= last_second {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut roots = RootCertStore::empty();
        roots.add(pki.ca_der.clone()).unwrap();
        let client = rustls::ClientConfig::builder_with_provider(Arc::new(
            rustls::crypto::ring::default_provider(),
        ))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(
            vec![cert.clone()],
            PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        )
        .unwrap();
        let server = Arc::new(pki.server_config(&["localhost".into()]).unwrap());
        let (near, far) = tokio::io::duplex(1 << 16);
        let name = rustls::pki_types::ServerName::try_from(SERVER_NAME).unwrap();
        let dial = tokio_rustls::TlsConnector::from(Arc::new(client)).connect(name, near);
        let (accepted, _) = tokio::join!(tokio_rustls::TlsAcceptor::from(server).accept(far), dial);
        accepted.map(drop)
    }

    #[tokio::test]
    async fn a_certificate_past_its_time_opens_nothing() {
        let (_dir, pki) = authority();
        handshake(&pki, 1).await.unwrap();
        let error = handshake(&pki, 0).await.unwrap_err().to_string();
        assert!(error.contains("xpired"), "{error}");
    }
}
