//! A test Hub on loopback. It implements listings, redirects to a storage server, ranges and ETags, records
//! requests, and misbehaves on demand. It uses plain sockets, so that a connection can be cut after any
//! byte.

pub(crate) mod tls;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hunch_library::http::ProxyChoice;
use hunch_library::hub::{HubConfig, Token, TokenSources};
use sha2::{Digest, Sha256};

/// Bytes written at a time.
const PIECE: usize = 64 << 10;

/// Content of a file: a head, then pseudorandom bytes.
#[derive(Clone)]
pub(crate) struct Content {
    head: Arc<Vec<u8>>,
    size: u64,
    seed: u64,
    pub(crate) sha256: String,
}

impl Content {
    pub(crate) fn new(head: Vec<u8>) -> Self {
        let size = head.len() as u64;
        Self::padded(head, size, 0)
    }

    /// `head`, then pseudorandom bytes up to `size`.
    pub(crate) fn padded(head: Vec<u8>, size: u64, seed: u64) -> Self {
        let mut content = Self { head: Arc::new(head), size, seed, sha256: String::new() };
        let mut hash = Sha256::new();
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while at < size {
            let count = PIECE.min((size - at) as usize);
            content.read(at, &mut piece[..count]);
            hash.update(&piece[..count]);
            at += count as u64;
        }
        content.sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        content
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, at: u64, out: &mut [u8]) {
        let head = self.head.len() as u64;
        let copied = head.saturating_sub(at).min(out.len() as u64) as usize;
        out[..copied].copy_from_slice(&self.head[at.min(head) as usize..][..copied]);
        let mut at = at + copied as u64;
        let mut rest = &mut out[copied..];
        while !rest.is_empty() {
            // SplitMix64 of the word's position: any position can be computed on its own.
            let mut word = (at / 8).wrapping_add(self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let bytes = (word ^ (word >> 31)).to_le_bytes();
            let bytes = &bytes[(at % 8) as usize..];
            let count = bytes.len().min(rest.len());
            rest[..count].copy_from_slice(&bytes[..count]);
            at += count as u64;
            rest = &mut rest[count..];
        }
    }
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Set for requests to the storage server, unset for the Hub.
    pub(crate) is_storage: bool,
    pub(crate) path: String,
    /// Parameters of the address, decoded.
    pub(crate) query: Vec<(String, String)>,
    /// Host name and port of the request.
    pub(crate) host: String,
    /// First requested byte, if a range was requested.
    pub(crate) from: Option<u64>,
    pub(crate) authorization: Option<String>,
}

impl Request {
    /// Checks whether the request is for a file's bytes.
    pub(crate) fn is_file(&self) -> bool {
        self.is_storage
    }
}

/// The response to a request. The default is correct behaviour.
#[derive(Clone, Default)]
pub(crate) struct Behaviour {
    /// Respond with this status and no body.
    pub(crate) status: Option<u16>,
    pub(crate) headers: Vec<(&'static str, String)>,
    /// Close the connection after this many bytes of the body.
    pub(crate) cut: Option<u64>,
    /// Stop sending after this many bytes of the body.
    pub(crate) stall: Option<u64>,
    /// Ignore the range and send the whole file.
    pub(crate) whole: bool,
    /// Offset added to the requested position.
    pub(crate) shift: u64,
    /// Bytes added to the announced length.
    pub(crate) longer: u64,
    /// Corrupt the bytes.
    pub(crate) corrupt: bool,
    /// ETag in place of the real one.
    pub(crate) etag: Option<String>,
    /// Bytes sent at a time, with a pause after each.
    pub(crate) trickle: Option<usize>,
}

impl Behaviour {
    pub(crate) fn status(status: u16) -> Self {
        Self { status: Some(status), ..Self::default() }
    }

    pub(crate) fn cut(bytes: u64) -> Self {
        Self { cut: Some(bytes), ..Self::default() }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// Answers a search with a body and the header `Link`.
type SearchFn = Box<dyn FnMut(&Request) -> (String, Option<String>) + Send>;

type BehaviourFn = Box<dyn FnMut(&Request) -> Behaviour + Send>;

struct Shared {
    is_storage: SocketAddr,
    /// Origin that file requests are redirected to.
    storage_origin: Mutex<String>,
    /// Files by repository and path.
    files: Mutex<HashMap<String, Vec<(String, Content)>>>,
    /// Model cards by repository.
    cards: Mutex<HashMap<String, String>>,
    search: Mutex<SearchFn>,
    requests: Mutex<Vec<Request>>,
    behaviour: Mutex<BehaviourFn>,
    sending: AtomicUsize,
    max_parallel_sends: AtomicUsize,
}

/// The Hub and its storage server. Clones share one state.
#[derive(Clone)]
pub(crate) struct TestHub {
    home: SocketAddr,
    shared: Arc<Shared>,
}

impl TestHub {
    pub(crate) fn start() -> Self {
        let home = TcpListener::bind("127.0.0.1:0").unwrap();
        let is_storage = TcpListener::bind("127.0.0.1:0").unwrap();
        let shared = Arc::new(Shared {
            is_storage: is_storage.local_addr().unwrap(),
            storage_origin: Mutex::new(format!("http://{}", is_storage.local_addr().unwrap())),
            files: Mutex::default(),
            cards: Mutex::default(),
            search: Mutex::new(Box::new(|_| ("[]".into(), None))),
            requests: Mutex::default(),
            behaviour: Mutex::new(Box::new(|_| Behaviour::default())),
            sending: AtomicUsize::new(0),
            max_parallel_sends: AtomicUsize::new(0),
        });
        let address = home.local_addr().unwrap();
        for (listener, is_away) in [(home, false), (is_storage, true)] {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let shared = Arc::clone(&shared);
                    // Clients may disconnect at any time.
                    std::thread::spawn(move || drop(shared.serve(stream, is_away)));
                }
            });
        }
        Self { home: address, shared }
    }

    pub(crate) fn add(&self, repository: &str, path: &str, content: Content) {
        let mut files = self.shared.files.lock().unwrap();
        let files = files.entry(repository.into()).or_default();
        files.retain(|(known, _)| known != path);
        files.push((path.into(), content));
    }

    /// Sets the model card of a repository.
    pub(crate) fn set_card(&self, repository: &str, text: &str) {
        self.shared.cards.lock().unwrap().insert(repository.into(), text.into());
    }

    /// Sets the answers to searches from now on.
    pub(crate) fn set_search(
        &self,
        search: impl FnMut(&Request) -> (String, Option<String>) + Send + 'static,
    ) {
        *self.shared.search.lock().unwrap() = Box::new(search);
    }

    /// Redirects file requests to this origin from now on.
    pub(crate) fn redirect_files_to(&self, origin: &str) {
        *self.shared.storage_origin.lock().unwrap() = origin.to_owned();
    }

    /// Sets the behaviour from now on.
    pub(crate) fn set_behaviour(&self, behaviour: impl FnMut(&Request) -> Behaviour + Send + 'static) {
        *self.shared.behaviour.lock().unwrap() = Box::new(behaviour);
    }

    /// Returns the requests so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Returns the first requested byte of each file request.
    pub(crate) fn starts(&self) -> Vec<u64> {
        self.requests()
            .iter()
            .filter(|request| request.is_file())
            .map(|request| request.from.unwrap_or(0))
            .collect()
    }

    /// Returns the highest number of simultaneous file transfers.
    pub(crate) fn max_parallel_sends(&self) -> usize {
        self.shared.max_parallel_sends.load(Ordering::SeqCst)
    }

    pub(crate) fn config(&self) -> HubConfig {
        HubConfig {
            endpoint: format!("http://{}", self.home),
            tokens: TokenSources::default(),
            proxy: ProxyChoice::None,
        }
    }

    pub(crate) fn config_with_token(&self, token: &str) -> HubConfig {
        let environment = Some(Token::new(token).unwrap());
        HubConfig { tokens: TokenSources { environment, ..TokenSources::default() }, ..self.config() }
    }
}

fn read_request(stream: &TcpStream) -> Option<(String, HashMap<String, String>)> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let target = first.split(' ').nth(1)?.to_owned();
    let mut headers = HashMap::new();
    for line in lines {
        match line.ok()?.split_once(':') {
            Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.trim().to_owned()),
            None => return Some((target, headers)),
        };
    }
    None
}

fn respond(mut stream: &TcpStream, status: u16, headers: &[(&str, String)]) -> std::io::Result<()> {
    let mut text = format!("HTTP/1.1 {status} So\r\nConnection: close\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    stream.write_all((text + "\r\n").as_bytes())
}

/// Sends a text, slowly or in part if the behaviour says so.
fn text(
    mut stream: &TcpStream,
    behaviour: &Behaviour,
    body: &str,
    link: Option<String>,
) -> std::io::Result<()> {
    let mut headers = vec![("Content-Length", body.len().to_string())];
    headers.extend(link.map(|link| ("Link", link)));
    respond(stream, 200, &headers)?;
    let body = &body.as_bytes()[..behaviour.cut.map_or(body.len(), |cut| body.len().min(cut as usize))];
    for piece in body.chunks(behaviour.trickle.unwrap_or(PIECE)) {
        stream.write_all(piece)?;
        if behaviour.trickle.is_some() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    stream.shutdown(Shutdown::Write)
}

fn parameters(target: &str) -> Vec<(String, String)> {
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (decoded(name), decoded(&value.replace('+', " ")))).collect()
}

fn decoded(path: &str) -> String {
    let bytes = path.as_bytes();
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        if bytes[at] == b'%' {
            out.push(u8::from_str_radix(&path[at + 1..at + 3], 16).unwrap());
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(out).unwrap()
}

impl Shared {
    fn serve(&self, stream: TcpStream, is_storage: bool) -> std::io::Result<()> {
        let Some((target, headers)) = read_request(&stream) else { return Ok(()) };
        let range = headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        let request = Request {
            is_storage,
            path: decoded(target.split('?').next().unwrap()),
            query: parameters(&target),
            host: headers.get("host").cloned().unwrap_or_default(),
            from: range.map(|from| from.parse().unwrap()),
            authorization: headers.get("authorization").cloned(),
        };
        self.requests.lock().unwrap().push(request.clone());
        let behaviour = (self.behaviour.lock().unwrap())(&request);
        if let Some(status) = behaviour.status {
            let mut headers = behaviour.headers;
            headers.push(("Content-Length", "0".into()));
            return respond(&stream, status, &headers);
        }
        if request.path == "/api/models" {
            let (body, link) = (self.search.lock().unwrap())(&request);
            return text(&stream, &behaviour, &body, link);
        }
        if let Some(repository) = request.path.strip_suffix("/raw/main/README.md") {
            let card = self.cards.lock().unwrap().get(repository.trim_start_matches('/')).cloned();
            return match card {
                Some(card) => text(&stream, &behaviour, &card, None),
                None => respond(
                    &stream,
                    404,
                    &[("X-Error-Code", "EntryNotFound".into()), ("Content-Length", "0".into())],
                ),
            };
        }
        if let Some(repository) = request.path.strip_prefix("/api/models/") {
            return self.list(&stream, repository);
        }
        let Some((repository, path)) =
            request.path.split_once("/resolve/abc123/").or_else(|| request.path.split_once("/blob/"))
        else {
            return respond(&stream, 404, &[("X-Error-Code", "EntryNotFound".into())]);
        };
        let (repository, path) = (repository.trim_start_matches('/'), path.to_owned());
        let files = self.files.lock().unwrap();
        let content = files.get(repository).and_then(|files| files.iter().find(|(known, _)| *known == path));
        let Some((_, content)) = content.cloned() else {
            return respond(&stream, 404, &[("X-Error-Code", "EntryNotFound".into())]);
        };
        drop(files);
        if is_storage {
            self.send(&stream, &request, &behaviour, &content)
        } else {
            self.redirect(&stream, &request, &behaviour, &content)
        }
    }

    fn list(&self, mut stream: &TcpStream, repository: &str) -> std::io::Result<()> {
        let files = self.files.lock().unwrap();
        let Some(files) = files.get(repository) else {
            return respond(
                stream,
                401,
                &[("X-Error-Code", "RepoNotFound".into()), ("Content-Length", "0".into())],
            );
        };
        let siblings: Vec<serde_json::Value> = files
            .iter()
            .map(|(path, content)| {
                let (size, sha256) = (content.size, &content.sha256);
                // The Hub knows no checksum of small files.
                if path.ends_with("config.json") {
                    return serde_json::json!({"rfilename": path, "size": size});
                }
                serde_json::json!({"rfilename": path, "size": size, "lfs": {"sha256": sha256, "size": size, "pointerSize": 135}})
            })
            .collect();
        let body = serde_json::json!({
            "id": repository, "sha": "abc123", "gated": false, "cardData": {"license": "apache-2.0"}, "siblings": siblings,
        });
        let body = body.to_string();
        respond(
            stream,
            200,
            &[("Content-Type", "application/json".into()), ("Content-Length", body.len().to_string())],
        )?;
        stream.write_all(body.as_bytes())
    }

    fn redirect(
        &self,
        stream: &TcpStream,
        request: &Request,
        behaviour: &Behaviour,
        content: &Content,
    ) -> std::io::Result<()> {
        let path: String = request.path.replacen("/resolve/abc123/", "/blob/", 1);
        let path: String = path
            .bytes()
            .map(|b| if b.is_ascii_graphic() { char::from(b).to_string() } else { format!("%{b:02X}") })
            .collect();
        respond(
            stream,
            302,
            &[
                ("Location", format!("{}{path}?Signature=hidden", self.storage_origin.lock().unwrap())),
                ("X-Linked-Etag", format!("\"{}\"", behaviour.etag.as_ref().unwrap_or(&content.sha256))),
                ("X-Linked-Size", content.size.to_string()),
                ("X-Repo-Commit", "abc123".into()),
                ("Accept-Ranges", "bytes".into()),
                ("Content-Length", "0".into()),
            ],
        )
    }

    fn send(
        &self,
        stream: &TcpStream,
        request: &Request,
        behaviour: &Behaviour,
        content: &Content,
    ) -> std::io::Result<()> {
        let size = content.size + behaviour.longer;
        let from = request.from.filter(|_| !behaviour.whole).map(|from| from + behaviour.shift);
        let mut headers = vec![("ETag", "\"of-the-storage\"".into())];
        let status = match from {
            Some(from) if from >= size => {
                headers.push(("Content-Range", format!("bytes */{size}")));
                headers.push(("Content-Length", "0".into()));
                return respond(stream, 416, &headers);
            }
            Some(from) => {
                headers.push(("Content-Range", format!("bytes {from}-{}/{size}", size - 1)));
                206
            }
            None => 200,
        };
        let from = from.unwrap_or(0);
        headers.push(("Content-Length", (size - from).to_string()));
        respond(stream, status, &headers)?;
        let now = self.sending.fetch_add(1, Ordering::SeqCst) + 1;
        self.max_parallel_sends.fetch_max(now, Ordering::SeqCst);
        self.body(stream, behaviour, content, from)
    }

    fn body(
        &self,
        mut stream: &TcpStream,
        behaviour: &Behaviour,
        content: &Content,
        from: u64,
    ) -> std::io::Result<()> {
        let end = content.size + behaviour.longer;
        let stop = [behaviour.cut, behaviour.stall]
            .into_iter()
            .flatten()
            .min()
            .map_or(end, |bytes| end.min(from + bytes));
        let mut piece = vec![0; behaviour.trickle.unwrap_or(PIECE)];
        let mut at = from;
        while at < stop {
            let count = piece.len().min((stop - at) as usize);
            if at + count as u64 == stop {
                // Counted down before the client can have received everything.
                self.sending.fetch_sub(1, Ordering::SeqCst);
            }
            content.read(at, &mut piece[..count]);
            if behaviour.corrupt {
                piece[count - 1] ^= 1;
            }
            stream.write_all(&piece[..count])?;
            at += count as u64;
            if behaviour.trickle.is_some() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        if behaviour.stall.is_some() {
            // Wait until the client disconnects.
            let mut byte = [0];
            let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
            let _ = std::io::Read::read(&mut stream, &mut byte);
        }
        stream.shutdown(Shutdown::Write)
    }
}

/// Starts a proxy that tunnels to the given hosts. Returns its address and the log of CONNECT targets and
/// headers.
pub(crate) fn tunnels(hosts: &[(&str, SocketAddr)]) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let hosts: HashMap<String, SocketAddr> =
        hosts.iter().map(|(host, address)| (format!("{host}:443"), *address)).collect();
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let shared_log = Arc::clone(&log);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let Some((target, headers)) = read_request(&stream) else { continue };
            shared_log.lock().unwrap().push(format!("{target} {headers:?}"));
            match hosts.get(&target).and_then(|address| TcpStream::connect(address).ok()) {
                Some(server) => tunnel(stream, server),
                None => drop(respond(&stream, 502, &[])),
            }
        }
    });
    (address, log)
}

/// Confirms the tunnel and copies in both directions until either side closes.
fn tunnel(client: TcpStream, server: TcpStream) {
    if (&client).write_all(b"HTTP/1.1 200 So\r\n\r\n").is_err() {
        return;
    }
    for (mut from, mut to) in [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)] {
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
}

/// Starts a proxy that forwards all requests to the Hub. Returns its address and a request counter.
pub(crate) fn proxy(hub: &TestHub) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (count, home, is_storage) = (Arc::new(AtomicUsize::new(0)), hub.home, hub.shared.is_storage);
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = forward(&stream, home, is_storage);
        }
    });
    (address, count)
}

fn forward(mut stream: &TcpStream, home: SocketAddr, is_storage: SocketAddr) -> std::io::Result<()> {
    let Some((target, headers)) = read_request(stream) else { return Ok(()) };
    // Proxy requests contain the whole address.
    let rest = target.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    let mut server = TcpStream::connect(if host == is_storage.to_string() { is_storage } else { home })?;
    let mut request = format!("GET /{path} HTTP/1.1\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    server.write_all((request + "\r\n").as_bytes())?;
    std::io::copy(&mut server, &mut stream)?;
    stream.shutdown(Shutdown::Write)
}
