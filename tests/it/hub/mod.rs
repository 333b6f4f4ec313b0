//! A hub of ours on loopback: it speaks as the real one does (what a repository holds, redirects to
//! another host, ranges, tags), says what it was asked, and misbehaves on demand. Plain sockets, so
//! that a connection can be cut after any byte.

pub(crate) mod tls;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hunch_library::hub::{HubConfig, ProxyChoice, Token, TokenPlaces};
use sha2::{Digest, Sha256};

/// Bytes written at a time.
const PIECE: usize = 64 << 10;

/// What a file holds: some bytes, then chance to its end.
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

    /// `head`, then chance up to `size` bytes.
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
            // SplitMix64 of the word's place: any place can be had without those before it.
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

/// A request, as the hub saw it.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// On the host that files are kept on, not on the hub itself.
    pub(crate) away: bool,
    pub(crate) path: String,
    /// Name and port of the host that was asked for.
    pub(crate) host: String,
    /// Byte that it wants to go on from.
    pub(crate) from: Option<u64>,
    pub(crate) authorization: Option<String>,
}

impl Asked {
    /// Whether it is for the bytes of a file.
    pub(crate) fn is_file(&self) -> bool {
        self.away
    }
}

/// How to answer. The default is what a good hub does.
#[derive(Clone, Default)]
pub(crate) struct Act {
    /// This, and no more.
    pub(crate) status: Option<u16>,
    pub(crate) headers: Vec<(&'static str, String)>,
    /// Bytes of the body after which the connection ends.
    pub(crate) cut: Option<u64>,
    /// Bytes of the body after which nothing comes any more.
    pub(crate) stall: Option<u64>,
    /// The whole file, whatever was asked for.
    pub(crate) whole: bool,
    /// Bytes added to the place that was asked for.
    pub(crate) shift: u64,
    /// Bytes that the file is said to be longer by.
    pub(crate) longer: u64,
    /// Wrong bytes.
    pub(crate) spoilt: bool,
    /// Another tag.
    pub(crate) etag: Option<String>,
    /// Bytes at a time, with a pause after each.
    pub(crate) trickle: Option<usize>,
}

impl Act {
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

type Manners = Box<dyn FnMut(&Asked) -> Act + Send>;

struct Shared {
    away: SocketAddr,
    /// Where people are sent to for files: as an address begins.
    origin_of_files: Mutex<String>,
    /// Files by repository and path.
    files: Mutex<HashMap<String, Vec<(String, Content)>>>,
    asked: Mutex<Vec<Asked>>,
    manners: Mutex<Manners>,
    sending: AtomicUsize,
    most_sending: AtomicUsize,
}

/// The hub, and the other host that it keeps files on. All clones are the same one.
#[derive(Clone)]
pub(crate) struct TestHub {
    home: SocketAddr,
    shared: Arc<Shared>,
}

impl TestHub {
    pub(crate) fn start() -> Self {
        let home = TcpListener::bind("127.0.0.1:0").unwrap();
        let away = TcpListener::bind("127.0.0.1:0").unwrap();
        let shared = Arc::new(Shared {
            away: away.local_addr().unwrap(),
            origin_of_files: Mutex::new(format!("http://{}", away.local_addr().unwrap())),
            files: Mutex::default(),
            asked: Mutex::default(),
            manners: Mutex::new(Box::new(|_| Act::default())),
            sending: AtomicUsize::new(0),
            most_sending: AtomicUsize::new(0),
        });
        let address = home.local_addr().unwrap();
        for (listener, is_away) in [(home, false), (away, true)] {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let shared = Arc::clone(&shared);
                    // A reader that goes away is nothing unusual.
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

    /// From now on it sends people there for files.
    pub(crate) fn send_for_files_to(&self, origin: &str) {
        *self.shared.origin_of_files.lock().unwrap() = origin.to_owned();
    }

    /// From now on it answers as this says.
    pub(crate) fn act(&self, manners: impl FnMut(&Asked) -> Act + Send + 'static) {
        *self.shared.manners.lock().unwrap() = Box::new(manners);
    }

    /// What it was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// Where the requests for bytes began.
    pub(crate) fn starts(&self) -> Vec<u64> {
        self.asked().iter().filter(|asked| asked.is_file()).map(|asked| asked.from.unwrap_or(0)).collect()
    }

    /// The most files that it was sending at the same time.
    pub(crate) fn most_sending(&self) -> usize {
        self.shared.most_sending.load(Ordering::SeqCst)
    }

    pub(crate) fn config(&self) -> HubConfig {
        HubConfig {
            endpoint: format!("http://{}", self.home),
            tokens: TokenPlaces::default(),
            proxy: ProxyChoice::None,
        }
    }

    pub(crate) fn config_with_token(&self, token: &str) -> HubConfig {
        let environment = Some(Token::new(token).unwrap());
        HubConfig { tokens: TokenPlaces { environment, ..TokenPlaces::default() }, ..self.config() }
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
    fn serve(&self, stream: TcpStream, away: bool) -> std::io::Result<()> {
        let Some((target, headers)) = read_request(&stream) else { return Ok(()) };
        let range = headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        let asked = Asked {
            away,
            path: decoded(target.split('?').next().unwrap()),
            host: headers.get("host").cloned().unwrap_or_default(),
            from: range.map(|from| from.parse().unwrap()),
            authorization: headers.get("authorization").cloned(),
        };
        self.asked.lock().unwrap().push(asked.clone());
        let act = (self.manners.lock().unwrap())(&asked);
        if let Some(status) = act.status {
            let mut headers = act.headers;
            headers.push(("Content-Length", "0".into()));
            return respond(&stream, status, &headers);
        }
        if let Some(repository) = asked.path.strip_prefix("/api/models/") {
            return self.tell(&stream, repository);
        }
        let Some((repository, path)) =
            asked.path.split_once("/resolve/abc123/").or_else(|| asked.path.split_once("/blob/"))
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
        if away {
            self.send(&stream, &asked, &act, &content)
        } else {
            self.redirect(&stream, &asked, &act, &content)
        }
    }

    fn tell(&self, mut stream: &TcpStream, repository: &str) -> std::io::Result<()> {
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
        asked: &Asked,
        act: &Act,
        content: &Content,
    ) -> std::io::Result<()> {
        let path: String = asked.path.replacen("/resolve/abc123/", "/blob/", 1);
        let path: String = path
            .bytes()
            .map(|b| if b.is_ascii_graphic() { char::from(b).to_string() } else { format!("%{b:02X}") })
            .collect();
        respond(
            stream,
            302,
            &[
                ("Location", format!("{}{path}?Signature=hidden", self.origin_of_files.lock().unwrap())),
                ("X-Linked-Etag", format!("\"{}\"", act.etag.as_ref().unwrap_or(&content.sha256))),
                ("X-Linked-Size", content.size.to_string()),
                ("X-Repo-Commit", "abc123".into()),
                ("Accept-Ranges", "bytes".into()),
                ("Content-Length", "0".into()),
            ],
        )
    }

    fn send(&self, stream: &TcpStream, asked: &Asked, act: &Act, content: &Content) -> std::io::Result<()> {
        let size = content.size + act.longer;
        let from = asked.from.filter(|_| !act.whole).map(|from| from + act.shift);
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
        self.most_sending.fetch_max(now, Ordering::SeqCst);
        self.body(stream, act, content, from)
    }

    fn body(&self, mut stream: &TcpStream, act: &Act, content: &Content, from: u64) -> std::io::Result<()> {
        let end = content.size + act.longer;
        let stop =
            [act.cut, act.stall].into_iter().flatten().min().map_or(end, |bytes| end.min(from + bytes));
        let mut piece = vec![0; act.trickle.unwrap_or(PIECE)];
        let mut at = from;
        while at < stop {
            let count = piece.len().min((stop - at) as usize);
            if at + count as u64 == stop {
                // Before the reader can know that it has all.
                self.sending.fetch_sub(1, Ordering::SeqCst);
            }
            content.read(at, &mut piece[..count]);
            if act.spoilt {
                piece[count - 1] ^= 1;
            }
            stream.write_all(&piece[..count])?;
            at += count as u64;
            if act.trickle.is_some() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        if act.stall.is_some() {
            // Until the reader has had enough.
            let mut byte = [0];
            let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
            let _ = std::io::Read::read(&mut stream, &mut byte);
        }
        stream.shutdown(Shutdown::Write)
    }
}

/// A proxy that makes tunnels to the hosts it knows, whatever machine those are, and tells what it was asked: the
/// first line and every header.
pub(crate) fn tunnels(hosts: &[(&str, SocketAddr)]) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let hosts: HashMap<String, SocketAddr> =
        hosts.iter().map(|(host, address)| (format!("{host}:443"), *address)).collect();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let told = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let Some((target, headers)) = read_request(&stream) else { continue };
            told.lock().unwrap().push(format!("{target} {headers:?}"));
            match hosts.get(&target).and_then(|address| TcpStream::connect(address).ok()) {
                Some(server) => tunnel(stream, server),
                None => drop(respond(&stream, 502, &[])),
            }
        }
    });
    (address, asked)
}

/// Says that it is made, and hands on in both directions until either side ends.
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

/// A proxy that hands on what it is asked for to the hub, whatever host that was meant for, and counts.
pub(crate) fn proxy(hub: &TestHub) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (count, home, away) = (Arc::new(AtomicUsize::new(0)), hub.home, hub.shared.away);
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = hand_on(&stream, home, away);
        }
    });
    (address, count)
}

fn hand_on(mut stream: &TcpStream, home: SocketAddr, away: SocketAddr) -> std::io::Result<()> {
    let Some((target, headers)) = read_request(stream) else { return Ok(()) };
    // As a proxy is asked: with the whole address.
    let rest = target.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    let mut server = TcpStream::connect(if host == away.to_string() { away } else { home })?;
    let mut request = format!("GET /{path} HTTP/1.1\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    server.write_all((request + "\r\n").as_bytes())?;
    std::io::copy(&mut server, &mut stream)?;
    stream.shutdown(Shutdown::Write)
}
