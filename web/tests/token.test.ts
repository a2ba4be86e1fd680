import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

const SECRET = "0123456789abcdef";

/** As much of a window as the modules touch. */
function openAt(address: string) {
  const location = new URL(address);
  const kept = new Map<string, string>();
  const go = (_state: unknown, _title: string, next: string) => {
    location.href = new URL(next, location).href;
  };
  vi.stubGlobal("window", {
    location,
    history: { replaceState: go, pushState: go },
    sessionStorage: { getItem: (key: string) => kept.get(key) ?? null, setItem: (key: string, value: string) => kept.set(key, value) },
    addEventListener: () => undefined,
    setTimeout,
    clearTimeout,
  });
  return location;
}

beforeEach(() => vi.resetModules());
afterEach(() => vi.unstubAllGlobals());

describe("a token in the address", () => {
  it("is sent, and leaves the address at once", async () => {
    const location = openAt(`http://127.0.0.1:8000/?tab=formats#token=${SECRET}`);
    const { ask, hasToken } = await import("../src/api/client");
    expect(location.href).toBe("http://127.0.0.1:8000/?tab=formats");
    expect(hasToken()).toBe(true);
    const fetched = vi.fn<typeof fetch>(() => Promise.resolve(new Response("{}")));
    vi.stubGlobal("fetch", fetched);
    await ask("api/health");
    expect(fetched.mock.calls[0]![1]?.headers).toMatchObject({ authorization: `Bearer ${SECRET}` });
  });

  it("is in no link, even where it is still in the address", async () => {
    const location = openAt("http://127.0.0.1:8000/some/where/?tab=formats");
    const { change, link } = await import("../src/state/store");
    location.hash = `#token=${SECRET}`;
    change({ format: "mxfp4" });
    expect(link()).toBe("http://127.0.0.1:8000/some/where/?tab=formats&format=mxfp4");
    expect(location.href).not.toContain(SECRET);
  });

  it("that is added later is taken, too", async () => {
    const location = openAt("http://127.0.0.1:8000/");
    const { hasToken, takeToken } = await import("../src/api/client");
    expect(hasToken()).toBe(false);
    location.hash = "#token=%E0%A4%A";
    expect(takeToken()).toBe(true);
    expect(takeToken()).toBe(false);
    expect(location.href).toBe("http://127.0.0.1:8000/");
  });
});
