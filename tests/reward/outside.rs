//! Servers and programs that misbehave: an error that names the row, or the configured default, counted.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::json;

use crate::{message, reward, rows};

/// A server on loopback that answers each request with `answer` of its body; it ends with the test.
fn serve(answer: fn(&str) -> &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || while talk(&stream, answer).is_some() {});
        }
    });
    url
}

/// One request and its answer; nothing when the client has gone.
fn talk(mut stream: &TcpStream, answer: fn(&str) -> &'static str) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut len) = (String::new(), 0);
    while reader.read_line(&mut line).ok()? > 2 {
        let lower = line.to_lowercase();
        len = lower.strip_prefix("content-length: ").map_or(Some(len), |text| text.trim().parse().ok())?;
        line.clear();
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    let text = answer(&String::from_utf8(body).ok()?);
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len()).ok()
}

const TWO_ROWS: &str = "{\"response\":\"a\",\"label\":\"4\"}\n{\"response\":\"odd\",\"label\":\"4\"}\n";

#[test]
fn a_server_that_answers_nan_is_an_error_or_the_default_and_counted() {
    let answers: [fn(&str) -> &'static str; 3] = [
        |body| if body.contains("odd") { "NaN" } else { "0.5" },
        |body| if body.contains("odd") { "{\"reward\": 1e999}" } else { "0.5" },
        |body| if body.contains("odd") { "{\"reward\": null}" } else { "0.5" },
    ];
    for answer in answers {
        let spec = format!("remote:{}", serve(answer));
        let output = reward(&["--type", &spec, "--skip-bad"], TWO_ROWS);
        assert_eq!(output.status.code(), Some(69), "{}", message(&output));
        assert!(message(&output).contains("stdin: line 2: "), "{}", message(&output));
        let output = reward(&["--type", &format!("{spec} on_error=-1"), "--stats"], TWO_ROWS);
        assert!(output.status.success(), "{}", message(&output));
        let rewards: Vec<_> = rows(&output).iter().map(|row| row["reward"].clone()).collect();
        assert_eq!(rewards, [json!(0.5), json!(-1.0)]);
        let text = message(&output);
        assert!(text.contains("failed for 1 rows; the default stands for them"), "{text}");
        assert!(text.contains("on_error=-1: mean -0.2500, std 0.7500, failed 1;"), "{text}");
    }
}

#[test]
fn a_program_that_dies_is_an_error_or_the_default_and_counted() {
    let program = "sh -c 'while read -r line; do case \"$line\" in *odd*) kill -9 $$;; esac; echo 1; done'";
    let output = reward(&["--type", &format!("command:{program}")], TWO_ROWS);
    assert_eq!(output.status.code(), Some(69), "{}", message(&output));
    assert!(message(&output).contains("stdin: line 2: reward program sh"), "{}", message(&output));
    let output = reward(&["--type", &format!("command:on_error=0.25 {program}"), "--stats"], TWO_ROWS);
    assert!(output.status.success(), "{}", message(&output));
    let rewards: Vec<_> = rows(&output).iter().map(|row| row["reward"].clone()).collect();
    assert_eq!(rewards, [json!(1.0), json!(0.25)]);
    assert!(message(&output).contains("failed for 1 rows; the default stands"), "{}", message(&output));
}

#[test]
fn a_judge_that_gives_no_grade_is_an_error() {
    let url = serve(|_| "{\"choices\": [{\"message\": {\"content\": \"I would rather not.\"}}]}");
    let output = reward(&["--type", &format!("judge:{url}/v1 model=m")], TWO_ROWS);
    assert_eq!(output.status.code(), Some(69), "{}", message(&output));
    assert!(message(&output).contains("stdin: line 1: "), "{}", message(&output));
    let url = serve(|_| "{\"choices\": [{\"message\": {\"content\": \"Score: 5\"}}]}");
    let output = reward(&["--type", &format!("judge:{url}/v1 model=m")], TWO_ROWS);
    assert_eq!(rows(&output)[0]["reward"], json!(0.5), "{}", message(&output));
}
