/** A page that fails its test by any error on the console and any request that leaves the server. */

import { readFileSync } from "node:fs";
import { dirname, extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import AxeBuilder from "@axe-core/playwright";
import { expect, test as base, type Page } from "@playwright/test";
import { Server } from "./server";

interface Tests {
  readonly clean: Page;
  /** What the page may complain about in this test, such as a server that is gone. */
  readonly allowed: RegExp[];
}

interface Workers {
  readonly server: Server;
}

export const test = base.extend<Tests, Workers>({
  server: [
    async ({}, use) => {
      const server = await Server.start();
      await use(server);
      await server.stop();
    },
    { scope: "worker" },
  ],
  baseURL: async ({ server }, use) => use(server.url),
  allowed: async ({}, use) => use([]),
  clean: async ({ page, server, allowed }, use) => {
    const complaints: string[] = [];
    page.on("console", (message) => {
      if (message.type() === "error" || message.type() === "warning") complaints.push(`${message.type()}: ${message.text()} ${message.location().url}`);
    });
    page.on("pageerror", (error) => complaints.push(`uncaught: ${error.message}`));
    page.on("request", (request) => {
      const { origin, protocol } = new URL(request.url());
      if (protocol !== "blob:" && protocol !== "data:" && origin !== new URL(server.url).origin) complaints.push(`left the server: ${request.url()}`);
    });
    await serve(page, server.url);
    await use(page);
    expect(complaints.filter((complaint) => !allowed.some((pattern) => pattern.test(complaint)))).toEqual([]);
  },
});

export { expect };

const KINDS: Readonly<Record<string, string>> = { ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2" };

/** The page from `ROOFLINE_PAGE` instead of the program, under the program's own headers: no build of the program for a change of the page. */
export async function serve(page: Page, url: string): Promise<void> {
  const folder = process.env["ROOFLINE_PAGE"];
  if (!folder) return;
  const root = join(dirname(fileURLToPath(import.meta.url)), "..", folder);
  const policy = (await fetch(url)).headers.get("content-security-policy") ?? "default-src 'self'";
  await page.route(
    (address) => address.origin === url && !address.pathname.startsWith("/api"),
    async (route) => {
      const path = new URL(route.request().url()).pathname;
      const name = path === "/" ? "index.html" : path.slice(1);
      await route.fulfill({ body: readFileSync(join(root, name)), headers: { "content-type": KINDS[extname(name)] ?? "application/octet-stream", "content-security-policy": policy } });
    },
  );
}

/** No serious finding of axe on what is shown. */
export async function expectAccessible(page: Page): Promise<void> {
  // Colours on their way from one to another are no colours to be judged.
  await page.evaluate(async () => {
    const ending = document.getAnimations().filter((one) => one.effect?.getComputedTiming().iterations !== Infinity);
    await Promise.allSettled(ending.map((one) => one.finished));
  });
  const { violations } = await new AxeBuilder({ page }).withTags(["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]).analyze();
  const grave = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  expect(grave.map(({ id, nodes }) => `${id}: ${nodes.map(({ target, failureSummary }) => `${target.join(" ")} ${failureSummary ?? ""}`).join(" | ")}`)).toEqual([]);
}
