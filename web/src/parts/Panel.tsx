import type { ReactNode } from "react";

export function Panel({ title, tools, children, flush = false, className = "" }: { title?: string; tools?: ReactNode; children: ReactNode; flush?: boolean; className?: string }) {
  return (
    <section className={`panel ${className}`} aria-label={title}>
      {title && (
        <header>
          <h2>{title}</h2>
          {tools}
        </header>
      )}
      {flush ? children : <div className="body">{children}</div>}
    </section>
  );
}
