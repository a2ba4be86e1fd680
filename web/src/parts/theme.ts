/** Light, dark, or as the system says. */

import { useState } from "react";

export type Theme = "system" | "light" | "dark";
const KEY = "roofline.theme";

export function keptTheme(): Theme {
  try {
    const kept = window.localStorage.getItem(KEY);
    return kept === "light" || kept === "dark" ? kept : "system";
  } catch {
    return "system";
  }
}

export function applyTheme(theme: Theme): void {
  const root = document.documentElement;
  if (theme === "system") delete root.dataset["theme"];
  else root.dataset["theme"] = theme;
}

export function isDark(theme: Theme): boolean {
  return theme === "system" ? window.matchMedia("(prefers-color-scheme: dark)").matches : theme === "dark";
}

export function useTheme(): [Theme, () => void] {
  const [theme, setTheme] = useState(keptTheme);
  const toggle = () => {
    const next: Theme = isDark(theme) ? "light" : "dark";
    applyTheme(next);
    try {
      window.localStorage.setItem(KEY, next);
    } catch {
      // the choice lasts as long as the tab
    }
    setTheme(next);
  };
  return [theme, toggle];
}
