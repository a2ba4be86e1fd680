export default function GpuView() { return <div className="empty">…</div>; }
