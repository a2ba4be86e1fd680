import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { expect, expectAccessible, test } from "./fixtures";

test("opens every tab from the header and by its address", async ({ clean: page, allowed }) => {
  allowed.push(/status of 409/);
  await page.goto("/");
  for (const [name, tab] of [["Kernel", "kernel"], ["Benchmark", "benchmark"], ["Recommend", "recommend"], ["Formats", "formats"], ["Compare", "compare"], ["GPU", "gpu"]] as const) {
    await page.getByRole("navigation").getByRole("link", { name }).click();
    await expect(page).toHaveURL(new RegExp(`tab=${tab}`));
    await expect(page.getByRole("heading", { level: 1, name })).toBeAttached();
    await expect(page.getByRole("link", { name })).toHaveAttribute("aria-current", "page");
  }
  await page.goBack();
  await expect(page.getByRole("heading", { level: 1, name: "Compare" })).toBeAttached();
});

test("recommends within limits, with reasons and commands", async ({ clean: page, context, allowed }) => {
  allowed.push(/status of 4\d\d/);
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await page.goto("/?tab=recommend");
  const plans = page.getByRole("region", { name: "Ranked plans" });
  const choice = page.locator(".verdict h2");
  await expect(choice).toHaveText(/q[46]_k|int4|fp4|w4a16/);
  const first = (await choice.textContent())!;
  await expect(plans.locator("tbody tr").nth(1).locator(".why")).not.toBeEmpty();
  await expect(page.locator(".variations li")).toHaveCount(4);
  await expect(page.locator(".dot")).not.toHaveCount(0);
  await expect(page.locator(".heat td")).toHaveCount(9);
  await page.locator(".verdict").getByRole("button", { name: "Copy" }).first().click();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toContain("roofline quantize");
  // Less than what any plan of few bits costs.
  await page.getByLabel("Perplexity may rise by").fill("0.1%");
  await expect(choice).not.toHaveText(first);
  await page.getByRole("button", { name: /Show all/ }).click();
  await expect(page).toHaveURL(/plans=all/);
  await expect(plans).toContainText("perplexity");
  await page.getByLabel("Memory may be used up to").fill("1GB");
  await expect(page.locator(".verdict")).toContainText(/nothing fits|Nothing keeps/);
  await page.getByLabel("Memory may be used up to").fill("many");
  await expect(page.getByRole("alert")).toContainText("many");
  await expect(page).toHaveURL(/loss=0.1%25.*mem=many/);
  await expect(page.getByLabel("Memory may be used up to")).toHaveAttribute("aria-invalid", "true");
  await page.getByLabel("Memory may be used up to").fill("");
  await expect(page.getByRole("alert")).toHaveCount(0);
  // A size to aim at leaves out what takes more, and the two ways to say one cannot both hold.
  await page.getByLabel("Perplexity may rise by").fill("");
  await page.getByLabel("Bits for each weight, at most").fill("5.2");
  await expect(plans).toContainText("bits for each weight, and 5.2 are aimed at");
  await page.getByLabel("Weights may take").fill("5GB");
  await expect(page.getByLabel("Weights may take")).toHaveAttribute("aria-invalid", "true");
  await page.getByLabel("Bits for each weight, at most").fill("");
  await expect(page.getByRole("alert")).toHaveCount(0);
  await expect(plans).toContainText("and 5 GB are aimed at");
  await page.getByLabel("Weights may take").fill("");
  await page.getByLabel("Perplexity may rise by").fill("0.1%");
  const rate = page.getByLabel("Tokens per second, at least");
  await rate.fill("30 tok/s");
  await expect(rate).toHaveAccessibleDescription(/30 tok\/s.*number/);
  await expectAccessible(page);
  await rate.fill("30");
  await expect(rate).toHaveAttribute("aria-invalid", "false");
  await plans.getByRole("button", { name: "Memory" }).click();
  await expect(page).toHaveURL(/psort=-memory/);
  const seen = await plans.locator("tbody th").allTextContents();
  await page.reload();
  await expect(plans.getByRole("columnheader", { name: "Memory" })).toHaveAttribute("aria-sort", "descending");
  await expect(plans.locator("tbody th")).toHaveText(seen);
});

test("refuses a price that is no number, wherever it comes from", async ({ clean: page, allowed }) => {
  allowed.push(/status of 4\d\d/);
  await page.goto("/?tab=recommend&price=2,50");
  const price = page.getByLabel("Dollars per hour of the device");
  await expect(price).toHaveAccessibleDescription(/2,50/);
  await price.fill("2.50");
  await expect(price).toHaveAttribute("aria-invalid", "false");
  await expect(page.locator(".verdict h2")).toBeVisible();
});

test("explains formats", async ({ clean: page }) => {
  await page.goto("/?tab=formats");
  const table = page.getByRole("region", { name: "All formats, table" });
  await expect(table.locator("tbody tr")).toHaveCount(38);
  await expect(page.getByRole("img", { name: /^15 codes: −6, −4/ }).first()).toBeVisible();
  await table.getByRole("button", { name: "mxfp4", exact: true }).click();
  await expect(page.getByRole("region", { name: "One format" })).toContainText("E8M0 per block");
  await expect(page).toHaveURL(/format=mxfp4/);
  await table.getByRole("button", { name: "Gaussian" }).click();
  await expect(table.locator("tbody th").first()).toContainText("int2-g64");
  await expect(page).toHaveURL(/fsort=-error/);
});

test("compares measurements made elsewhere", async ({ clean: page }) => {
  await page.goto("/?tab=compare");
  await page.getByRole("button", { name: "Use example" }).click();
  const rows = page.getByRole("region", { name: "Comparisons" }).locator("tbody tr");
  await expect(rows).toHaveCount(7);
  await expect(page.getByRole("status")).toContainText("7 read");
  await expect(rows.first().locator(".tag")).toHaveText(/[+−]\d/);
  // A colour is the server's grade: 9.07 us where 9.48 were expected is 4 % off.
  await expect(rows.first().locator(".tag")).toHaveClass(/good/);
  await expect(page.locator("main")).toContainText("the prediction was off by");
  await page.getByRole("region", { name: "Comparisons" }).getByRole("button", { name: "Error" }).click();
  await expect(page).toHaveURL(/csort=-error/);
  await page.getByLabel("CSV or JSON").fill("m,n,k,precision,time_us\n1,4096,4096,bf16,10\n1,0,0,bf16,3");
  await page.getByRole("button", { name: "Validate and compare" }).click();
  await expect(page.getByRole("status")).toContainText("1 read, 1 refused");
  await expect(page.getByRole("status")).toContainText("Line 3");
  await expect(rows).toHaveCount(1);
  await expect(page.getByRole("list", { name: "Slow kernels" })).toHaveCount(0);
  await page.getByRole("button", { name: "Add to the roofline" }).click();
  await page.getByRole("link", { name: "Roofline" }).click();
  await expect(page.locator(".point.measured")).toHaveCount(1);
  await page.getByRole("button", { name: "clear 1" }).click();
  await expect(page.locator(".point.measured")).toHaveCount(0);
  await page.getByRole("link", { name: "Compare" }).click();
  await page.getByLabel("CSV or JSON").fill("{not json");
  await page.getByRole("button", { name: "Validate and compare" }).click();
  await expect(page.getByRole("status")).toContainText("Invalid JSON");
});

test("names slow kernels", async ({ clean: page }) => {
  await page.goto("/?tab=compare");
  // A tenth of the roof of an H200's 16-bit units.
  await page.getByRole("button", { name: "Use example" }).click();
  await page.getByLabel("CSV or JSON").fill("m,n,k,precision,time_us\n8192,8192,8192,bf16,11117");
  await page.getByRole("button", { name: "Validate and compare" }).click();
  await expect(page.getByRole("list", { name: "Slow kernels" })).toContainText("gemm 8192 x 8192 x 8192 bf16: 10 % of its roof");
  await expect(page.locator("main")).toContainText("INVESTIGATE");
});

const TRACE = fileURLToPath(new URL("../../crates/roofline-verbs/src/trace/fixtures/gpu.json", import.meta.url));

test("reads the trace of a profiler", async ({ clean: page, allowed, server }) => {
  allowed.push(/status of 4\d\d/);
  await page.goto("/?tab=compare");
  const choose = page.getByLabel("Trace", { exact: true });
  await choose.setInputFiles(TRACE);
  const operators = page.getByRole("region", { name: "Operators of the trace" });
  await expect(operators.locator("tbody tr").first()).toContainText("aten::");
  await expect(page.getByRole("heading", { name: "gpu.json" })).toBeVisible();
  await expect(page.locator("main")).toContainText("NVIDIA H200");
  // What is shown is what the server says, row by row.
  const sent = await fetch(`${server.url}/api/trace?name=gpu.json`, { method: "POST", headers: { "content-type": "application/json" }, body: readFileSync(TRACE) });
  const told = ((await sent.json()) as { trace: { operators: { operator: string; bound: string | null }[]; first: string[] } }).trace;
  await expect(operators.locator("tbody th")).toHaveText(told.operators.map(({ operator }) => operator));
  await expect(operators.locator("tbody td:nth-child(6)")).toHaveText(told.operators.map(({ bound }) => bound ?? "–"));
  await expect(page.getByRole("list", { name: "What to do first" }).locator("li")).toHaveText(told.first);
  await expect(page.locator(".dot")).not.toHaveCount(0);
  await operators.getByRole("button", { name: "Of roof" }).click();
  await expect(operators.getByRole("columnheader", { name: /Of roof/ })).toHaveAttribute("aria-sort", "descending");
  await expectAccessible(page);
  // Another device has another roof.
  const before = await operators.locator("tbody tr").first().textContent();
  await page.getByLabel("Recorded on").selectOption("a100_sxm_80gb");
  await expect(page.locator("main")).toContainText("A100");
  await expect(operators.locator("tbody tr").first()).not.toHaveText(before!);
  // What is no trace is refused in the server's words, and the next one is read all the same.
  await choose.setInputFiles({ name: "notes.json", mimeType: "application/json", buffer: Buffer.from("{}") });
  await expect(page.getByRole("alert")).toContainText("notes.json");
  await choose.setInputFiles(TRACE);
  await expect(page.getByRole("alert")).toHaveCount(0);
  await expect(operators.locator("tbody tr").first()).toContainText("aten::");
  // Keyboard and telephone.
  await choose.focus();
  await expect(choose).toBeFocused();
  await page.setViewportSize({ width: 390, height: 844 });
  expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);
  await expectAccessible(page);
  await page.emulateMedia({ colorScheme: "dark" });
  await expectAccessible(page);
  // Measurements that are pasted take its place.
  await page.setViewportSize({ width: 1440, height: 900 });
  await page.getByRole("button", { name: "Use example" }).click();
  await expect(page.getByRole("region", { name: "Comparisons" }).locator("tbody tr")).toHaveCount(7);
  await expect(operators).toHaveCount(0);
});

test("draws what a GPU says of itself", async ({ clean: page }) => {
  const look = (power: number) => ({ device_name: "NVIDIA H200", compute_capability: [9, 0], driver_version: "580.159.04", sm_clock_mhz: 1710, sm_clock_max_mhz: 1980, mem_clock_mhz: 3201, mem_clock_max_mhz: 3201, power_draw_w: power, power_limit_w: 700, temperature_c: 61, temperature_throttle_c: 87, mem_total_mb: 143771, mem_used_mb: 18211, gpu_utilization_pct: 100, throttle_reasons: ["sw_power_cap"] });
  const body = [300, 520, 690, 698].map((power) => `data: ${JSON.stringify(look(power))}\n\n`).join("");
  await page.route("**/api/health", async (route) => {
    const answer = await route.fetch();
    await route.fulfill({ response: answer, json: { ...((await answer.json()) as object), nvml: true } });
  });
  await page.route("**/api/nvml/stream", (route) => route.fulfill({ contentType: "text/event-stream", body }));
  await page.goto("/?tab=gpu");
  await expect(page.getByRole("heading", { name: "NVIDIA H200" })).toBeVisible();
  await expect(page.locator(".gauge")).toHaveCount(6);
  await expect(page.locator(".gauge").first()).toContainText("698 W");
  await expect(page.locator("main")).toContainText("at its power limit");
});

test("says that there is no GPU, and asks nothing of its driver", async ({ clean: page, server }) => {
  const asked: string[] = [];
  page.on("request", (request) => asked.push(new URL(request.url()).pathname));
  const health = (await (await fetch(`${server.url}/api/health`)).json()) as { nvml: boolean };
  await page.goto("/?tab=gpu");
  if (health.nvml) await expect(page.locator(".gauge")).toHaveCount(6);
  else {
    await expect(page.getByRole("heading", { name: "No GPU is seen from the server" })).toBeVisible();
    expect(asked.filter((path) => path.includes("nvml"))).toEqual([]);
  }
});
