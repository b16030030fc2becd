//! What a model is, known before it is moved: what cannot fit is refused by its first bytes.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use e2e::{Machine, Repository, Run, facts, fake_driver, fixture_pool};
use serde_json::json;

/// Serves the first bytes of a large file, zeros behind them, and counts what it gives.
struct Large {
    address: SocketAddr,
    given: Arc<AtomicU64>,
}

impl Large {
    fn start(begin: Vec<u8>, size: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let given = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&given);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Who goes away in the middle is the client's own business.
                let _ = answer(stream, &begin, size, &counted);
            }
        });
        Self { address, given }
    }

    fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    fn given(&self) -> u64 {
        self.given.load(Ordering::SeqCst)
    }
}

fn answer(
    mut stream: TcpStream,
    begin: &[u8],
    size: u64,
    given: &AtomicU64,
) -> std::io::Result<()> {
    let mut range = None;
    for line in BufReader::new(stream.try_clone()?).lines() {
        let line = line?.to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(text) = line.strip_prefix("range: bytes=") {
            let (start, last) = text.split_once('-').expect("a range");
            range = Some((start.parse::<u64>().unwrap(), last.parse::<u64>().unwrap()));
        }
    }
    let (start, last) = range.expect("the whole file is asked for, which has 40 GB");
    let last = last.min(size - 1);
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nETag: \"one\"\r\n\
         Content-Range: bytes {start}-{last}/{size}\r\nConnection: close\r\n\r\n",
        last + 1 - start
    )?;
    let byte = |at: u64| {
        begin
            .get(usize::try_from(at).unwrap())
            .copied()
            .unwrap_or(0)
    };
    let bytes: Vec<u8> = (start..=last).map(byte).collect();
    given.fetch_add(bytes.len() as u64, Ordering::SeqCst);
    stream.write_all(&bytes)
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

/// The header of Llama 3 70B in Q4_K_M, all its weights in one tensor, and the size of the file.
fn seventy_billion() -> (Vec<u8>, u64) {
    let numbers = [
        ("general.file_type", 15),
        ("llama.block_count", 80),
        ("llama.context_length", 131_072),
        ("llama.embedding_length", 8192),
        ("llama.attention.head_count", 64),
        ("llama.attention.head_count_kv", 8),
        ("llama.vocab_size", 128_256_u32),
    ];
    let mut header = b"GGUF\x03\0\0\0".to_vec();
    header.extend(1_u64.to_le_bytes());
    header.extend((numbers.len() as u64 + 1).to_le_bytes());
    header.extend(text("general.architecture"));
    header.extend(8_u32.to_le_bytes());
    header.extend(text("llama"));
    for (key, number) in numbers {
        header.extend(text(key));
        header.extend(4_u32.to_le_bytes());
        header.extend(number.to_le_bytes());
    }
    // Q4_K: 256 numbers in 144 bytes.
    let rows = 8_612_000_u64;
    header.extend(text("weights"));
    header.extend(2_u32.to_le_bytes());
    header.extend(8192_u64.to_le_bytes());
    header.extend(rows.to_le_bytes());
    header.extend(12_u32.to_le_bytes());
    header.extend(0_u64.to_le_bytes());
    header.resize(header.len().next_multiple_of(32), 0);
    let size = header.len() as u64 + rows * 8192 / 256 * 144;
    (header, size)
}

fn plan(machine: &Machine, url: &str, more: &[&str]) -> Run {
    let pool = json!({"id": "chat", "engine": "llamacpp", "ctx": 16_384,
        "provisioning": {"mode": "source", "model": {"ref": url}}});
    machine.write_pool(&pool);
    let facts = facts("rtx3090-cuda124");
    machine.run(&[&["plan", "--facts", &facts], more].concat())
}

#[test]
fn a_model_that_cannot_fit_is_refused_with_the_numbers_before_it_is_fetched() {
    let machine = Machine::new();
    let (header, size) = seventy_billion();
    let server = Large::start(header, size);
    let url = server.url("llama-70b-Q4_K_M.gguf");

    let refused = plan(&machine, &url, &[]).code(5);
    for told in [
        "pool `chat` needs at least 41.7 GiB of GPU memory (weights 36.4 + KV cache 5.0 + compute \
         buffers 0.3), and GPU 0 has 24.0 GiB",
        "llama, 70.5 billion parameters, Q4_K_M, 80 layers",
        "choose a smaller quantisation",
        "--gpu prefer",
    ] {
        refused.says(told);
    }
    let given = server.given();
    assert!(given > 0 && given < 1 << 20, "{given} bytes were fetched");
    assert_eq!(machine.store().blobs(), Vec::<String>::new());

    // Allowed to use the processor too, it is planned, with what is known of it.
    let planned = plan(&machine, &url, &["--gpu", "prefer", "--json"])
        .code(0)
        .json();
    assert!(
        planned["steps"]
            .as_array()
            .unwrap()
            .iter()
            .any(|step| step["id"] == "model-fetch")
    );
    assert!(server.given() < 2 << 20, "{}", server.given());
}

#[test]
fn a_provider_that_does_not_count_the_weights_is_not_believed() {
    let machine = Machine::new();
    let (header, size) = seventy_billion();
    let server = Large::start(header, size);
    let repository = Repository::create(machine.root());
    let mut pool = fixture_pool(&repository);
    pool["gpu"] = json!("require");
    pool["provisioning"]["model"] = json!({"ref": server.url("llama-70b-Q4_K_M.gguf")});
    machine.write_pool(&pool);
    let facts = facts("rtx3090-cuda124");
    let refused = machine.run(&["plan", "--facts", &facts]).code(5);
    refused.says("of GPU memory for the weights of its model, and GPU 0 has 24.0 GiB");
    refused.says("the provider said: 0.0 GiB");
    refused.says("--gpu prefer");
    assert!(server.given() < 1 << 20, "{}", server.given());
    let json = machine.run(&["plan", "--facts", &facts, "--json"]).code(5);
    assert_eq!(json.json()["error"]["kind"], "POOL_UNAVAILABLE");
}

#[test]
fn the_refusal_has_a_code_for_programs() {
    let machine = Machine::new();
    let (header, size) = seventy_billion();
    let server = Large::start(header, size);
    let url = server.url("llama-70b-Q4_K_M.gguf");
    let refused = plan(&machine, &url, &["--json"]).code(5).json();
    assert_eq!(refused["error"]["kind"], "POOL_UNAVAILABLE", "{refused:#}");
}

#[test]
fn a_web_page_in_the_place_of_a_model_is_told_before_it_is_fetched() {
    let machine = Machine::new();
    let page = b"<!DOCTYPE html><title>Sign in</title>".to_vec();
    let size = page.len() as u64;
    let server = Large::start(page, size);
    let planned = plan(&machine, &server.url("x.gguf"), &[]).code(0);
    planned.says("begins with `<!DOCTYPE html><`, not with `GGUF`: it looks like a web page");
}

#[test]
fn a_locked_model_that_cannot_fit_is_refused_before_it_is_fetched_too() {
    let mut machine = Machine::new();
    let driver = fake_driver(machine.root());
    machine.lend(
        "LD_LIBRARY_PATH",
        driver.parent().unwrap().to_str().unwrap(),
    );
    let (header, size) = seventy_billion();
    let server = Large::start(header, size);
    let repository = Repository::create(machine.root());
    let mut pool = fixture_pool(&repository);
    pool["gpu"] = json!("prefer");
    pool["provisioning"]["flags"] = json!(["--print-line", "sees device 0"]);
    pool["provisioning"]["model"] = json!({
        "ref": server.url("llama-70b-Q4_K_M.gguf"),
        "checksum": format!("sha256:{}", "0".repeat(64)),
    });
    machine.write_pool(&pool);
    let _ = machine.run(&["lock"]).code(0);

    pool["gpu"] = json!("require");
    pool["devices"] = json!([0]);
    machine.write_pool(&pool);
    let refused = machine.run(&["prepare", "--locked"]).code(5);
    refused.says("of GPU memory for the weights of its model, and GPU 0 has 24.0 GiB");
    assert!(server.given() < 4 << 20, "{}", server.given());
    assert_eq!(machine.store().blobs(), Vec::<String>::new());
}
