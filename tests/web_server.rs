//! A web server on a local port that answers every request as a test says.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// The server; its thread ends with the test's process.
pub struct WebServer {
    pub port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl WebServer {
    /// `answer` gets the head of a request, and returns the status line with further headers, and the body.
    pub fn start(answer: impl Fn(&str) -> (String, Vec<u8>) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
                    head.push(byte[0]);
                }
                let head = String::from_utf8_lossy(&head).into_owned();
                seen.lock().unwrap().push(head.lines().next().unwrap_or_default().to_owned());
                let (status, body) = answer(&head);
                let length = body.len();
                let headers = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
                );
                let _ = stream.write_all(headers.as_bytes());
                if !head.starts_with("HEAD ") {
                    let _ = stream.write_all(&body);
                }
            }
        });
        Self { port, requests }
    }

    /// How many requests came in whose first line begins so.
    pub fn count(&self, start: &str) -> usize {
        self.requests.lock().unwrap().iter().filter(|line| line.starts_with(start)).count()
    }
}
