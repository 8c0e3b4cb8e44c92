//! sbatch/fetch.sh against a loopback server: lists in pages, resume after a cut connection, checksums, what is refused.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

/// What a path answers with.
#[derive(Clone)]
struct Page {
    status: &'static str,
    link: Option<String>,
    body: Vec<u8>,
    /// The first answer breaks off after that many bytes.
    cut_at: Option<usize>,
}

impl Page {
    fn new(body: impl Into<Vec<u8>>) -> Self {
        Self { status: "200 OK", link: None, body: body.into(), cut_at: None }
    }
}

/// The requests a server got: path with query, first byte asked for, authorization.
type Log = Arc<Mutex<Vec<(String, usize, Option<String>)>>>;

/// Serves `pages` by path with query until the process ends; everything else is not found.
fn serve(pages: impl FnOnce(&str) -> BTreeMap<String, Page>) -> (String, Log) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let pages = Arc::new(Mutex::new(pages(&endpoint)));
    let log = Log::default();
    let of_server = log.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (pages, log) = (pages.clone(), of_server.clone());
            std::thread::spawn(move || answer(stream, &pages, &log));
        }
    });
    (endpoint, log)
}

fn answer(stream: TcpStream, pages: &Mutex<BTreeMap<String, Page>>, log: &Log) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let path = lines.next()?.ok()?.split(' ').nth(1)?.to_owned();
    let (mut start, mut authorization) = (0, None);
    for line in lines.map_while(Result::ok).take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ")?;
        match name.to_ascii_lowercase().as_str() {
            "range" => start = value.strip_prefix("bytes=")?.trim_end_matches('-').parse().ok()?,
            "authorization" => authorization = Some(value.to_owned()),
            _ => (),
        }
    }
    log.lock().unwrap().push((path.clone(), start, authorization));
    let page = pages.lock().unwrap().get_mut(&path).map(|page| {
        let whole = page.clone();
        page.cut_at = None;
        whole
    });
    let missing = Page { status: "404 Not Found", ..Page::new("") };
    let Page { status, link, body, cut_at } = page.unwrap_or(missing);
    let range = format!("Content-Range: bytes {start}-{}/{}\r\n", body.len().saturating_sub(1), body.len());
    let (status, range) = if start > 0 { ("206 Partial Content", range) } else { (status, String::new()) };
    let link = link.map_or(String::new(), |next| format!("Link: <{next}>; rel=\"next\"\r\n"));
    let rest = &body[start..];
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{link}{range}Connection: close\r\n\r\n",
        rest.len()
    );
    let mut stream = stream;
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(&rest[..cut_at.unwrap_or(rest.len())]).ok()
}

fn fetch(endpoint: &str, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("sbatch/fetch.sh");
    let mut command = Command::new("bash");
    command.arg(script).args(args).env("HF_ENDPOINT", endpoint).env("MODELSCOPE_ENDPOINT", endpoint);
    command.env_remove("HF_TOKEN").env("SLIME_RETRIES", "1").envs(variables.iter().copied());
    command.output().unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The sum that a program of coreutils gives.
fn sum(program: &str, bytes: &[u8]) -> String {
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

fn git_oid(bytes: &[u8]) -> String {
    sum("sha1sum", &[format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat())
}

const WEIGHTS: &[u8] = b"weights, weights, weights, weights";
const CONFIG: &[u8] = b"{\"model_type\": \"llama\"}\n";

fn large(path: &str, bytes: &[u8]) -> String {
    let sum = sum("sha256sum", bytes);
    format!(
        r#"{{"type":"file","path":"{path}","size":{0},"oid":"0","lfs":{{"oid":"{sum}","size":{0}}}}}"#,
        bytes.len()
    )
}

fn small(path: &str, bytes: &[u8]) -> String {
    format!(r#"{{"type":"file","path":"{path}","size":{},"oid":"{}"}}"#, bytes.len(), git_oid(bytes))
}

const TREE: &str = "/api/models/some/model/tree/main?recursive=true";

/// A repository whose list has two pages and whose weights break off once.
fn model(endpoint: &str) -> BTreeMap<String, Page> {
    let first = format!(
        r#"[{},{{"type":"directory","path":"sub","oid":"1","size":0}}]"#,
        small("sub/config.json", CONFIG)
    );
    let second = format!("[{},{}]", large("model.safetensors", WEIGHTS), large("pytorch_model.bin", b"old"));
    let files = "/some/model/resolve/main";
    BTreeMap::from([
        (TREE.to_owned(), Page { link: Some(format!("{endpoint}/page2")), ..Page::new(first) }),
        ("/page2".to_owned(), Page::new(second)),
        (format!("{files}/sub/config.json"), Page::new(CONFIG)),
        (format!("{files}/model.safetensors"), Page { cut_at: Some(10), ..Page::new(WEIGHTS) }),
    ])
}

#[test]
fn interrupted_download_goes_on_where_it_was_and_is_checked() {
    let (endpoint, log) = serve(model);
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("weights");
    let args = ["some/model", folder.to_str().unwrap(), "--exclude", "*.bin"];
    let output = fetch(&endpoint, &args, &[("HF_TOKEN", "secret")]);
    assert!(output.status.success(), "{}", told(&output));
    assert!(told(&output).contains("interrupted at 10 of 34 bytes"), "{}", told(&output));
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);
    assert_eq!(fs::read(folder.join("sub/config.json")).unwrap(), CONFIG);
    assert!(!folder.join("model.safetensors.part").exists() && !folder.join("pytorch_model.bin").exists());
    let requests = std::mem::take(&mut *log.lock().unwrap());
    let starts: Vec<usize> = requests
        .iter()
        .filter(|(path, ..)| path.ends_with("model.safetensors"))
        .map(|(_, start, _)| *start)
        .collect();
    assert_eq!(starts, [0, 10]);
    assert!(requests.iter().all(|(.., authorization)| authorization.as_deref() == Some("Bearer secret")));

    // What is there is not fetched again; what was changed is.
    assert!(fetch(&endpoint, &args, &[]).status.success());
    assert_eq!(std::mem::take(&mut *log.lock().unwrap()).len(), 2, "only the list");
    fs::write(folder.join("sub/config.json"), "broken").unwrap();
    assert!(fetch(&endpoint, &args, &[]).status.success());
    assert_eq!(fs::read(folder.join("sub/config.json")).unwrap(), CONFIG);
}

#[test]
fn data_sets_and_modelscope_have_their_own_lists() {
    let sum = sum("sha256sum", WEIGHTS);
    let size = WEIGHTS.len();
    let (endpoint, _) = serve(|_| {
        let list = format!(
            r#"{{"Code":200,"Data":{{"Files":[{{"Path":"a b.bin","Type":"blob","Size":{size},"Sha256":"{sum}"}}]}}}}"#
        );
        BTreeMap::from([
            (
                "/api/v1/models/some/model/repo/files?Revision=master&Recursive=true".to_owned(),
                Page::new(list),
            ),
            ("/models/some/model/resolve/master/a%20b.bin".to_owned(), Page::new(WEIGHTS)),
            (
                "/api/datasets/some/data/tree/v1?recursive=true".to_owned(),
                Page::new(format!("[{}]", large("x.parquet", WEIGHTS))),
            ),
            ("/datasets/some/data/resolve/v1/x.parquet".to_owned(), Page::new(WEIGHTS)),
        ])
    });
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().to_str().unwrap();
    let output = fetch(&endpoint, &["--from", "modelscope", "some/model", folder], &[]);
    assert!(output.status.success(), "{}", told(&output));
    let output = fetch(&endpoint, &["--type", "dataset", "--revision", "v1", "some/data", folder], &[]);
    assert!(output.status.success(), "{}", told(&output));
    for name in ["a b.bin", "x.parquet"] {
        assert_eq!(fs::read(root.path().join(name)).unwrap(), WEIGHTS, "{name}");
    }
}

#[test]
fn wrong_bytes_and_wrong_lists_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("w");
    let folder = folder.to_str().unwrap();
    let refuse = |list: String, code: i32, word: &str| {
        let (endpoint, _) = serve(|_| {
            BTreeMap::from([
                (TREE.to_owned(), Page::new(list)),
                ("/some/model/resolve/main/x".to_owned(), Page::new(WEIGHTS)),
            ])
        });
        let output = fetch(&endpoint, &["some/model", folder], &[]);
        assert_eq!(output.status.code(), Some(code), "{}", told(&output));
        assert!(told(&output).contains(word), "{word}: {}", told(&output));
        assert!(!Path::new(folder).join("x").exists());
    };
    let other = WEIGHTS.iter().rev().copied().collect::<Vec<u8>>();
    refuse(format!("[{}]", large("x", &other)), 65, "size or checksum is not that of the list");
    refuse(format!("[{}]", small("x", &other)), 65, "size or checksum is not that of the list");
    refuse(format!("[{}]", large("../x", WEIGHTS)), 65, "outside the folder");
    refuse("<html>".to_owned(), 65, "not a list of files");
    refuse("[]".to_owned(), 66, "no file that is wanted");
    let (endpoint, _) = serve(|_| BTreeMap::new());
    assert_eq!(fetch(&endpoint, &["some/model", folder], &[]).status.code(), Some(66));
    assert_eq!(fetch("http://127.0.0.1:1", &["some/model", folder], &[]).status.code(), Some(69));
    for args in [&["some/model"][..], &["model", folder], &["--type", "x", "some/model", folder], &["--frob"]]
    {
        assert_eq!(fetch(&endpoint, args, &[]).status.code(), Some(64), "{args:?}");
    }
}
