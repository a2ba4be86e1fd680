import { expect, serve, test } from "./fixtures";
import { Server } from "./server";

test.describe("the null backend", () => {
  test("checks a product in one precision and in all", async ({ clean: page }) => {
    await page.goto("/?tab=kernel&backend=null");
    await expect(page.locator(".point.predicted")).toHaveCount(1);
    await page.getByRole("button", { name: "Decode" }).click();
    await page.getByLabel(/all of FP16/).check();
    await expect(page.locator(".point.predicted")).toHaveCount(5);
    await page.getByRole("button", { name: "Analyze GEMM" }).click();
    await expect(page.getByRole("status")).toContainText("Done");
    const rows = page.getByRole("region", { name: "Results" }).locator("tbody tr");
    await expect(rows).toHaveCount(5);
    await expect(page.locator(".point.measured")).toHaveCount(5);
    await expect(rows.first()).toContainText("native");
    const rings = await page.locator(".point.measured .mark").evaluateAll((marks) => marks.map((mark) => getComputedStyle(mark).fill));
    expect(new Set(rings)).toEqual(new Set(["none"]));
    await page.reload();
    await expect(page.locator(".point.measured")).toHaveCount(5);
    await page.getByRole("button", { name: "Clear 5 measured" }).click();
    await expect(page.locator(".point.measured")).toHaveCount(0);
  });

  test("shows times of the product that was measured only", async ({ clean: page }) => {
    await page.goto("/?tab=kernel&backend=null");
    await page.getByRole("button", { name: "Analyze GEMM" }).click();
    await expect(page.getByRole("status")).toContainText("Done");
    const results = page.getByRole("region", { name: "Results" });
    await expect(results).toContainText("Measured");
    await page.getByRole("button", { name: "Decode" }).click();
    await expect(results).not.toContainText("Measured");
    await expect(results.locator("tbody tr").first()).toContainText("memory");
  });

  test("measures no device at rates of one's own in silence", async ({ clean: page }) => {
    await page.goto("/?tab=kernel&backend=null&bw=100");
    const sent = page.waitForRequest((request) => request.method() === "POST" && request.url().endsWith("/api/jobs"));
    await page.getByRole("button", { name: "Analyze GEMM" }).click();
    expect((await sent).postDataJSON()).toMatchObject({ on: "h200_sxm", bandwidth: "100GB/s" });
    await page.getByRole("button", { name: "Back to preset" }).click();
    await expect(page.getByRole("button", { name: "Analyze GEMM" })).toBeEnabled();
    await page.getByRole("button", { name: "Analyze GEMM" }).click();
    await expect(page.getByRole("status")).toContainText("Done");
  });

  test("runs a benchmark, keeps the job, and adds points to the roofline", async ({ clean: page }) => {
    await page.goto("/?tab=benchmark&backend=null&bp=fp16,bf16");
    await page.getByRole("button", { name: "Run benchmarks" }).click();
    const rows = page.getByRole("region", { name: "Measured kernels" }).locator("tbody tr");
    await expect(rows).toHaveCount(6);
    await expect(page.getByRole("status")).toContainText("Done");
    await page.getByRole("button", { name: "Add to the roofline" }).first().click();
    const jobs = page.getByRole("region", { name: "Jobs", exact: true });
    await expect(jobs).toContainText("done");
    await page.getByRole("link", { name: "Roofline" }).click();
    await expect(page.locator(".point.measured")).toHaveCount(6);
    await page.getByRole("link", { name: "Benchmark" }).click();
    await page.reload();
    await jobs.getByRole("button", { name: "Show" }).first().click();
    await expect(rows).toHaveCount(6);
    const before = await jobs.locator("tbody tr").count();
    await jobs.getByRole("button", { name: "Forget" }).first().click();
    await jobs.getByRole("button", { name: "Keep" }).click();
    await expect(jobs.locator("tbody tr")).toHaveCount(before);
    await jobs.getByRole("button", { name: "Forget" }).first().click();
    await jobs.getByRole("button", { name: "Remove its results" }).click();
    await expect(jobs.locator("tbody tr")).toHaveCount(before - 1);
  });
});

test.describe("the processor", () => {
  test.setTimeout(240_000);

  test("measures a product on this machine", async ({ clean: page, allowed }) => {
    allowed.push(/status of 409/);
    await page.goto("/?tab=kernel&backend=cpu&gemm=16x512x512&kp=bf16");
    await page.getByRole("button", { name: "Analyze GEMM" }).click();
    await expect(page.getByRole("status")).toContainText("Done", { timeout: 200_000 });
    await expect(page.locator(".point.measured")).toHaveCount(1);
    await expect(page.getByRole("region", { name: "Results" }).locator("tbody tr").first()).toContainText("%");
  });

  test("stops a job that is cancelled", async ({ clean: page }) => {
    await page.goto("/?tab=benchmark&backend=cpu&bp=fp32,bf16&shapes=prefill,square");
    await page.getByRole("button", { name: "Run benchmarks" }).click();
    await expect(page.getByRole("status")).toContainText("Running");
    await page.getByRole("button", { name: "Cancel" }).first().click();
    await expect(page.getByRole("status")).toContainText("Cancelled", { timeout: 60_000 });
    await expect(page.getByRole("button", { name: "Run benchmarks" })).toBeEnabled();
  });
});

const LONG = { verb: "sweep", measure: true, shapes: ["4096x4096x4096", "2048x4096x4096"], precision: ["fp32", "bf16"], backend: "cpu" };

async function startLong(url: string): Promise<string> {
  const answer = await fetch(`${url}/api/jobs`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(LONG) });
  return ((await answer.json()) as { id: string }).id;
}

test("takes up a job that runs when the page is opened; cancelling one that has ended deletes nothing", async ({ page }) => {
  const server = await Server.start();
  await serve(page, server.url);
  const id = await startLong(server.url);
  const sent: string[] = [];
  page.on("request", (request) => sent.push(`${request.method()} ${new URL(request.url()).pathname}`));
  await page.route(`**/api/jobs/${id}/cancel`, (route) => route.fulfill({ status: 409, json: { detail: "the job has ended", hint: null } }));
  await page.goto(`${server.url}/?tab=benchmark`);
  await expect(page.getByRole("status")).toContainText("Running");
  await expect(page.getByRole("button", { name: "Run benchmarks" })).toBeDisabled();
  const row = page.getByRole("region", { name: "Jobs", exact: true }).locator("tbody tr").first();
  await expect(row).toContainText("running");
  const follows = () => sent.filter((line) => line === `GET /api/jobs/${id}/events`).length;
  expect(follows()).toBe(1);
  await page.getByRole("button", { name: "Cancel" }).first().click();
  await expect.poll(follows).toBe(2);
  await row.getByRole("button", { name: "Cancel" }).click();
  await expect.poll(follows).toBe(3);
  await row.getByRole("button", { name: "Follow" }).click();
  await expect.poll(follows).toBe(4);
  expect(sent.filter((line) => line.startsWith("DELETE"))).toEqual([]);
  expect(sent).toContain(`POST /api/jobs/${id}/cancel`);
  await server.stop();
});

for (const signal of ["SIGTERM", "SIGKILL"] as const) {
  test(`finds its job again after ${signal} of the server`, async ({ page }) => {
    const first = await Server.start();
    const { port, state } = first;
    await serve(page, first.url);
    await page.goto(`${first.url}/?tab=benchmark&backend=cpu&bp=fp32,bf16&shapes=prefill,square`);
    await page.getByRole("button", { name: "Run benchmarks" }).click();
    await expect(page.getByRole("status")).toContainText("Running");
    await first.stop(true, signal);
    await expect(page.getByRole("status")).toContainText("Out of sight");
    const second = await Server.start({ port, folder: state });
    await expect(page.getByRole("status")).toContainText("Interrupted");
    await expect(page.getByRole("alert")).toHaveCount(0);
    await expect(page.getByRole("button", { name: "Run benchmarks" })).toBeEnabled();
    await expect(page.getByRole("region", { name: "Jobs", exact: true }).locator("tbody tr").first()).toContainText("interrupted");
    await second.stop();
  });
}

test("says how to allow measuring", async ({ clean: page, server }) => {
  await page.route("**/api/health", async (route) => {
    const answer = await route.fetch();
    await route.fulfill({ response: answer, json: { ...((await answer.json()) as object), allow_measure: false } });
  });
  void server;
  await page.goto("/?tab=benchmark");
  await expect(page.getByRole("heading", { name: "Measuring is off on this server" })).toBeVisible();
  await page.getByRole("link", { name: "Kernel" }).click();
  await expect(page.locator(".notice")).toContainText("roofline serve --allow-measure");
  await expect(page.locator(".point.predicted")).toHaveCount(1);
});

test("goes on when the server comes back", async ({ page }) => {
  const first = await Server.start({ measure: false });
  const { port, state } = first;
  await serve(page, first.url);
  await page.goto(first.url);
  await expect(page.locator(".point.total")).toHaveCount(1);
  await first.stop(true);
  await page.getByRole("button", { name: "Prefill" }).click();
  await expect(page.getByRole("alert")).toContainText("The server does not answer");
  await expect(page.locator(".point.total")).toHaveCount(1);
  const second = await Server.start({ measure: false, port, folder: state });
  await page.getByRole("button", { name: "Try now" }).click();
  await expect(page.getByRole("alert")).toHaveCount(0);
  await expect(page.locator('.strip dt:text-is("Bound by") + dd')).toContainText("COMPUTE");
  await second.stop();
});

test("asks for the token of a server that has one", async ({ page, context }) => {
  const token = "0123456789abcdef0123456789abcdef";
  const server = await Server.start({ measure: false, token });
  await serve(page, server.url);
  await page.goto(server.url);
  await expect(page.getByText("This server asks for a token")).toBeVisible();
  await expect(page.getByText("The server refused this token.")).toHaveCount(0);
  await page.getByLabel("Token", { exact: true }).fill("not the right one at all");
  await page.getByRole("button", { name: "Enter" }).click();
  await expect(page.getByText("The server refused this token.")).toBeVisible();
  await expect(page.getByLabel("Token", { exact: true })).toHaveAttribute("aria-invalid", "true");
  await page.getByLabel("Token", { exact: true }).fill(token);
  await page.getByRole("button", { name: "Enter" }).click();
  await expect(page.locator(".point.total")).toHaveCount(1);
  await expect(page.getByText("This server asks for a token")).toHaveCount(0);
  await page.goto(`${server.url}/?tab=formats#token=${token}`);
  await expect(page.getByRole("region", { name: "All formats, table" })).toBeVisible();
  expect(page.url()).toBe(`${server.url}/?tab=formats`);
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await page.getByRole("button", { name: "Copy link" }).click();
  await expect(page.getByText("Copied")).toBeVisible();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toBe(`${server.url}/?tab=formats`);
  await server.stop();
});
