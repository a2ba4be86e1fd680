import { readFileSync } from "node:fs";
import { expect, test } from "./fixtures";

const summary = (name: string) => `.strip dt:text-is("${name}") + dd`;

test("shows a model on a device at once", async ({ clean: page }) => {
  await page.goto("/");
  await expect(page.getByRole("group", { name: "Roofline of Llama 3 8B on H200 SXM5 141GB" })).toBeVisible();
  await expect(page.locator(".strip > div")).toHaveCount(8);
  await expect(page.locator(summary("Bound by"))).toContainText("MEMORY");
  await expect(page.locator(".point.operator")).toHaveCount(6);
  await expect(page.locator(".point.total")).toHaveCount(1);
  await expect(page.locator(".roof-label")).not.toHaveCount(0);
  await expect(page.getByRole("region", { name: "Operators, table" }).getByRole("row")).toHaveCount(8);
  await expect(page.getByRole("region", { name: "What to do" })).toContainText("as fast as 16 bit");
});

test("answers sliders, and the address shows the same view again", async ({ clean: page }) => {
  await page.goto("/");
  const time = page.locator(".strip dd").first();
  const before = await time.textContent();
  await page.getByRole("slider", { name: /Batch/ }).focus();
  for (let press = 0; press < 7; press += 1) await page.keyboard.press("ArrowRight");
  await expect(page.getByRole("slider", { name: /Batch/ })).toHaveAttribute("aria-valuetext", "8");
  await expect(time).not.toHaveText(before!);
  await page.getByRole("button", { name: "Prefill" }).click();
  await page.getByLabel("Precision").selectOption("fp8");
  await expect(page).toHaveURL(/p=fp8.*phase=prefill.*batch=8/);
  await expect(page.locator(summary("Bound by"))).toContainText("COMPUTE");
  // the answer for bf16 is bound by compute, too: only that for fp8, at twice the peak, has its ridge here
  await expect(page.locator(".strip")).toContainText("ridge at 412 FLOP/B");
  const shown = await page.locator(".strip").innerText();
  await page.reload();
  await expect(page.locator(".strip")).toHaveText(shown, { useInnerText: true });
  await expect(page.getByRole("slider", { name: /Batch/ })).toHaveAttribute("aria-valuetext", "8");
});

test("makes a device of its own from sliders, and goes back to the preset", async ({ clean: page }) => {
  await page.goto("/");
  await expect(page.locator(".strip")).toBeVisible();
  await page.getByRole("slider", { name: /Bandwidth/ }).press("ArrowRight");
  await expect(page.getByRole("heading", { name: "Device, custom rates" })).toBeVisible();
  await expect(page).toHaveURL(/bw=/);
  await page.getByRole("button", { name: "Back to preset" }).click();
  await expect(page.getByRole("heading", { name: "Device", exact: true })).toBeVisible();
  await expect(page).not.toHaveURL(/bw=/);
});

test("moves a peak below one the way the key points", async ({ clean: page }) => {
  await page.goto("/?on=a10g");
  await page.getByText("Other peaks, source").click();
  const peak = page.getByLabel("Peak FP64", { exact: true });
  await expect(peak).toHaveAttribute("aria-valuetext", /^5\d\d GFLOP/);
  await peak.press("ArrowLeft");
  await expect(page).toHaveURL(/peak=fp64:0\.5$/);
  await peak.press("ArrowRight");
  await expect(page).toHaveURL(/peak=fp64:0\.55$/);
});

test("says what a device cannot do", async ({ clean: page, allowed }) => {
  allowed.push(/status of 4\d\d/);
  await page.goto("/?on=a100_sxm_80gb&p=fp8");
  await expect(page.getByRole("alert")).toContainText("FP8");
  await page.getByLabel("Precision").selectOption("bf16");
  await expect(page.getByRole("alert")).toHaveCount(0);
  await expect(page.locator(".point.operator")).not.toHaveCount(0);
});

test("pins up to four set-ups", async ({ clean: page }) => {
  await page.goto("/");
  const pin = page.getByRole("button", { name: "Pin current" });
  for (const precision of ["bf16", "fp8", "w4a16", "int8"]) {
    await page.getByLabel("Precision").selectOption(precision);
    await pin.click();
  }
  await expect(page.locator(".pins li")).toHaveCount(4);
  await expect(pin).toBeDisabled();
  await expect(page.locator(".point.pin")).toHaveCount(4);
  await expect(page.locator(".pins")).toContainText("h200_s·w4a16·d4096");
  await expect(page).toHaveURL(/pin=.*pin=.*pin=.*pin=/);
  await page.reload();
  await expect(page.locator(".point.pin")).toHaveCount(4);
  await page.getByRole("button", { name: "Remove h200_s·fp8·d4096" }).click();
  await expect(page.locator(".pins li")).toHaveCount(3);
});

test("zooms, pans and comes back", async ({ clean: page }) => {
  await page.goto("/");
  const ticks = page.locator(".plot-svg .axes text");
  await expect(ticks).not.toHaveCount(0);
  const before = await ticks.allTextContents();
  await page.getByRole("button", { name: "Zoom in" }).click();
  await page.getByRole("button", { name: "Zoom in" }).click();
  await expect.poll(() => ticks.allTextContents()).not.toEqual(before);
  await expect(page).toHaveURL(/zoom=2\.25/);
  const box = (await page.locator(".plot-svg").boundingBox())!;
  const point = page.locator(".point.attention");
  const from = await point.getAttribute("transform");
  await page.mouse.move(box.x + box.width * 0.8, box.y + box.height * 0.8);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.8 - 60, box.y + box.height * 0.8 - 40, { steps: 4 });
  await page.mouse.up();
  await expect(point).not.toHaveAttribute("transform", from!);
  await page.reload();
  await expect(page).toHaveURL(/zoom=2\.25/);
  await expect(ticks).not.toHaveCount(0);
  await page.getByRole("button", { name: "Reset zoom" }).click();
  await expect.poll(() => ticks.allTextContents()).toEqual(before);
  await expect(page).not.toHaveURL(/zoom=/);
});

test("tells about points by pointer, by keyboard and from the table", async ({ clean: page }) => {
  await page.goto("/");
  await page.locator(".point.attention").hover();
  await expect(page.locator(".card")).toContainText("attention");
  await expect(page.locator(".card")).toContainText("bound by");
  await page.mouse.move(5, 5);
  await expect(page.locator(".card")).toHaveCount(0);
  await page.locator(".plot-svg").focus();
  await page.keyboard.press("Tab");
  await expect(page.locator(".point:focus")).toHaveCount(1);
  await expect(page.locator(".card")).toBeVisible();
  await page.getByRole("rowheader", { name: /down_proj/ }).hover();
  await expect(page.locator(".card")).toContainText("down_proj");
});

test("sorts and filters operators", async ({ clean: page }) => {
  await page.goto("/");
  const table = page.getByRole("region", { name: "Operators, table" });
  await expect(table.locator("tbody th").first()).toContainText("gate_up_proj");
  await table.getByRole("button", { name: "Operator" }).click();
  await expect(table.locator("tbody th").first()).toContainText("attention");
  await page.getByLabel("Filter operators").fill("launch");
  await expect(table.locator("tbody tr")).not.toHaveCount(7);
  await page.getByLabel("Filter operators").fill("nothing like this");
  await expect(table).toContainText("No operator matches");
  await expect(page).toHaveURL(/find=nothing/);
});

test("exports what is seen", async ({ clean: page }) => {
  await page.goto("/");
  await expect(page.locator(".point.total")).toHaveCount(1);
  const saved: Record<string, Buffer> = {};
  for (const kind of ["SVG", "PNG", "CSV", "JSON"]) {
    await page.locator(".menu summary").click();
    const [download] = await Promise.all([page.waitForEvent("download"), page.locator(".menu-list").getByRole("button", { name: kind }).click()]);
    expect(download.suggestedFilename()).toBe(`roofline-llama-3-8b-h200_sxm-bf16-decode.${kind.toLowerCase()}`);
    saved[kind] = readFileSync((await download.path())!);
  }
  expect(saved["SVG"]!.toString()).toMatch(/^<\?xml[\s\S]*<svg[\s\S]*gate_up_proj[\s\S]*<\/svg>/);
  expect(saved["SVG"]!.toString()).not.toContain("var(--");
  expect(saved["PNG"]!.subarray(1, 4).toString()).toBe("PNG");
  expect(saved["PNG"]!.length).toBeGreaterThan(20_000);
  const lines = saved["CSV"]!.toString().trim().split("\n");
  expect(lines[0]).toMatch(/^label,source,class,precision/);
  expect(lines).toHaveLength(9);
  const json = JSON.parse(saved["JSON"]!.toString()) as { estimate: { operators: unknown[] } };
  expect(json.estimate.operators).toHaveLength(7);
});

test("keeps the theme that was chosen", async ({ clean: page }) => {
  await page.emulateMedia({ colorScheme: "dark" });
  await page.goto("/");
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  expect(await ground()).toBe("rgb(6, 10, 20)");
  await page.getByRole("button", { name: "Light or dark" }).click();
  expect(await ground()).toBe("rgb(243, 245, 248)");
  await page.reload();
  expect(await ground()).toBe("rgb(243, 245, 248)");
});
