//! `roofline remote`.

use std::{ffi::OsString, time::Duration};

use clap::Args;

#[derive(Args)]
#[command(after_help = "\
Starts `roofline serve` there on its loopback over the system's ssh, forwards a port to it, checks that both are the
same version and opens the page. Ctrl-C here, or a lost connection, stops it there. What follows `--` is for ssh.

Examples:
  roofline remote me@gpu-box --allow-measure
  roofline remote gpu-box --binary /opt/roofline/bin/roofline --port 9000 --no-open
  roofline remote me@gpu-box -- -p 2222 -i ~/.ssh/gpu -J bastion")]
pub(crate) struct RemoteArgs {
    /// Where, as ssh takes it: a host, USER@HOST or a name of ~/.ssh/config
    #[arg(value_name = "[USER@]HOST", value_parser = destination)]
    pub(crate) host: String,
    /// The port here; any free one when left out
    #[arg(long)]
    pub(crate) port: Option<u16>,
    /// Let jobs run kernels there
    #[arg(long)]
    pub(crate) allow_measure: bool,
    /// The program there
    #[arg(long, value_name = "PATH", default_value = "roofline")]
    pub(crate) binary: String,
    /// The program that connects
    #[arg(long, value_name = "PATH", default_value = "ssh")]
    pub(crate) ssh: OsString,
    /// Go on though the program there is of another version
    #[arg(long)]
    pub(crate) any_version: bool,
    /// Say where the page is instead of opening it
    #[arg(long)]
    pub(crate) no_open: bool,
    /// Longest time until the server there answers
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub(crate) timeout: Duration,
    /// For ssh itself
    #[arg(last = true, value_name = "SSH OPTIONS")]
    pub(crate) options: Vec<OsString>,
}

/// ssh would take a word that begins with a dash for an option, and options can run programs.
fn destination(text: &str) -> Result<String, String> {
    let fine =
        !text.is_empty() && !text.starts_with('-') && !text.contains(|c: char| c.is_whitespace() || c.is_control());
    if fine {
        Ok(text.to_owned())
    } else {
        Err("a host is a name such as gpu-box or me@gpu-box; options go after `--`".to_owned())
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text.trim_end_matches('s').parse().map_err(|_| "seconds are a number such as 60".to_owned())?;
    if (0.1..=3600.0).contains(&value) {
        Ok(Duration::from_secs_f64(value))
    } else {
        Err("between 0.1 and 3600 seconds".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_no_option() {
        assert!(destination("me@gpu-box").is_ok() && destination("[::1]").is_ok());
        for bad in ["", "-oProxyCommand=id", "two words", "new\nline"] {
            assert!(destination(bad).is_err(), "{bad:?}");
        }
        assert!(seconds("2.5s").is_ok() && seconds("0").is_err() && seconds("soon").is_err());
    }
}
