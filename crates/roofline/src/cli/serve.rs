//! `roofline serve`.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use clap::Args;

/// Default port: what examples of this field use.
const PORT: &str = "8000";

#[derive(Args)]
#[command(after_help = "\
Answers on this machine only, and measures nothing, until told otherwise. An address that others can reach needs a
token; `ssh -L 8000:localhost:8000 HOST` is the other way to a machine far away.

Examples:
  roofline serve                                      http://127.0.0.1:8000
  roofline serve --port 0 --allow-measure             any free port, which is printed; jobs may run kernels
  roofline serve --host 0.0.0.0 --token \"$TOKEN\"      others may ask, if they know the token
  curl -X POST \"localhost:8000/api/recommend?hardware_key=jetson_orin_nano\" \\
       -H \"Content-Type: application/json\" -d '{\"M\":1,\"N\":4096,\"K\":4096}'")]
pub(crate) struct ServeArgs {
    /// The address to listen on; one that is not loopback needs --token
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) host: IpAddr,
    /// The port; 0 takes any free one
    #[arg(long, default_value = PORT)]
    pub(crate) port: u16,
    /// Let jobs run kernels on this machine
    #[arg(long, visible_alias = "allow-benchmarks")]
    pub(crate) allow_measure: bool,
    /// What callers have to know: every request under /api needs `Authorization: Bearer TOKEN`
    #[arg(long, env = "ROOFLINE_TOKEN", hide_env_values = true, value_parser = token)]
    pub(crate) token: Option<String>,
    /// Other names under which this server is reached, as browsers send them
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) allow_host: Vec<String>,
    /// Stop when standard input ends, for whoever starts it over a connection
    #[arg(long)]
    pub(crate) until_eof: bool,
    /// Where jobs and their results are kept; the data folder when left out
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// Longest time to read the head of a request
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = patience, help_heading = "Limits")]
    pub(crate) header_timeout: Duration,
    /// Longest time to read and answer a request
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = patience, help_heading = "Limits")]
    pub(crate) request_timeout: Duration,
    /// Connections at a time
    #[arg(long, value_name = "COUNT", default_value = "1024", value_parser = clap::value_parser!(u32).range(1..=65_536), help_heading = "Limits")]
    pub(crate) connections: u32,
    /// Requests per second of one client that is not on this machine
    #[arg(long, value_name = "COUNT", default_value = "200", value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Limits")]
    pub(crate) rate: u32,
}

fn token(text: &str) -> Result<String, String> {
    let plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    if plain && (16..=512).contains(&text.len()) {
        return Ok(text.to_owned());
    }
    Err("a token has 16 to 512 letters, digits and signs; `openssl rand -hex 32` makes one".to_owned())
}

fn patience(text: &str) -> Result<Duration, String> {
    let value: f64 = text.trim_end_matches('s').parse().map_err(|_| "seconds are a number such as 10".to_owned())?;
    let sensible = (0.05..=3600.0).contains(&value);
    if sensible { Ok(Duration::from_secs_f64(value)) } else { Err("between 0.05 and 3600 seconds".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_enough_to_be_secret() {
        assert!(token("0123456789abcdef").is_ok());
        for bad in ["", "short", "0123456789abcde\n", "0123456789 abcdef", "0123456789abcdé"] {
            assert!(token(bad).is_err(), "{bad:?}");
        }
    }
}
