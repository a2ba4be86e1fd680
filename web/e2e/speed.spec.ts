import { expect, test } from "./fixtures";

/** The numbers are printed, and that there are some is tested: how fast a machine is that runs tests is no property of the page. */
test("times the first view and the sliders", async ({ clean: page }) => {
  await page.goto("/");
  await expect(page.locator(".point.total")).toHaveCount(1);
  const first = await page.evaluate(() => performance.getEntriesByName("roofline:first-picture")[0]?.startTime ?? NaN);
  const latencies = await page.evaluate(async () => {
    const slider = document.querySelector<HTMLInputElement>('input[type="range"][aria-valuetext="4 K"]')!;
    const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value")!.set!;
    const strip = document.querySelector(".strip dd")!;
    const taken: number[] = [];
    for (let step = 0; step < 40; step += 1) {
      const begun = performance.now();
      const changed = new Promise<void>((resolve) => {
        const observer = new MutationObserver(() => {
          observer.disconnect();
          resolve();
        });
        observer.observe(strip, { subtree: true, childList: true, characterData: true });
      });
      set.call(slider, String(Number(slider.value) + (step % 2 === 0 ? 3 : -2)));
      slider.dispatchEvent(new Event("input", { bubbles: true }));
      await Promise.race([changed, new Promise((resolve) => setTimeout(resolve, 1000))]);
      taken.push(performance.now() - begun);
      await new Promise((resolve) => requestAnimationFrame(resolve));
    }
    return taken.sort((a, b) => a - b);
  });
  const middle = latencies[Math.floor(latencies.length / 2)]!;
  const high = latencies[Math.floor(latencies.length * 0.95)]!;
  console.log(`first picture after ${first.toFixed(0)} ms; slider to new numbers: median ${middle.toFixed(1)} ms, 95 % ${high.toFixed(1)} ms`);
  expect(first).toBeGreaterThan(0);
  expect(middle).toBeLessThan(1000);
});
