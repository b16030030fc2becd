//! Behaves as Text Generation Inference does from outside, which itself cannot run without a GPU: it is
//! configured through the environment alone, refuses connections while it loads, then answers. At TERM it
//! takes no more requests and ends once those that it has are answered, or the time for that is over.
//!
//! ```text
//! MODEL_ID      directory with config.json     HOSTNAME, PORT   where it listens
//! GRACEFUL_TERMINATION_TIMEOUT   seconds for requests at TERM; default 90, as the real one's
//! LOAD_MS       how long nothing listens; default 500
//! GENERATE_MS   how long `/generate` takes; default 0
//! ```
#![expect(
    unsafe_code,
    reason = "waiting for a signal has no safe interface in the standard library"
)]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::ExitCode,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

/// Requests that are being answered.
#[derive(Default)]
struct Batch {
    size: Mutex<usize>,
    changed: Condvar,
}

impl Batch {
    fn add(&self, change: isize) {
        let mut size = self.size.lock().unwrap();
        *size = size.saturating_add_signed(change);
        self.changed.notify_all();
    }

    fn size(&self) -> usize {
        *self.size.lock().unwrap()
    }

    /// Waits until there is none, at most this long; whether there is none.
    fn is_empty_within(&self, limit: Duration) -> bool {
        let busy = |size: &mut usize| *size > 0;
        let size = self.size.lock().unwrap();
        let waited = self.changed.wait_timeout_while(size, limit, busy);
        !waited.unwrap().1.timed_out()
    }
}

/// Keeps TERM from ending this process and the threads that it starts from now on; what is returned
/// waits for one.
fn hold_term() -> impl FnOnce() + Send {
    // SAFETY: the set is made before it is used, and only this process's own mask is changed.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        set
    };
    move || {
        let mut signal = 0;
        // SAFETY: both outlive the call.
        unsafe { libc::sigwait(&raw const set, &raw mut signal) };
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.is_empty() {
        // The real one's script splits them again at every space.
        eprintln!("error: unexpected arguments {arguments:?}");
        return ExitCode::from(2);
    }
    let wait_for_term = hold_term();
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let model = variable("MODEL_ID");
    if !Path::new(&model).join("config.json").is_file() {
        eprintln!("Error: DownloadError: {model} does not appear to have a file named config.json");
        return ExitCode::FAILURE;
    }
    eprintln!(
        "Args {{ model_id: {model:?}, usage_stats: {:?} }}",
        variable("USAGE_STATS")
    );
    let load_ms = variable("LOAD_MS").parse().unwrap_or(500);
    std::thread::sleep(Duration::from_millis(load_ms));
    let address = format!("{}:{}", variable("HOSTNAME"), variable("PORT"));
    let listener = match TcpListener::bind(&address) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("Error: {address}: {error}");
            return ExitCode::FAILURE;
        }
    };
    eprintln!("Connected");
    let limit = variable("GRACEFUL_TERMINATION_TIMEOUT").parse();
    let limit = Duration::from_secs(limit.unwrap_or(90));
    let generate_ms = variable("GENERATE_MS").parse().unwrap_or(0);
    let batch = Arc::<Batch>::default();
    {
        let batch = Arc::clone(&batch);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (batch, model) = (Arc::clone(&batch), model.clone());
                // Who goes away in the middle is the client's own business.
                std::thread::spawn(move || answer(stream, &model, &batch, generate_ms));
            }
        });
    }
    wait_for_term();
    eprintln!("Terminating, {} requests in flight", batch.size());
    if batch.is_empty_within(limit) {
        eprintln!("Every request is answered");
    }
    ExitCode::SUCCESS
}

fn answer(stream: TcpStream, model: &str, batch: &Batch, generate_ms: u64) -> std::io::Result<()> {
    let mut reader = BufReader::new(&stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut header = String::new();
    while reader.read_line(&mut header)? > 2 {
        header.clear();
    }
    let (status, body) = match line.split(' ').nth(1).unwrap_or_default() {
        "/health" => (200, String::new()),
        "/info" => (
            200,
            serde_json::json!({
                "model_id": model, "version": "3.3.7", "sha": "0123456789abcdef", "docker_label": null,
            })
            .to_string(),
        ),
        "/metrics" => (200, format!("tgi_batch_current_size {}\n", batch.size())),
        "/generate" => {
            batch.add(1);
            std::thread::sleep(Duration::from_millis(generate_ms));
            (200, r#"{"generated_text": "an old silent pond"}"#.to_owned())
        }
        "/environment" => {
            let all: std::collections::BTreeMap<String, String> = std::env::vars().collect();
            (200, serde_json::json!(all).to_string())
        }
        _ => (404, String::new()),
    };
    let written = write!(
        &stream,
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    if line.contains(" /generate ") {
        batch.add(-1);
    }
    written
}
