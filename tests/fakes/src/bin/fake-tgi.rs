//! Behaves as Text Generation Inference does from outside, which itself cannot run without a GPU: it is
//! configured through the environment alone, refuses connections while it loads, then answers.
//!
//! ```text
//! MODEL_ID   directory with config.json     HOSTNAME, PORT   where it listens
//! LOAD_MS    how long nothing listens; default 500
//! ```

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::ExitCode,
    time::Duration,
};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.is_empty() {
        // The real one's script splits them again at every space.
        eprintln!("error: unexpected arguments {arguments:?}");
        return ExitCode::from(2);
    }
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
    for stream in listener.incoming().flatten() {
        // Who goes away in the middle is the client's own business.
        let _ = answer(stream, &model);
    }
    ExitCode::SUCCESS
}

fn answer(stream: TcpStream, model: &str) -> std::io::Result<()> {
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
        "/metrics" => (200, "tgi_batch_current_size 0\n".to_owned()),
        "/environment" => {
            let all: std::collections::BTreeMap<String, String> = std::env::vars().collect();
            (200, serde_json::json!(all).to_string())
        }
        _ => (404, String::new()),
    };
    write!(
        &stream,
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
