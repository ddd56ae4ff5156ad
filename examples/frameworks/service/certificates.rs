//! The certificates of the two hosts, and of the authority that signs them.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The name in the server's certificate. It need not be the address that a client connects to.
pub(crate) const SERVER: &str = "server.example";

/// A host's certificate and key, and the authority that it trusts, as PEM.
pub(crate) struct Identity {
    authority: String,
    certificate: String,
    key: String,
}

impl Identity {
    /// Creates an authority, and the identities of the server and of a client.
    pub(crate) fn create() -> Result<[Self; 2], rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "the authority of this example");
        let authority = params.self_signed(&key)?;
        let sign = |name: &str| {
            let own = KeyPair::generate()?;
            let certificate = CertificateParams::new([name.to_owned()])?.signed_by(&own, &authority, &key)?;
            Ok(Self { authority: authority.pem(), certificate: certificate.pem(), key: own.serialize_pem() })
        };
        Ok([sign(SERVER)?, sign("client.example")?])
    }

    /// Writes `NAME.pem`, `NAME.key` and `authority.pem` to a folder, which is created.
    pub(crate) fn save(&self, folder: &Path, name: &str) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("authority.pem"), &self.authority)?;
        fs::write(folder.join(format!("{name}.pem")), &self.certificate)?;
        // Nobody else may read the key.
        let mut file = OpenOptions::new();
        file.write(true).create(true).truncate(true).mode(0o600);
        file.open(folder.join(format!("{name}.key")))?.write_all(self.key.as_bytes())
    }

    /// Reads what [`save`](Self::save) wrote.
    pub(crate) fn load(folder: &Path, name: &str) -> Result<Self, Box<dyn Error>> {
        let read = |file: &str| {
            let path = folder.join(file);
            fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))
        };
        Ok(Self {
            authority: read("authority.pem")?,
            certificate: read(&format!("{name}.pem"))?,
            key: read(&format!("{name}.key"))?,
        })
    }

    /// Returns the TLS of a server: a client without a certificate of the authority is not served.
    pub(crate) fn server_config(&self) -> Result<Arc<ServerConfig>, Box<dyn Error>> {
        let verifier = WebPkiClientVerifier::builder(self.roots()?).build()?;
        let config = ServerConfig::builder().with_client_cert_verifier(verifier);
        Ok(Arc::new(config.with_single_cert(self.chain()?, self.key()?)?))
    }

    /// Returns the TLS of a client, which shows its certificate or none.
    pub(crate) fn client_config(&self, shown: bool) -> Result<Arc<ClientConfig>, Box<dyn Error>> {
        let config = ClientConfig::builder().with_root_certificates(self.roots()?);
        Ok(Arc::new(if shown {
            config.with_client_auth_cert(self.chain()?, self.key()?)?
        } else {
            config.with_no_client_auth()
        }))
    }

    fn roots(&self) -> Result<Arc<RootCertStore>, Box<dyn Error>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.as_bytes())?)?;
        Ok(Arc::new(roots))
    }

    fn chain(&self) -> Result<Vec<CertificateDer<'static>>, Box<dyn Error>> {
        Ok(vec![CertificateDer::from_pem_slice(self.certificate.as_bytes())?])
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, Box<dyn Error>> {
        Ok(PrivateKeyDer::from_pem_slice(self.key.as_bytes())?)
    }
}
