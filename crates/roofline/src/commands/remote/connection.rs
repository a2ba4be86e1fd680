//! The ssh connection: it starts the server there and forwards a port to it.

use std::{
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use roofline_verbs::Error;

use crate::{cli::RemoteArgs, failure::Failure};

/// A connection that lives as long as this does.
pub(super) struct Connection {
    ssh: Child,
    /// Where a second ssh talks to the first; the folder goes with the connection.
    folder: PathBuf,
    command: Box<dyn Fn() -> Command>,
    host: String,
    /// The server's port there.
    port: u16,
    errors: thread::JoinHandle<String>,
    /// Told when somebody stops us.
    interrupted: mpsc::Receiver<()>,
}

/// What the server says of itself.
const ANNOUNCED: &str = "roofline serve: http://127.0.0.1:";
/// Longest text that is kept of what ssh complains of.
const COMPLAINT: usize = 4096;
/// How often it is looked whether somebody stops us.
const GLANCE: Duration = Duration::from_millis(100);
/// Longest line that is read at once.
const LINE: u64 = 64 * 1024;
/// What a shell answers for a program that is not there.
const NOT_FOUND: i32 = 127;

impl Connection {
    /// Connects and waits until the server there has a port.
    pub(super) fn open(args: &RemoteArgs, deadline: Instant) -> Result<Self, Failure> {
        let interrupted = interruption();
        let folder = private_folder().map_err(Error::file(std::env::temp_dir()))?;
        let socket = folder.join("ssh");
        let (ssh, host, options) = (args.ssh.clone(), args.host.clone(), args.options.clone());
        let command = Box::new(move || {
            let mut command = Command::new(&ssh);
            command.arg("-S").arg(&socket).args(&options);
            command
        });
        let mut child = (command)();
        child.args([
            "-M",
            "-T",
            "-o",
            "ControlPersist=no",
            "-o",
            "ExitOnForwardFailure=yes",
            "-o",
            "RemoteCommand=none",
        ]);
        // A connection that says nothing for 45 seconds is lost.
        child.args(["-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"]);
        child.arg(&host).arg(server(args)).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut ssh = child.spawn().map_err(|error| {
            let _ = std::fs::remove_dir_all(&folder);
            Failure::usage(
                format!("{}: {error}", args.ssh.display()),
                "install an OpenSSH client, or say which with `--ssh PATH`",
            )
        })?;
        let (sender, receiver) = mpsc::channel();
        let errors = collect(ssh.stderr.take());
        if let Some(stdout) = ssh.stdout.take() {
            // The pipe is read to its end, so that the server there never waits for us.
            thread::spawn(move || {
                for line in lines(stdout) {
                    let said = line.find(ANNOUNCED).map(|at| line[at + ANNOUNCED.len()..].trim());
                    if let Some(port) = said.and_then(|port| port.parse::<u16>().ok()) {
                        let _ = sender.send(port);
                    }
                }
            });
        }
        let mut connection = Self { ssh, folder, command, host, port: 0, errors, interrupted };
        loop {
            match receiver.recv_timeout(GLANCE) {
                Ok(port) => {
                    connection.port = port;
                    return Ok(connection);
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(connection.failed(args)),
                Err(mpsc::RecvTimeoutError::Timeout) if connection.interrupted.try_recv().is_ok() => {
                    connection.end();
                    return Err(Error::Cancelled.into());
                }
                Err(mpsc::RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    let message = format!("no server on {} within {} s", args.host, args.timeout.as_secs_f64());
                    let complaint = connection.end();
                    let hint = "give it longer with `--timeout`, or try `ssh` by hand";
                    return Err(Failure::usage(join(message, &complaint), hint));
                }
            }
        }
    }

    /// Lets `port` here lead to the server there.
    pub(super) fn forward(&mut self, port: u16) -> Result<(), Failure> {
        let way = format!("127.0.0.1:{port}:127.0.0.1:{}", self.port);
        let output = (self.command)().args(["-O", "forward", "-L", &way]).arg(&self.host).stdin(Stdio::null()).output();
        let output = output.map_err(Error::file("ssh"))?;
        if output.status.success() {
            return Ok(());
        }
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let message = join(format!("ssh does not forward port {port} to {}", self.host), &complaint);
        Err(Failure::usage(
            message,
            "the server there may forbid it (AllowTcpForwarding), or the port is taken: try another --port",
        ))
    }

    /// Until somebody stops it here, or the connection ends.
    pub(super) fn wait(mut self) -> Result<(), Failure> {
        loop {
            if self.interrupted.recv_timeout(GLANCE).is_ok() {
                self.end();
                return Ok(());
            }
            if let Some(status) = self.ssh.try_wait().map_err(Error::file("ssh"))? {
                // Ctrl-C reaches ssh as well, and perhaps first.
                if self.interrupted.recv_timeout(Duration::from_millis(300)).is_ok() {
                    self.end();
                    return Ok(());
                }
                let complaint = self.end();
                let message = join(format!("the connection to {} ended ({status})", self.host), &complaint);
                return Err(Failure::usage(
                    message,
                    "jobs under way there are marked as interrupted; connect again to see them",
                ));
            }
        }
    }

    /// Why there is no server, from what ssh said and how it ended.
    fn failed(mut self, args: &RemoteArgs) -> Failure {
        let status = self.ssh.wait().ok().and_then(|status| status.code());
        let complaint = self.end();
        match status {
            Some(NOT_FOUND) => Failure::usage(
                join(format!("{} is not on {}", args.binary, args.host), &complaint),
                "copy the program there, or say where it is with `--binary PATH`",
            ),
            Some(255) => Failure::usage(
                join(format!("ssh does not get to {}", args.host), &complaint),
                "what works with `ssh` works here: give its options after `--`",
            ),
            _ => Failure::usage(
                join(format!("the server on {} does not start", args.host), &complaint),
                "is the program there recent enough to `serve`?",
            ),
        }
    }

    /// Ends ssh, which ends the server's input and so the server; what ssh said comes back.
    fn end(&mut self) -> String {
        drop(self.ssh.stdin.take());
        // A server finishes the kernel that it times; ssh ends with it. What never said that it is one is not waited for.
        let patience = Instant::now() + Duration::from_secs(if self.port == 0 { 1 } else { 10 });
        while Instant::now() < patience && matches!(self.ssh.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.ssh.kill();
        let _ = self.ssh.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
        let errors = std::mem::replace(&mut self.errors, thread::spawn(String::new));
        errors.join().unwrap_or_default()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end();
    }
}

/// What runs there. `exec` leaves no shell between ssh and the server.
fn server(args: &RemoteArgs) -> String {
    let measure = if args.allow_measure { " --allow-measure" } else { "" };
    format!("exec env -u ROOFLINE_TOKEN {} serve --port 0 --until-eof{measure}", quoted(&args.binary))
}

/// A word of a shell. A leading `~/` still means the home folder there.
fn quoted(word: &str) -> String {
    let (home, rest) = word.strip_prefix("~/").map_or(("", word), |rest| ("~/", rest));
    format!("{home}'{}'", rest.replace('\'', "'\\''"))
}

fn join(message: String, complaint: &str) -> String {
    if complaint.is_empty() { message } else { format!("{message}: {complaint}") }
}

/// A folder that only this user can look into, for the socket.
fn private_folder() -> std::io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    let clock =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    // Paths of sockets may have about a hundred letters, so it lies where names are short.
    let folder = PathBuf::from("/tmp").join(format!("roofline-{}-{clock:x}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
    Ok(folder)
}

/// The lines of a pipe, whatever they are written in: a greeting may come before what matters.
fn lines(pipe: impl Read) -> impl Iterator<Item = String> {
    let mut pipe = BufReader::new(pipe);
    std::iter::from_fn(move || {
        let mut line = Vec::new();
        let read = pipe.by_ref().take(LINE).read_until(b'\n', &mut line).ok().filter(|read| *read > 0);
        read.map(|_| String::from_utf8_lossy(&line).into_owned())
    })
}

/// The last of what a pipe says.
fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut text = String::new();
        for line in pipe.into_iter().flat_map(lines) {
            if !text.is_empty() {
                text.push_str("; ");
            }
            text.push_str(line.trim());
            while text.len() > COMPLAINT {
                text.remove(0);
            }
        }
        text
    })
}

/// A message when somebody presses Ctrl-C.
fn interruption() -> mpsc::Receiver<()> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() {
            runtime.block_on(crate::server::signal());
            let _ = sender.send(());
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_shell_there_whole() {
        assert_eq!(quoted("roofline"), "'roofline'");
        assert_eq!(quoted("~/bin/roof line"), "~/'bin/roof line'");
        assert_eq!(quoted("a'; rm -rf b"), r"'a'\''; rm -rf b'");
    }
}
