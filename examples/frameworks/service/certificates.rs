//! The certificates of the two hosts, and of the authority that signs them.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use tonic::transport::{self, Certificate};

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

    pub(crate) fn authority(&self) -> Certificate {
        Certificate::from_pem(&self.authority)
    }

    pub(crate) fn tonic(&self) -> transport::Identity {
        transport::Identity::from_pem(&self.certificate, &self.key)
    }
}
