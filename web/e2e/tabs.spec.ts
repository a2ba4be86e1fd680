import { expect, test } from "./fixtures";

test("opens every tab from the header and by its address", async ({ clean: page, allowed }) => {
  allowed.push(/status of 503/, /status of 409/);
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
  await expect(page.locator(".verdict h2")).toHaveText("w4a16");
  await expect(plans.locator("tbody tr").nth(1)).toContainText("slower");
  await expect(page.locator(".dot")).not.toHaveCount(0);
  await expect(page.locator(".heat td")).toHaveCount(9);
  await page.locator(".verdict").getByRole("button", { name: "Copy" }).first().click();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toContain("roofline quantize");
  await page.getByLabel("Perplexity may rise by").fill("1%");
  await expect(page.locator(".verdict h2")).not.toHaveText("w4a16");
  await page.getByRole("button", { name: /Show all/ }).click();
  await expect(plans).toContainText("perplexity");
  await page.getByLabel("Memory may be used up to").fill("1GB");
  await expect(page.locator(".verdict")).toContainText(/nothing fits|Nothing keeps/);
  await page.getByLabel("Memory may be used up to").fill("many");
  await expect(page.getByRole("alert")).toContainText("many");
  await expect(page).toHaveURL(/loss=1%25.*mem=many/);
});

test("explains formats", async ({ clean: page }) => {
  await page.goto("/?tab=formats");
  const table = page.getByRole("region", { name: "All formats, table" });
  await expect(table.locator("tbody tr")).toHaveCount(26);
  await expect(page.getByRole("img", { name: /^15 codes: −6, −4/ }).first()).toBeVisible();
  await table.getByRole("button", { name: "mxfp4", exact: true }).click();
  await expect(page.getByRole("region", { name: "One format" })).toContainText("E8M0 per block");
  await expect(page).toHaveURL(/format=mxfp4/);
  await table.getByRole("button", { name: "Gaussian" }).click();
  await expect(table.locator("tbody th").first()).toContainText("int2-g64");
});

test("compares measurements made elsewhere", async ({ clean: page }) => {
  await page.goto("/?tab=compare");
  await page.getByRole("button", { name: "Use example" }).click();
  const rows = page.getByRole("region", { name: "Comparisons" }).locator("tbody tr");
  await expect(rows).toHaveCount(7);
  await expect(page.getByRole("status")).toContainText("7 read");
  await expect(rows.first().locator(".tag")).toHaveText(/[+−]\d/);
  await page.getByLabel("CSV or JSON").fill("m,n,k,precision,time_us\n1,4096,4096,bf16,10\n1,0,0,bf16,3");
  await page.getByRole("button", { name: "Validate and compare" }).click();
  await expect(page.getByRole("status")).toContainText("1 read, 1 refused");
  await expect(page.getByRole("status")).toContainText("Line 3");
  await expect(rows).toHaveCount(1);
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

test("says that there is no GPU", async ({ clean: page, server, allowed }) => {
  allowed.push(/status of 503/);
  const health = (await (await fetch(`${server.url}/api/health`)).json()) as { nvml: boolean };
  await page.goto("/?tab=gpu");
  if (health.nvml) await expect(page.locator(".gauge")).toHaveCount(6);
  else await expect(page.getByRole("heading", { name: "No GPU is seen from the server" })).toBeVisible();
});
