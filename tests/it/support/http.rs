//! An HTTP client of a few lines: a test decides when it reads, and when it goes away.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longest wait for data before a test fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// A response that is still being read. Dropping it closes the connection.
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Lines of the header, in lower case.
    header: Vec<String>,
    reader: BufReader<TcpStream>,
}

/// Opens a connection.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Writes a request. The connection closes after the response.
pub(crate) fn write_request(stream: &mut TcpStream, method: &str, path: &str, header: &str, body: &str) {
    let length = body.len();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\
         {header}\r\n{body}"
    );
    stream.write_all(text.as_bytes()).unwrap();
}

/// Reads the header of a response.
pub(crate) fn read_response(stream: TcpStream) -> Response {
    let mut reader = BufReader::new(stream);
    let mut header = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        header.push(line.trim().to_ascii_lowercase());
    }
    let first = header.first().expect("the connection closed without a response");
    let status = first.split(' ').nth(1).unwrap().parse().unwrap();
    Response { status, header, reader }
}

/// Sends a request.
pub(crate) fn send(address: SocketAddr, method: &str, path: &str, header: &str, body: &str) -> Response {
    let mut stream = connect(address);
    write_request(&mut stream, method, path, header, body);
    read_response(stream)
}

/// Posts JSON.
pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    send(address, "POST", path, "Content-Type: application/json\r\n", &body.to_string())
}

/// Returns the text at a path.
pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    let response = send(address, "GET", path, "", "");
    assert_eq!(response.status, 200, "{path}");
    response.text()
}

impl Response {
    /// Returns the value of a header field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.header.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// Reads the rest of the body.
    pub(crate) fn text(mut self) -> String {
        let mut bytes = Vec::new();
        if self.field("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk() {
                bytes.extend(chunk);
            }
        } else {
            self.reader.read_to_end(&mut bytes).unwrap();
        }
        String::from_utf8(bytes).unwrap()
    }

    /// Reads the rest of the body as JSON.
    pub(crate) fn json(self) -> Value {
        let text = self.text();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Reads the next chunk of a chunked body. Returns `None` at the end, or if the connection was cut.
    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        self.reader.read_line(&mut line).ok()?;
        let length = usize::from_str_radix(line.trim(), 16).ok()?;
        let mut bytes = vec![0; length + 2];
        self.reader.read_exact(&mut bytes).ok()?;
        bytes.truncate(length);
        (length > 0).then_some(bytes)
    }

    /// Reads the data of all server-sent events.
    pub(crate) fn events(self) -> Vec<String> {
        assert_eq!(self.field("content-type"), Some("text/event-stream"));
        let text = self.text();
        text.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
    }
}
