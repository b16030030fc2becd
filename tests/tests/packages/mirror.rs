//! A web server that serves parts, and breaks off where it is told to.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

/// How a mirror behaves.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Manner {
    /// Gives what is asked for.
    Whole,
    /// Breaks off in the middle, the first time.
    Cut,
    /// Stops in the middle and keeps the connection, the first time.
    Stall,
    /// Has nothing.
    Missing,
}

/// A mirror of one file.
pub(crate) struct Mirror {
    address: SocketAddr,
    /// First byte asked for, of every request.
    asked: Arc<Mutex<Vec<usize>>>,
}

impl Mirror {
    pub(crate) fn start(content: Vec<u8>, manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        let content = Arc::new(content);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (noted, content) = (Arc::clone(&noted), Arc::clone(&content));
                // Who goes away in the middle is the client's own business.
                std::thread::spawn(move || answer(stream, &content, manner, &noted));
            }
        });
        Self { address, asked }
    }

    pub(crate) fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    pub(crate) fn asked(&self) -> Vec<usize> {
        self.asked.lock().unwrap().clone()
    }
}

fn answer(
    mut stream: TcpStream,
    content: &[u8],
    manner: Manner,
    asked: &Mutex<Vec<usize>>,
) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut block = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let length = stream.read(&mut block)?;
        if length == 0 {
            return Ok(());
        }
        request.extend_from_slice(&block[..length]);
    }
    let request = String::from_utf8_lossy(&request).to_lowercase();
    let range = request.split("range: bytes=").nth(1);
    let start = range
        .and_then(|rest| rest.split('-').next()?.parse().ok())
        .unwrap_or(0_usize);
    let first = {
        let mut asked = asked.lock().unwrap();
        asked.push(start);
        asked.len() == 1
    };
    if matches!(manner, Manner::Missing) {
        return write!(
            stream,
            "HTTP/1.1 404 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
    }
    let body = &content[start..];
    let (status, range) = match start {
        0 => (200, String::new()),
        start => (
            206,
            format!(
                "Content-Range: bytes {start}-{}/{}\r\n",
                content.len() - 1,
                content.len()
            ),
        ),
    };
    write!(
        stream,
        "HTTP/1.1 {status} X\r\n{range}Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    match manner {
        Manner::Cut if first => stream.write_all(&body[..body.len() / 2]),
        Manner::Stall if first => {
            stream.write_all(&body[..body.len() / 2])?;
            // Until the other side goes away.
            let _ = stream.read(&mut block);
            Ok(())
        }
        _ => stream.write_all(body),
    }
}
