import { expect, expectAccessible, test } from "./fixtures";

const TABS = ["roofline", "kernel", "benchmark", "recommend", "formats", "compare", "gpu"] as const;
const SIZES = [
  { name: "desk", width: 1440, height: 900 },
  { name: "phone", width: 375, height: 812 },
] as const;

for (const tab of TABS) {
  for (const scheme of ["dark", "light"] as const) {
    for (const { name, width, height } of SIZES) {
      test(`${tab}, ${scheme}, ${name}: accessible, nothing beyond the edge`, async ({ clean: page }) => {
        await page.emulateMedia({ colorScheme: scheme, reducedMotion: "reduce" });
        await page.setViewportSize({ width, height });
        await page.goto(`/?tab=${tab}&backend=null&bp=bf16&pin=h200_sxm~llama-3-8b~w4a16~decode~4096~1`);
        await expect(page.locator("main .panel").first()).toBeVisible();
        if (tab === "compare") await page.getByRole("button", { name: "Use example" }).click();
        await page.waitForLoadState("networkidle");
        await expectAccessible(page);
        expect(await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth)).toBeLessThanOrEqual(0);
        if (process.env["SCREENSHOTS"]) await page.screenshot({ path: `${process.env["SCREENSHOTS"]}/${tab}-${scheme}-${name}.png`, fullPage: true });
      });
    }
  }
}

test("every control is reached by the keyboard and shows it", async ({ clean: page }) => {
  await page.goto("/");
  await expect(page.locator(".point.total")).toHaveCount(1);
  const seen = new Set<string>();
  for (let press = 0; press < 60; press += 1) {
    await page.keyboard.press("Tab");
    const focus = await page.evaluate(() => {
      const element = document.activeElement;
      if (!element || element === document.body) return null;
      const style = getComputedStyle(element);
      const mark = element.querySelector(".mark");
      const ring = style.outlineStyle !== "none" || (mark !== null && parseFloat(getComputedStyle(mark).strokeWidth) >= 2);
      return { name: element.getAttribute("aria-label") ?? (element.id || (element.textContent ?? "").slice(0, 40)), tag: element.tagName.toLowerCase(), ring };
    });
    if (!focus) break;
    seen.add(`${focus.tag}:${focus.name}`);
    expect(focus.ring, `${focus.tag} ${focus.name}`).toBe(true);
  }
  expect(seen.size).toBeGreaterThan(25);
});
