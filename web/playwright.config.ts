import { defineConfig } from "@playwright/test";

/** Drives the page of a real server: `ROOFLINE_BIN` is the program, Debian's Chromium the browser. */
export default defineConfig({
  testDir: "e2e",
  // one server and one machine to measure on: tests wait for each other
  workers: 1,
  fullyParallel: false,
  timeout: 60_000,
  expect: { timeout: 15_000 },
  retries: 0,
  reporter: [["list"]],
  use: {
    viewport: { width: 1440, height: 900 },
    launchOptions: {
      executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium",
      args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
    },
  },
});
