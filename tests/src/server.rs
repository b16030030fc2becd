//! A web server with one file, for downloads.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Serves the same bytes under every path, until the test's process ends.
pub struct FileServer {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
}

impl FileServer {
    /// Begins to serve.
    ///
    /// # Panics
    ///
    /// When no port is left.
    #[must_use]
    pub fn start(content: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::Relaxed);
                // Who goes away in the middle is the client's own business.
                let _ = answer(stream, &content);
            }
        });
        Self { address, requests }
    }

    /// URL of a file.
    #[must_use]
    pub fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    /// Requests so far.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

fn answer(mut stream: TcpStream, content: &[u8]) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut block = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let length = stream.read(&mut block)?;
        if length == 0 {
            return Ok(());
        }
        request.extend_from_slice(&block[..length]);
    }
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        content.len()
    )?;
    if !request.starts_with(b"HEAD ") {
        stream.write_all(content)?;
    }
    Ok(())
}
