import { defineConfig } from "vitest/config";

const API = "http://127.0.0.1:8000";

/** Nothing is inlined: the server allows scripts, styles and fonts from its own origin only. */
export default defineConfig({
  base: "./",
  build: {
    target: "es2023",
    cssTarget: ["chrome123", "firefox121", "safari17.5"],
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 400,
  },
  // the server answers pages of its own origin only
  server: { proxy: { "/api": { target: API, changeOrigin: true, headers: { origin: API } } } },
  test: { include: ["tests/**/*.test.ts"] },
});
