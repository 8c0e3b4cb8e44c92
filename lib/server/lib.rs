//! The server around the engine: `SGLang`'s and `OpenAI`'s routes over HTTP, and the thread that owns the engine.
//! It knows no run directory and no command line.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod api_error;
mod app;
mod body;
mod control;
mod driver;
mod error;
mod gather;
mod generate;
mod grammar;
mod handle;
mod info;
mod job;
mod openai;
mod router;
mod sampling;
mod serve;
mod served_model;
mod socket;
mod sse;
mod status;
mod text;
mod token;
mod tool_calls;

#[cfg(test)]
mod openai_tests;
#[cfg(test)]
mod routes_tests;
#[cfg(test)]
mod steering_tests;
#[cfg(test)]
mod testing;

use api_error::{ApiError, ApiResult};
pub use app::ServerConfig;
use driver::Driver;
pub use error::{Error, Result};
use grammar::{Grammars, Language};
use handle::{Handle, Running, Wanted};
pub use serve::{Serving, serve};
pub use served_model::ServedModel;
pub use socket::{Place, Socket};
use status::{Limits, Status};
pub use token::Token;
pub use tool_calls::Family;
