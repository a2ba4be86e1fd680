/** A server of its own for the tests: any free port, an empty data folder, stopped at the end. */

import { spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export class Server {
  private constructor(
    private readonly process: ChildProcess,
    private readonly folder: string,
    readonly url: string,
  ) {}

  static async start({ port = 0, measure = true, token = "", folder = mkdtempSync(join(tmpdir(), "roofline-e2e-")) } = {}): Promise<Server> {
    const program = process.env["ROOFLINE_BIN"];
    if (!program) throw new Error("ROOFLINE_BIN names no program: build it, then ROOFLINE_BIN=target/release/roofline npm run e2e");
    const args = ["serve", "--port", String(port), "--state", join(folder, "jobs"), ...(measure ? ["--allow-measure"] : []), ...(token ? ["--token", token] : [])];
    const child = spawn(program, args, { env: { ...process.env, XDG_DATA_HOME: folder, XDG_CONFIG_HOME: folder, HOME: folder }, stdio: ["ignore", "pipe", "pipe"] });
    const url = await new Promise<string>((resolve, reject) => {
      let said = "";
      const listen = (piece: Buffer) => {
        said += piece.toString();
        const found = /http:\/\/127\.0\.0\.1:\d+/.exec(said);
        if (found) resolve(found[0]);
      };
      child.stdout.on("data", listen);
      child.stderr.on("data", listen);
      child.on("exit", (code) => reject(new Error(`the server ended with ${code}: ${said}`)));
      setTimeout(() => reject(new Error(`the server said no address: ${said}`)), 20_000).unref();
    });
    return new Server(child, folder, url);
  }

  get port(): number {
    return Number(new URL(this.url).port);
  }

  get state(): string {
    return this.folder;
  }

  /** Ends the process; the folder stays where somebody starts another on it. */
  async stop(keep = false, signal: "SIGTERM" | "SIGKILL" = "SIGTERM"): Promise<void> {
    if (this.process.exitCode === null && this.process.signalCode === null) {
      const gone = new Promise((resolve) => this.process.once("exit", resolve));
      this.process.kill(signal);
      const timer = setTimeout(() => this.process.kill("SIGKILL"), 10_000);
      await gone;
      clearTimeout(timer);
    }
    if (!keep) rmSync(this.folder, { recursive: true, force: true });
  }
}
