export default function BenchmarkView() { return <div className="empty">…</div>; }
