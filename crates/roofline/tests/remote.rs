//! `roofline remote` through a real sshd on loopback, with a port, a host key and a user's key of its own.
//!
//! Without Debian's openssh-server (or another sshd) the tests say so and pass.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// An sshd that lives as long as this does.
struct Sshd {
    process: Child,
    folder: PathBuf,
    port: u16,
}

impl Sshd {
    /// None where there is no sshd, which is said aloud.
    fn start(name: &str) -> Option<Self> {
        let program = ["/usr/sbin/sshd", "/usr/local/sbin/sshd"].into_iter().find(|path| Path::new(path).exists());
        let Some(program) = program else {
            eprintln!("SKIPPED {name}: there is no sshd (apt-get install openssh-server)");
            return None;
        };
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sshd-{name}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        for key in ["host", "user"] {
            let made =
                Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(key)).status();
            assert!(made.unwrap().success());
        }
        fs::copy(folder.join("user.pub"), folder.join("authorized_keys")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let at = |file: &str| folder.join(file).display().to_string();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\nStrictModes no\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nLogLevel ERROR\n",
            at("host"),
            at("authorized_keys")
        );
        fs::write(folder.join("config"), config).unwrap();
        // As root it wants a folder to lock itself into; without root it does without.
        let _ = fs::create_dir_all("/run/sshd");
        let log = fs::File::create(folder.join("log")).unwrap();
        let mut sshd = Command::new(program);
        sshd.arg("-D")
            .arg("-e")
            .arg("-f")
            .arg(folder.join("config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let process = sshd.spawn().unwrap();
        let patience = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
            assert!(Instant::now() < patience, "sshd does not start: {log}");
            thread::sleep(Duration::from_millis(20));
        }
        Some(Self { process, folder, port })
    }

    /// `roofline remote` towards it.
    fn remote(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roofline"));
        command.args(["remote", "127.0.0.1", "--no-open", "--timeout", "60"]).args(arguments);
        let known = format!("UserKnownHostsFile={}", self.folder.join("known").display());
        command.args([
            "--",
            "-F",
            "none",
            "-o",
            "StrictHostKeyChecking=accept-new",
            "-o",
            &known,
            "-o",
            "IdentitiesOnly=yes",
        ]);
        command.arg("-p").arg(self.port.to_string()).arg("-i").arg(self.folder.join("user"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).env("NO_COLOR", "1");
        command
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program on "the other machine": this one, with its files in a folder of its own.
fn other_machine(folder: &Path) -> String {
    let script = folder.join("roofline");
    let data = folder.join("data");
    let text = format!(
        "#!/bin/sh\nprintf 'Welcome to M\\374nchen\\n'\nROOFLINE_CONFIG_DIR='{0}' exec '{1}' \"$@\"\n",
        data.display(),
        env!("CARGO_BIN_EXE_roofline")
    );
    fs::write(&script, text).unwrap();
    let mut mode = fs::metadata(&script).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
    fs::set_permissions(&script, mode).unwrap();
    script.display().to_string()
}

fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

fn failure(mut command: Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    assert_eq!(status.code(), Some(2));
    String::from_utf8(stderr).unwrap()
}

#[test]
fn the_page_of_another_machine_is_here_until_it_is_stopped() {
    let Some(sshd) = Sshd::start("page") else { return };
    let mut remote = sshd.remote(&["--allow-measure", "--binary", &other_machine(&sshd.folder)]).spawn().unwrap();
    let mut lines = BufReader::new(remote.stdout.take().unwrap()).lines().map_while(Result::ok);
    let Some(first) = lines.next() else {
        let mut why = String::new();
        remote.stderr.take().unwrap().read_to_string(&mut why).unwrap();
        panic!("nothing was announced: {why}");
    };
    let port: u16 = first.strip_prefix("roofline remote: http://127.0.0.1:").unwrap().parse().unwrap();
    assert!(lines.next().unwrap().contains("jobs may run kernels there"));
    // The far server answers under the near name, and knows that it may measure.
    let health = get(port, "/api/health").unwrap();
    assert!(health.starts_with("HTTP/1.1 200") && health.contains("\"allow_measure\":true"), "{health}");
    assert!(get(port, "/").unwrap().starts_with("HTTP/1.1 200"));
    let stopped = Command::new("kill").args(["-INT", &remote.id().to_string()]).status().unwrap();
    assert!(stopped.success() && remote.wait().unwrap().success());
    // Both ends are gone.
    assert!(get(port, "/api/health").is_none());
    let left = Command::new("pgrep").args(["-f", &format!("{}.*until-eof", sshd.folder.display())]).output();
    assert!(left.is_ok_and(|left| left.stdout.is_empty()));
}

#[test]
fn what_goes_wrong_is_told() {
    let Some(sshd) = Sshd::start("wrong") else { return };
    let missing = failure(sshd.remote(&["--binary", "/nowhere/roofline"]));
    assert!(
        missing.contains("/nowhere/roofline is not on 127.0.0.1") && missing.contains("--binary PATH"),
        "{missing}"
    );
    // A program that is no server.
    let silent = failure(sshd.remote(&["--binary", "true"]));
    assert!(silent.contains("does not start"), "{silent}");
    // A program of another version.
    let other = sshd.folder.join("old");
    let health = r#"{"version":"0.0.1","commit":"abc","gpu":null}"#;
    let script = format!(
        "#!/usr/bin/env python3\nimport http.server, sys\nclass H(http.server.BaseHTTPRequestHandler):\n    def do_GET(self):\n        \
         body = b'{health}'\n        self.send_response(200)\n        self.send_header('Content-Length', str(len(body)))\n        \
         self.end_headers()\n        self.wfile.write(body)\n    protocol_version = 'HTTP/1.1'\n    def log_message(self, *a): pass\n\
         s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), H)\nprint('roofline serve: http://127.0.0.1:%d' % s.server_port, flush=True)\n\
         import threading\nthreading.Thread(target=s.serve_forever, daemon=True).start()\nsys.stdin.read()\n"
    );
    fs::write(&other, script).unwrap();
    let mut mode = fs::metadata(&other).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
    fs::set_permissions(&other, mode).unwrap();
    let old = failure(sshd.remote(&["--binary", &other.display().to_string()]));
    assert!(old.contains("has roofline 0.0.1 (abc), and here is") && old.contains("--any-version"), "{old}");
    // A port that is taken here.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let busy = failure(sshd.remote(&["--port", &port, "--binary", "true"]));
    assert!(busy.contains(&format!("cannot listen on port {port} here")), "{busy}");
    // A key that is not known there.
    fs::write(sshd.folder.join("authorized_keys"), "").unwrap();
    let refused = failure(sshd.remote(&[]));
    assert!(refused.contains("ssh does not get to 127.0.0.1") && refused.contains("Permission denied"), "{refused}");
}

#[test]
fn a_lost_connection_ends_the_server_there() {
    let Some(sshd) = Sshd::start("lost") else { return };
    let mut remote = sshd.remote(&["--binary", &other_machine(&sshd.folder)]).spawn().unwrap();
    let mut lines = BufReader::new(remote.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.next().unwrap().starts_with("roofline remote: "));
    remote.kill().unwrap();
    remote.wait().unwrap();
    // The ssh that it left behind lost its input, so the server's input ends too.
    let patience = Instant::now() + Duration::from_secs(30);
    let pattern = format!("{}.*until-eof", sshd.folder.display());
    while Command::new("pgrep").args(["-f", &pattern]).output().is_ok_and(|left| !left.stdout.is_empty()) {
        assert!(Instant::now() < patience, "the server there goes on");
        thread::sleep(Duration::from_millis(50));
    }
}
