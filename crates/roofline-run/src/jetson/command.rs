//! NVIDIA's own tools, asked with a limit on their time. Nothing here becomes root: a tool that needs to is run as it is,
//! and its refusal handed on.

use std::{
    io::Read,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::root::shown;

/// A question takes milliseconds; one that hangs is left alone after this.
pub(super) const QUERY: Duration = Duration::from_secs(5);
/// Changing clocks and turning cores off takes longer.
const CHANGE: Duration = Duration::from_secs(30);
/// Most that a tool may say.
const LONGEST: u64 = 64 * 1024;

/// How `nvpmodel` begins to ask for a restart.
const REBOOT: &str = "Reboot required";

/// What came of asking for a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done.
    Done,
    /// The mode turns parts of the GPU on or off, which happens at the next start only.
    NeedsReboot,
    /// Refused, in the tool's words.
    Refused(String),
}

/// The tool for power modes; where a user's path lacks `/usr/sbin` it is found there.
pub(super) const NVPMODEL: &str = "nvpmodel";

/// Asks `nvpmodel` for the mode with this id, as whoever runs this.
pub fn set_mode(id: u32) -> Answer {
    judged(asked(NVPMODEL, &["-m", &id.to_string()], CHANGE))
}

/// Asks `jetson_clocks` to hold all clocks at their maximum.
pub fn jetson_clocks() -> Answer {
    judged(asked("jetson_clocks", &[], CHANGE))
}

fn judged(said: Result<String, String>) -> Answer {
    match said {
        Ok(text) | Err(text) if text.contains(REBOOT) => Answer::NeedsReboot,
        Ok(_) => Answer::Done,
        Err(reason) => Answer::Refused(reason),
    }
}

/// What `program` prints; why it did not, in words. It gets no input, so that a question it asks is answered by its end.
pub(super) fn asked(program: &str, arguments: &[&str], limit: Duration) -> Result<String, String> {
    let start = |program: &str| {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    let mut child = start(program)
        .or_else(|error| start(&format!("/usr/sbin/{program}")).map_err(|_| error))
        .map_err(|error| format!("{program}: {error}"))?;
    // Both ends are read while it runs: a pipe that nobody empties would stop it.
    let out = child.stdout.take().map(|pipe| thread::spawn(move || all_of(pipe)));
    let err = child.stderr.take().map(|pipe| thread::spawn(move || all_of(pipe)));
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if start.elapsed() < limit => thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{program}: no answer within {} s", limit.as_secs()));
            }
        }
    };
    let text =
        |reader: Option<thread::JoinHandle<String>>| reader.and_then(|reader| reader.join().ok()).unwrap_or_default();
    let (out, err) = (text(out), text(err));
    if status.success() {
        return Ok(out);
    }
    // What it asks may be on either; of what it says only the last line is worth showing.
    if let Some(asks) = [&out, &err].into_iter().find(|words| words.contains(REBOOT)) {
        return Err(asks.clone());
    }
    let words = if err.trim().is_empty() { &out } else { &err };
    Err(format!("{program}: {}", shown(words.trim().lines().last().unwrap_or("failed without a word"))))
}

fn all_of(pipe: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = pipe.take(LONGEST).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        assert_eq!(asked("echo", &["NV Power Mode: 15W"], QUERY).unwrap().trim(), "NV Power Mode: 15W");
        assert!(asked("no-such-program-anywhere", &[], QUERY).unwrap_err().starts_with("no-such-program-anywhere: "));
        assert!(asked("false", &[], QUERY).unwrap_err().contains("without a word"));
        let limit = Duration::from_millis(50);
        assert!(asked("sleep", &["20"], limit).unwrap_err().contains("no answer"));
    }

    #[test]
    fn a_reboot_is_not_a_refusal() {
        let words = "NVPM WARN: Reboot required for changing to this power mode: 1\nNVPM ERROR: bad input!";
        assert_eq!(judged(Err(words.to_owned())), Answer::NeedsReboot);
        assert_eq!(judged(Ok(words.to_owned())), Answer::NeedsReboot);
        assert_eq!(judged(Ok(String::new())), Answer::Done);
        // It asks on one stream and fails on the other.
        let asks = "echo 'NVPM WARN: Reboot required for this'; echo 'NVPM ERROR: bad input!' >&2; exit 255";
        assert_eq!(judged(asked("sh", &["-c", asks], QUERY)), Answer::NeedsReboot);
        assert_eq!(judged(Err("no".to_owned())), Answer::Refused("no".to_owned()));
    }
}
