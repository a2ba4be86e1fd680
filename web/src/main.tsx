import { createRoot } from "react-dom/client";
import { App } from "./App";
import { applyTheme, keptTheme } from "./parts/theme";
import "./styles/base.css";
import "./styles/layout.css";
import "./styles/plot.css";
import "./styles/views.css";

applyTheme(keptTheme());
createRoot(document.getElementById("root")!).render(<App />);
