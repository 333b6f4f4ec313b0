//! TLS fronts for the test Hub's two servers, with a self-signed certificate.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, Stream};

use super::TestHub;

/// First byte of a TLS connection.
pub(crate) const HANDSHAKE: u8 = 22;

/// TLS fronts of a test Hub.
pub(crate) struct Fronts {
    /// Front of the Hub.
    pub(crate) home: SocketAddr,
    /// Front of the storage server.
    pub(crate) storage: SocketAddr,
    /// Certificate to trust, in PEM.
    pub(crate) certificate: String,
    first_bytes: Arc<Mutex<Vec<u8>>>,
}

impl Fronts {
    /// Starts fronts for a Hub, with a certificate for these host names.
    pub(crate) fn of(hub: &TestHub, names: &[&str]) -> Self {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())
            .unwrap();
        let (config, first_bytes) = (Arc::new(config), Arc::default());
        Self {
            home: front(hub.home, &config, &first_bytes),
            storage: front(hub.shared.is_storage, &config, &first_bytes),
            certificate: made.cert.pem(),
            first_bytes,
        }
    }

    /// Returns the first byte of every connection so far.
    pub(crate) fn first_bytes(&self) -> Vec<u8> {
        self.first_bytes.lock().unwrap().clone()
    }
}

fn front(to: SocketAddr, config: &Arc<ServerConfig>, first_bytes: &Arc<Mutex<Vec<u8>>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (config, first_bytes) = (Arc::clone(config), Arc::clone(first_bytes));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut first = [0];
            if stream.peek(&mut first).is_ok_and(|count| count == 1) {
                first_bytes.lock().unwrap().push(first[0]);
                let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
                // Clients that do not trust the certificate disconnect.
                std::thread::spawn(move || drop(serve(connection, stream, to)));
            }
        }
    });
    address
}

/// Forwards one request and its response.
fn serve(mut connection: ServerConnection, mut socket: TcpStream, to: SocketAddr) -> std::io::Result<()> {
    let mut stream = Stream::new(&mut connection, &mut socket);
    let (mut request, mut piece) = (Vec::new(), [0; 1024]);
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut piece)? {
            0 => return Ok(()),
            count => request.extend_from_slice(&piece[..count]),
        }
    }
    let mut plain = TcpStream::connect(to)?;
    plain.write_all(&request)?;
    std::io::copy(&mut plain, &mut stream)?;
    stream.conn.send_close_notify();
    stream.flush()
}
