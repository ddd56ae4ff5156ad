//! Certificates, and what is done with them.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion, version};

/// The name that the server's certificate is for.
pub(crate) const NAME: &str = "server.example";

/// Whom to trust.
pub(crate) struct Authority {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

/// The identity of an end.
pub(crate) struct Identity {
    pub(crate) certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    /// The certificate and the key as text.
    pub(crate) pem: [String; 2],
}

impl Clone for Identity {
    fn clone(&self) -> Self {
        let certificate = self.certificate.clone();
        Self { certificate, key: self.key.clone_key(), pem: self.pem.clone() }
    }
}

impl Authority {
    pub(crate) fn new() -> Self {
        Self::named("an authority")
    }

    pub(crate) fn named(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).expect("a certificate");
        Self { certificate, key }
    }

    pub(crate) fn identity(&self, name: &str) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.certificate, &self.key).expect("a certificate");
        Identity {
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            pem: [certificate.pem(), key.serialize_pem()],
        }
    }

    /// Its certificate as text.
    pub(crate) fn pem(&self) -> String {
        self.certificate.pem()
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).expect("an authority");
        Arc::new(roots)
    }

    /// A server that wants to see certificates of this authority, and has one.
    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        let Identity { certificate, key, .. } = self.identity(NAME);
        let verifier = WebPkiClientVerifier::builder(self.roots()).build().expect("a verifier");
        let config = ServerConfig::builder().with_client_cert_verifier(verifier);
        Arc::new(config.with_single_cert(vec![certificate], key).expect("a certificate and its key"))
    }

    /// A client that trusts this authority, and is somebody or nobody.
    pub(crate) fn client(
        &self,
        identity: Option<Identity>,
        version: &'static SupportedProtocolVersion,
    ) -> TlsConnector {
        let verifier = WebPkiServerVerifier::builder(self.roots()).build().expect("a verifier");
        let config = ClientConfig::builder_with_protocol_versions(&[version]).with_webpki_verifier(verifier);
        let config = match identity {
            Some(Identity { certificate, key, .. }) => {
                config.with_client_auth_cert(vec![certificate], key).expect("ours")
            }
            None => config.with_no_client_auth(),
        };
        Arc::new(config).into()
    }

    /// A client as it should be.
    pub(crate) fn good(&self) -> TlsConnector {
        self.client(Some(self.identity("client.example")), &version::TLS13)
    }
}
