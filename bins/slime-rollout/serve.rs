//! Serves: an engine behind `SGLang`'s and `OpenAI`'s routes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use slime_cli::{Failure, drain};
use slime_config::RunConfig;
use slime_server::{Family, Place, ServerConfig, Serving, Socket};
use slime_tokenizer::Tokenizer;

use crate::args::Serve;
use crate::failure;
use crate::ranks;
use crate::sampler::{self, Sampler};

/// `slime-rollout serve`: until a drain is asked for.
pub fn serve(args: &Serve) -> Result<(), Failure> {
    let mut config = args.settings.load()?;
    config.model.path = args.weights.display().to_string();
    args.settings.answer_dry_run(&config)?;
    ranks::run(&config, true, || serve_engine(args, &config))
}

fn serve_engine(args: &Serve, config: &RunConfig) -> Result<(), Failure> {
    let place = place(args)?;
    // Before any thread is started: threads inherit which signals they leave to others.
    drain::install();
    let weight_roots = args.weight_root.iter().map(|root| weight_root(root)).collect::<Result<_, _>>()?;
    let model_path =
        std::path::absolute(&args.weights).map_err(|error| Failure::open(args.weights.display(), &error))?;
    // A place that is taken is told before weights are loaded.
    let socket = Socket::bind(&place).map_err(failure!())?;
    let tokenizer = Arc::new(Tokenizer::from_dir(&args.weights).map_err(failure!())?);
    let stop_token_ids = sampler::stop_token_ids(config, &tokenizer)?;
    let name_of_dir =
        || model_path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let model_name = args.model_name.clone().unwrap_or_else(name_of_dir);
    let version = args.weight_version.parse().unwrap_or(0);
    let engine = Sampler::load_engine_with(config, version, sampler::decoder(tokenizer.clone()))?;
    let serving = Serving {
        config: ServerConfig {
            model_path,
            model_name: model_name.clone(),
            weight_roots,
            tool_calls: args.tool_call_parser.as_deref().and_then(Family::from_name),
            max_body_bytes: args.max_body_mib << 20,
            max_queued: args.max_queued,
            read_timeout: Duration::from_secs(args.read_timeout_s),
            request_timeout: Duration::from_secs(args.timeout_s),
            max_connections: args.max_connections,
        },
        socket,
        tokenizer,
        stop_token_ids,
        weight_version: args.weight_version.clone(),
        max_num_seqs: config.rollout.max_in_flight as usize,
        wants_drain: drain::requested,
        drain_timeout: Duration::from_secs(args.drain_timeout_s),
    };
    let ready = |url: &str| {
        tracing::info!("{model_name} is served at {url}");
        let line = json!({ "url": url, "model": model_name, "pid": std::process::id() });
        // Whoever does not read it does not need it.
        let _ = writeln!(std::io::stdout(), "{line}");
    };
    slime_server::serve(engine, serving, ready).map_err(failure!())?;
    Err(Failure::drained("no request is left; start again to go on"))
}

fn place(args: &Serve) -> Result<Place, Failure> {
    match (args.port, &args.token_file, &args.unix_socket) {
        (None, None, Some(path)) => Ok(Place::Unix(path.clone())),
        (Some(port), Some(token_file), None) => {
            Ok(Place::Tcp { host: args.host.clone(), port, token_file: token_file.clone() })
        }
        (Some(_), None, _) => {
            Err(Failure::usage("--port needs --token-file FILE: every user of this host reaches a port")
                .with_hint("FILE is made with a random token where it does not exist"))
        }
        _ => Err(Failure::usage("no place to listen")
            .with_hint("--port N --token-file FILE, or --unix-socket PATH")),
    }
}

fn weight_root(root: &Path) -> Result<PathBuf, Failure> {
    root.canonicalize().map_err(|error| Failure::open(format!("--weight-root {}", root.display()), &error))
}
