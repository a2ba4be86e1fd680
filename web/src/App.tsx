import { lazy, Suspense, useEffect, useRef, type ComponentType, type MouseEvent } from "react";
import { CatalogueContext, useCatalogue, useLoadedCatalogue } from "./data/catalogue";
import { useConnection, type Connection } from "./data/connection";
import { CopyButton } from "./parts/Copy";
import { useTheme } from "./parts/theme";
import { OfflineBanner, TokenBanner } from "./parts/Trouble";
import { toQuery } from "./state/address";
import { change, link, useView } from "./state/store";
import { TABS, type Tab } from "./state/view";
import { RooflineView } from "./views/roofline/RooflineView";

/** The first tab comes with the page; the others when they are opened. */
const VIEWS: Record<Tab, { readonly name: string; readonly view: ComponentType }> = {
  roofline: { name: "Roofline", view: RooflineView },
  kernel: { name: "Kernel", view: lazy(() => import("./views/kernel/KernelView")) },
  benchmark: { name: "Benchmark", view: lazy(() => import("./views/benchmark/BenchmarkView")) },
  recommend: { name: "Recommend", view: lazy(() => import("./views/recommend/RecommendView")) },
  formats: { name: "Formats", view: lazy(() => import("./views/formats/FormatsView")) },
  compare: { name: "Compare", view: lazy(() => import("./views/compare/CompareView")) },
  gpu: { name: "GPU", view: lazy(() => import("./views/gpu/GpuView")) },
};

export function App() {
  const view = useView();
  const connection = useConnection();
  const catalogue = useLoadedCatalogue();
  const Current = VIEWS[view.tab].view;
  return (
    <CatalogueContext value={catalogue}>
      <div className="app">
        <Header tab={view.tab} connection={connection} />
        {connection === "offline" && <OfflineBanner />}
        {connection === "locked" && <TokenBanner />}
        <main>
          <h1 className="hidden">{VIEWS[view.tab].name}</h1>
          <Suspense fallback={<div className="empty">Loading</div>}>
            <Current />
          </Suspense>
        </main>
      </div>
    </CatalogueContext>
  );
}

function Header({ tab, connection }: { tab: Tab; connection: Connection }) {
  const view = useView();
  const [, toggle] = useTheme();
  const tabs = useRef<HTMLElement>(null);
  useEffect(() => {
    // on a phone the tabs scroll sideways: the one that is open must be seen
    const list = tabs.current;
    const link = list?.querySelector<HTMLElement>('[aria-current="page"]');
    if (list && link) list.scrollLeft = link.offsetLeft - (list.clientWidth - link.offsetWidth) / 2;
  }, [tab]);
  const open = (event: MouseEvent, next: Tab) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    change({ tab: next });
    window.scrollTo(0, 0);
  };
  return (
    <header className="top">
      <div className="brand">
        <svg viewBox="0 0 32 32" aria-hidden="true">
          <path d="M3 27 15 10h14" fill="none" stroke="var(--accent)" strokeWidth="3" strokeLinecap="round" strokeLinejoin="round" />
          <circle cx="11" cy="23" r="3" fill="var(--fp16)" />
          <circle cx="23" cy="17" r="3" fill="var(--fp8)" />
        </svg>
        roofline
      </div>
      <nav className="tabs" aria-label="Views" ref={tabs}>
        {TABS.map((name) => (
          <a key={name} href={toQuery({ ...view, tab: name }) || "./"} aria-current={name === tab ? "page" : undefined} onClick={(event) => open(event, name)}>
            {VIEWS[name].name}
          </a>
        ))}
      </nav>
      <div className="status">
        <ServerChip connection={connection} />
        <CopyButton text={link} label="Copy link" className="button quiet tight" />
        <button type="button" className="icon-button" onClick={toggle} aria-label="Light or dark" title="Light or dark">
          <svg viewBox="0 0 24 24" fill="none" stroke="currentColor" strokeWidth="2" aria-hidden="true">
            <circle cx="12" cy="12" r="9" />
            <path d="M12 3a9 9 0 0 1 0 18Z" fill="currentColor" stroke="none" />
          </svg>
        </button>
      </div>
    </header>
  );
}

function ServerChip({ connection }: { connection: Connection }) {
  const { health } = useCatalogue();
  if (connection !== "online") return <span className="chip off">{connection}</span>;
  if (!health) return null;
  const text = health.gpu ?? (health.cuda ? "CUDA" : "no GPU");
  const title = `roofline ${health.version}; measuring is ${health.allow_measure ? "allowed" : "off"}`;
  return (
    <span className="chip" title={title}>
      {text}
    </span>
  );
}
